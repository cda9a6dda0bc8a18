"""What the compiler did: graphs, breaks with reasons and places, recompiles, CUDA-graph skips.

Place in the flow: `Watch` is made before the first compiled call; `report` is read after the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler
from torch._dynamo.utils import counters, get_compilation_metrics, graph_break_reasons

from sweeper.core.backends import CONTROLS
from sweeper.core.record import Diagnostics, GraphBreak
from sweeper.core.serialization import Json
from sweeper.worker.compilation.artifacts import code_fingerprint
from sweeper.worker.compilation.backends import GivingUp, compiler_of
from sweeper.worker.compilation.wrapped_backend import WrappedBackend

REASON_LENGTH = 300


class Watch:
    """Counts compilations from now on. Torch's own counters are global, so there is one watch a process."""

    def __init__(self) -> None:
        torch._dynamo.reset()
        counters.clear()
        graph_break_reasons.clear()
        self._compile_ids: set[str] = set()
        self._watched: WrappedBackend | None = None
        self._inductor = False
        self._giving_up: GivingUp | None = None
        self.expects_graphs = True  # False: Dynamo is not asked, what runs is what the module was converted to
        callback_handler.register_start_callback(self._compilation_started)

    def _compilation_started(self, call: CallbackArgs) -> None:
        if call.callback_trigger is CallbackTrigger.DYNAMO:  # not a recording of CUDA graphs, nor a lazy backward
            self._compile_ids.add(str(call.compile_id))

    @property
    def recompiles(self) -> int:
        """Compilations of a frame beyond its first; an id is `frame/compilation`, the second counted from 0."""
        return sum(1 for compile_id in self._compile_ids if not compile_id.endswith("/0"))

    @property
    def graphs(self) -> int:
        """Graphs that Dynamo captured and handed to the backend."""
        return int(counters["stats"]["unique_graphs"])

    def backend(self, name: str) -> str | Callable[..., Any]:
        """What to give `torch.compile` as backend: the one of that name, watched for giving graphs back uncompiled."""
        if name in CONTROLS:
            return name
        if name == "inductor":
            self._inductor = True  # torch treats this name alone in a way of its own; its code is looked for instead
            return name
        self._giving_up = GivingUp.of(name)
        self._watched = WrappedBackend(compiler_of(name))
        return self._watched

    def settle(self) -> None:
        """Compiling is over: what the backend does with its graphs from now on is what is timed."""
        if self._watched:
            self._watched.forget()

    @property
    def graphs_run_eager(self) -> int:
        """Graphs that the backend has run as they were given to it, since `settle`."""
        return sum(1 for runs in self._watched.runs_as_given if runs) if self._watched else 0

    def why_not_compiled(self) -> str | None:
        """Why the timed steps are not the compiled model, or None."""
        if not self.expects_graphs:
            return None
        if self.graphs == 0:
            return "no graph of the model reached the backend: everything ran eager"
        called = sum(1 for calls in self._watched.calls if calls) if self._watched else 0
        if called and self.graphs_run_eager >= called:
            return "the backend runs every graph as it was given: everything ran eager"
        if self._giving_up and (reason := self._giving_up.why()):
            return reason
        if self._inductor and code_fingerprint() is None:
            return "Inductor was given graphs and left no code: everything ran eager"
        if any("limit exceeded" in reason for reason in counters["unimplemented"]):
            limit = torch._dynamo.config.recompile_limit
            return f"past torch's limit of recompilations ({limit}) a frame runs eager; TORCH_LOGS=recompiles says why"
        return None

    def report(self, settings: Mapping[str, Json]) -> Diagnostics:
        return Diagnostics(
            graphs=self.graphs,
            graphs_run_eager=self.graphs_run_eager,
            graph_breaks=_graph_breaks(),
            recompiles=self.recompiles,
            cudagraph_skips=_cudagraph_skips(),
            settings=settings,
        )


def _graph_breaks() -> tuple[GraphBreak, ...]:
    """Distinct breaks; Dynamo's own count is used where it has no place for a break."""
    placed = Counter((_first_line(item.reason), _place(item.user_stack)) for item in graph_break_reasons)
    if placed:
        breaks = [GraphBreak(reason, where, count) for (reason, where), count in sorted(placed.items(), key=str)]
    else:
        breaks = [GraphBreak(_first_line(text), None, count) for text, count in sorted(counters["graph_break"].items())]
    return (*breaks, *_skipped_frames({item.reason for item in breaks}))


def _skipped_frames(known: Collection[str]) -> Iterator[GraphBreak]:
    """Frames that Dynamo gave up as a whole, which run eager; torch counts them among no graph breaks."""
    skipped = counters["frames"]["total"] - counters["frames"]["ok"]
    if skipped > 0:
        reasons = [line for text in counters["unimplemented"] if (line := _first_line(text)) not in known]
        yield GraphBreak(f"a whole frame runs eager: {'; '.join(reasons) or 'no reason given'}", None, skipped)


def _place(stack: object) -> str | None:
    """`file:line` of the innermost frame of the user's code."""
    frames = list(stack) if isinstance(stack, (list, tuple)) else []
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:REASON_LENGTH]


def _cudagraph_skips() -> tuple[str, ...]:
    reasons = {
        str(metrics.cudagraph_skip_reason)[:REASON_LENGTH]
        for metrics in get_compilation_metrics()
        if metrics.cudagraph_skip_reason
    }
    skipped = counters["inductor"]["cudagraph_skips"]
    if skipped and not reasons:
        return (f"{skipped} graphs, no reason given",)
    return tuple(sorted(reasons))
