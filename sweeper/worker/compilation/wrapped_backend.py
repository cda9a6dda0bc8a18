"""A wrapped backend, which counts whether its graphs run compiled or as they came.

A backend may give back the graph itself, a closure over it or an interpreter of it; all of these
run eager. So runs of the graph as it came are counted where they end up, in its `forward` and in
`torch.fx.Interpreter`, while the function that the backend made is running: compilers run graphs
too, to trace them.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch


class WrappedBackend:
    """Call it as the backend. Counts are by graph, in the order in which graphs came."""

    def __init__(self, backend: Callable[..., Any]) -> None:
        self._backend = backend
        self.calls: list[int] = []  # of what the backend made of a graph
        self.runs_as_given: list[int] = []
        self._running: set[int] = set()
        _wrap_interpreters()

    def __call__(
        self, graph: torch.fx.GraphModule, *arguments: Any, **options: Any
    ) -> Callable[..., Any]:
        index = len(self.calls)
        self.calls.append(0)
        self.runs_as_given.append(0)
        assert graph.code  # a lazy graph makes its forward now, instead of at its first call
        forward = graph.forward

        def count_run() -> None:
            if index in self._running:
                self.runs_as_given[index] += 1

        def counted_forward(*inputs: Any) -> Any:
            count_run()
            return forward(*inputs)

        setattr(graph, "forward", counted_forward)  # noqa: B010  # a backend's closure may run the graph after all
        setattr(graph, _ON_INTERPRETED, count_run)
        compiled = self._backend(graph, *arguments, **options)

        def call(*inputs: Any) -> Any:
            self.calls[index] += 1
            self._running.add(index)
            try:
                return compiled(*inputs)
            finally:
                self._running.discard(index)

        return call

    def reset_counts(self) -> None:
        """Count from now on: a backend that compiles in its first call has done so."""
        self.calls = [0] * len(self.calls)
        self.runs_as_given = [0] * len(self.runs_as_given)

    # Dynamo asks a backend for its name and for a way to reset it
    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


_ON_INTERPRETED = "_sweeper_on_interpreted"


@functools.cache
def _wrap_interpreters() -> None:
    """From now on an interpreter that runs a graph of a wrapped backend counts the run."""
    run = torch.fx.Interpreter.run

    @functools.wraps(run)
    def counted_run(self: torch.fx.Interpreter, *arguments: Any, **options: Any) -> Any:
        count_run = getattr(self.module, _ON_INTERPRETED, None)
        if count_run is not None:
            count_run()
        return run(self, *arguments, **options)

    torch.fx.Interpreter.run = counted_run  # type: ignore[method-assign]
