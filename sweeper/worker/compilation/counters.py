"""What the compiler did: graphs, breaks with reasons and places, recompilations, CUDA graphs that
were skipped.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._dynamo.callback import CallbackArgs, callback_handler
from torch._dynamo.utils import (
    compilation_time_metrics,
    counters,
    get_compilation_metrics,
    graph_break_reasons,
)

from sweeper.core.backends import CONTROLS
from sweeper.core.record import NO_REASON, Diagnostics, GraphBreak
from sweeper.core.serialization import Json
from sweeper.worker.source_lines import name_call

from .artifacts import REASON_LENGTH, bypass_log, code_fingerprint, count_kernels
from .backends import fallback_log, find_compiler
from .lease_breaks import COMPILES
from .wrapped_backend import WrappedBackend

# files that stand in for Python: a break in them is one of who calls them
OF_PYTHON = ("contextlib.py", "torch/_dynamo/polyfills/")
NO_GRAPH = {  # by scope, why there is none; else a model that Dynamo could not read
    "optimizer": "no graph of the optimizer's step reached the backend: everything ran eager. "
    "Dynamo leaves a fused optimizer alone (optimizer.impl=fused, or adam with a gradient scaler); "
    "use optimizer.impl=foreach",
    "loss": "no graph of the loss reached the backend: everything ran eager. Models of "
    "transformers compute their loss in their forward; use compile.scope=model",
}


class CompileCounters:
    """Counts compilations, from `begin` on, which comes before the first compiled call.

    Torch's own counters are global, so a process has one of these. `keep_compiled` leaves what has
    been compiled so far in place, for an eager arm that compiles kernels of its own: they are
    neither compiled again nor counted.
    """

    def __init__(self, keep_compiled: bool = False) -> None:
        self._keeps_compiled = keep_compiled
        # identities of everything that has been compiled so far; there are more when more is
        self.programs: frozenset[str] = frozenset()
        self._backend: WrappedBackend | None = None
        self._inductor = False
        self._code_before: str | None = None
        self._kernels_before = 0
        self.scope = "model"  # `compile.scope` of what is compiled
        # False: Dynamo is not asked, what runs is what the module was converted to
        self.expects_graphs = True

    def begin(self) -> None:
        """Count from now on, with torch's own counters at zero."""
        if self._keeps_compiled:
            self._code_before = code_fingerprint()
            self._kernels_before = count_kernels() or 0
        else:
            torch._dynamo.reset()
        counters.clear()
        bypass_log.begin()
        fallback_log.begin()
        graph_break_reasons.clear()
        compilation_time_metrics.clear()
        callback_handler.register_start_callback(self._start_compilation)

    def end(self) -> None:
        """Count no more."""
        callback_handler.remove_start_callback(self._start_compilation)

    def _start_compilation(self, call: CallbackArgs) -> None:
        if call.callback_trigger in COMPILES:
            self.programs |= {f"{call.callback_trigger.name} {call.compile_id}"}

    def wrap_backend(self, name: str) -> str | Callable[..., Any]:
        """Wrap the trial's backend for `torch.compile`, to count its runs; names alone stand for
        eager and inductor.

        Each call gives the same, because Dynamo compiles again for another backend.
        """
        # torch has a way of its own for it; its code is looked for instead
        self._inductor = name == "inductor"
        if self._inductor or name in CONTROLS:
            return name
        if self._backend is None:
            self._backend = WrappedBackend(find_compiler(name))
        return self._backend

    def reset_run_counts(self) -> None:
        """Compiling is over, also where a backend compiles in its first call: what it does with its
        graphs from now on is what is timed.
        """
        if self._backend:
            self._backend.called.clear()
            self._backend.ran_as_given.clear()

    def explain_not_compiled(self) -> str | None:
        """Why the timed steps are not the compiled model, or None."""
        if not self.expects_graphs:
            return None
        kept = counters["dynamo_cache"]["dynamo_cache_hit"]  # with caching_precompile
        if counters["stats"]["unique_graphs"] == 0 and not kept:
            why = NO_GRAPH.get(
                self.scope, "no graph of the model reached the backend: everything ran eager"
            )
            breaks = sorted(_graph_breaks(), key=lambda item: item.where is None)
            if breaks:
                return f"{name_call(breaks[0].reason, breaks[0].where or '')}, so {why}"
            return why
        backend = self._backend
        if backend and backend.called and backend.called <= backend.ran_as_given:
            return "the backend runs every graph as it was given, and compiles none"
        if fallback_log.texts:
            first = fallback_log.texts[0].splitlines()[0]
            return f"the backend goes on without itself: {first}"
        if self._inductor and code_fingerprint() == self._code_before:
            return "Inductor was given graphs and left no code: everything ran eager"
        if any("limit exceeded" in reason for reason in counters["unimplemented"]):
            limit = torch._dynamo.config.recompile_limit
            return (
                f"past torch's limit of recompilations ({limit}) a frame runs eager; "
                "TORCH_LOGS=recompiles says why"
            )
        return None

    def report(
        self, settings: Mapping[str, Json] = {}, parameters: Mapping[str, int] = {}
    ) -> Diagnostics:
        # Compilations of a frame beyond its first here; an id is `frame/compilation`.
        compiled = [name for name in self.programs if name.startswith("DYNAMO")]
        frames = {name.rpartition("/")[0] for name in compiled}
        num_run_eager = len(self._backend.ran_as_given) if self._backend else 0
        kernels = count_kernels() if self._inductor else None
        if kernels is not None:
            kernels -= self._kernels_before
        found = {metrics.cudagraph_skip_reason for metrics in get_compilation_metrics()}
        skips = sorted({str(reason)[:REASON_LENGTH] for reason in found if reason})
        skipped = counters["inductor"]["cudagraph_skips"]
        if skipped and not skips:
            noun = "graph" if skipped == 1 else "graphs"
            skips = [f"{skipped} {noun}, {NO_REASON}"]
        return Diagnostics(
            # that Dynamo captured and handed to the backend
            int(counters["stats"]["unique_graphs"]),
            tuple(_graph_breaks()),
            len(compiled) - len(frames),
            tuple(skips),
            settings,
            num_run_eager,
            parameters,
            kernels,
        )


def _graph_breaks() -> Iterator[GraphBreak]:
    """Distinct breaks; Dynamo's own count is used where it has no place for a break.

    Frames that Dynamo gave up as a whole, which run eager, come last: torch counts them among no
    graph breaks.
    """
    placed: Counter[tuple[str, str | None]] = Counter()
    for item in graph_break_reasons:
        place = None
        for frame in item.user_stack or ():  # the innermost one that a user could change
            if not any(part in frame.filename for part in OF_PYTHON):
                place = f"{frame.filename}:{frame.lineno}"
        placed[_first_line(item.reason), place] += 1
    breaks = [GraphBreak(*at, count) for at, count in sorted(placed.items(), key=str)]
    if not breaks:
        unplaced = sorted(counters["graph_break"].items())
        breaks = [GraphBreak(_first_line(text), None, count) for text, count in unplaced]
    yield from breaks
    skipped = counters["frames"]["total"] - counters["frames"]["ok"]
    if skipped > 0:
        known = {item.reason for item in breaks}
        lines = map(_first_line, counters["unimplemented"])
        reasons = "; ".join(line for line in lines if line not in known)
        yield GraphBreak(f"a whole frame runs eager: {reasons or NO_REASON}", None, skipped)


def _first_line(text: str) -> str:
    """The first line of a reason, with the model's own exception where one is the reason."""
    first = text.strip().splitlines()[0]
    if raised := re.search("context: raised exception (.+)", text):
        first = f"{first}: {raised[1]}"
    return first[:REASON_LENGTH]
