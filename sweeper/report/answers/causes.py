"""Causes: where time goes that compiling could have saved.

Only what the device waits for the host in the compiled arm has a price here: its share of waiting
times its step time. Graph breaks, skipped CUDA graphs and a busy host lie behind that waiting, so
their own shares cannot be told.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sweeper.analysis.flags import FLAGS
from sweeper.analysis.gains import MIN_GAIN
from sweeper.analysis.meanings import CAUSES
from sweeper.core.backends import CONTROLS
from sweeper.loading.entries import Entry
from sweeper.report.columns.formats import count, figure, join, join_lines, percent, prefix, ratio

from .decision import GRAPH_MODES

WAITS = "the device waits for the host"
GRAPHS = "mode=reduce-overhead launches its kernels all at once"
LARGER_BATCH = "a larger batch gives the device more to do"
RECOMPILE = "recompile"
HAVE_PLACES = {"graph_break": "graph break", "cudagraph_skip": "skipped CUDA graph"}


@dataclass(frozen=True)
class Cause:
    """One reason of one trial for time lost."""

    entry: Entry
    name: str  # host_bound, graph_break, recompile, cudagraph_skip, cache_bypass or throttled
    detail: str  # the compiler's reason and the place in the user's code
    reason: str  # without a place
    count: int | None = None  # how often it was seen; None for a state
    lost_s: float | None = None  # per step; None: it cannot be told
    own_fix: str = ""  # where its name does not say what to do

    @property
    def fix(self) -> str:
        return self.own_fix or {**FLAGS, **CAUSES}[self.name].todo.replace("`", "")

    @property
    def lost_fraction(self) -> float | None:
        """The lost time as a share of the compiled step."""
        step_s = self.entry.result.step_s.compiled
        if self.lost_s is not None and step_s:
            return self.lost_s / step_s
        return None

    @property
    def loss(self) -> str:
        """What a trial loses, e.g. `10.3 ms per step (43 %)`; empty where it is not known."""
        if self.lost_s is None:
            return ""
        return f"{figure(self.lost_s * 1e3)} ms per step ({percent(self.lost_fraction or 0.0)})"

    @property
    def extent(self) -> str:
        """What a trial loses and how often the cause was seen; empty where neither is known."""
        times = "" if self.count is None else count(self.count, "time")
        return join((self.loss, times), ", ")

    def describe(self) -> str:
        """E.g. `10.3 ms per step (43 %): the device waits for the host`."""
        return join((self.extent, join_lines(self.detail)), ": ")

    def describe_behind_name(self) -> str:
        """Describe it with what separates the text from the cause's name."""
        separator = ", " if self.extent else ": "
        return f"{separator}{self.describe()}"


def find_causes(entries: Iterable[Entry]) -> list[Cause]:
    """Put first what costs a larger share of its step, then what was seen more often.

    A compile_error has no compiled step that could lose time, and its failure says why.
    """
    causes: list[Cause] = []
    for entry in entries:
        if entry.record.status == "compile_error":
            continue
        if entry.trial.mode != "eager" and entry.trial.backend not in CONTROLS:
            causes += _find_causes(entry)
    return sorted(causes, key=lambda cause: (-(cause.lost_fraction or 0.0), -(cause.count or 0)))


def _find_causes(entry: Entry) -> Iterator[Cause]:
    result, trial, diagnostics = entry.result, entry.trial, entry.record.diagnostics
    share, step_s = result.compiled_waits_fraction, result.step_s.compiled
    if share is not None and step_s and result.compiled_waits:
        fix, detail = LARGER_BATCH, WAITS
        has_graphs = trial.mode in GRAPH_MODES or "triton.cudagraphs" in trial.compile.options
        if trial.backend == "inductor" and not has_graphs:  # another mode would record them
            fix, detail = GRAPHS, f"{WAITS}; {GRAPHS}"
        if device := result.device_speedup:
            detail += f"; the device alone is {device.ratio:.2f} times as fast as eager"
        yield Cause(entry, "host_bound", detail, WAITS, lost_s=share * step_s, own_fix=fix)
    if diagnostics is not None:
        for item in diagnostics.graph_breaks:
            detail = f"{item.reason}{prefix(' at ', item.where or '')}"
            yield Cause(entry, "graph_break", detail, item.reason, item.count)
        if diagnostics.recompiles:
            inspect = "" if trial.has_loop else " or inspect=true"
            detail = f"TORCH_LOGS=recompiles{inspect} says why"
            yield Cause(entry, RECOMPILE, detail, CAUSES[RECOMPILE].says, diagnostics.recompiles)
    fix = ""
    if trial.device == "cpu":
        fix = "Nothing: on a GPU this mode records them."
    for reason, times in Counter(entry.record.cudagraph_skips).items():
        yield Cause(entry, "cudagraph_skip", reason, reason, times, own_fix=fix)
    bypasses = Counter[str]()
    for start in result.starts:
        bypasses |= Counter(start.bypasses)
    for reason, times in bypasses.items():
        yield Cause(entry, "cache_bypass", reason, reason, times)
    if "throttled" in entry.flags:
        detail = "clocks were lowered in the rounds (power or heat)"
        yield Cause(entry, "throttled", detail, detail)


def explain(entry: Entry, causes: Sequence[Cause]) -> Iterator[str]:
    """Say why a trial is not faster; `causes` are its own.

    Causes that have places are counted: whoever shows these lines shows the places too.
    """
    wall, device = entry.result.speedup, entry.result.device_speedup
    if wall and device and max(wall.ratio, device.ratio) <= 1 + MIN_GAIN:
        longer = "longer than" if device.ratio < 1 - MIN_GAIN else "about as long as"
        yield (
            f"the compiled kernels take {longer} eager's (device speedup {ratio(device.ratio)}); "
            "inspect=true shows which are generated and which are library calls"
        )
    totals = Counter[str]()
    for cause in causes:
        totals[cause.name] += cause.count or 0
        if cause.name not in HAVE_PLACES:
            yield f"{cause.name}{cause.describe_behind_name()}"
    for name, noun in HAVE_PLACES.items():
        if totals[name]:
            yield f"{count(totals[name], noun)}, see below"
