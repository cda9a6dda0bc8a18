"""A wrapped backend, which notes whether its graphs run compiled or as they came.

A backend may give back the graph itself, a closure over it or an interpreter of it; all of these
run eager. So runs of the graph as it came are noted where they end up, in its `forward` and in
`torch.fx.Interpreter`, while the function that the backend made is running: compilers run graphs
too, to trace them.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch


class WrappedBackend:
    """Call it as the backend. Graphs are numbered in the order in which they came."""

    def __init__(self, backend: Callable[..., Any]) -> None:
        self._backend = backend
        self._indices = itertools.count()
        self.called: set[int] = set()  # graphs of which what the backend made was called
        self.ran_as_given: set[int] = set()
        self._running: set[int] = set()
        _wrap_interpreters()

    def __call__(
        self, graph: torch.fx.GraphModule, *arguments: Any, **options: Any
    ) -> Callable[..., Any]:
        index = next(self._indices)
        assert graph.code  # a lazy graph makes its forward now, instead of at its first call
        forward = graph.forward

        def note_run() -> None:
            if index in self._running:
                self.ran_as_given.add(index)

        def noted_forward(*inputs: Any) -> Any:
            note_run()
            return forward(*inputs)

        setattr(graph, "forward", noted_forward)  # noqa: B010  # a backend's closure may run the graph after all
        setattr(graph, _ON_INTERPRETED, note_run)
        compiled = self._backend(graph, *arguments, **options)

        def call(*inputs: Any) -> Any:
            self.called.add(index)
            self._running.add(index)
            try:
                return compiled(*inputs)
            finally:
                self._running.discard(index)

        return call

    # Dynamo asks a backend for its name and for a way to reset it
    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


_ON_INTERPRETED = "_sweeper_on_interpreted"


@functools.cache
def _wrap_interpreters() -> None:
    """From now on an interpreter that runs a graph of a wrapped backend notes the run."""
    run = torch.fx.Interpreter.run

    @functools.wraps(run)
    def noted_run(self: torch.fx.Interpreter, *arguments: Any, **options: Any) -> Any:
        note_run = getattr(self.module, _ON_INTERPRETED, None)
        if note_run is not None:
            note_run()
        return run(self, *arguments, **options)

    torch.fx.Interpreter.run = noted_run  # type: ignore[method-assign]
