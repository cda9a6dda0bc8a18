"""What a report says of users' own scripts: what the loop gains, what was seen of the script, and
what to do.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from sweeper.analysis.derive import predict_loop_speedup
from sweeper.analysis.gains import MIN_GAIN
from sweeper.analysis.margins import find_margin
from sweeper.analysis.result import Result
from sweeper.analysis.stats import ratio_of
from sweeper.core.record import (
    ARMS,
    IN_WRAPPER,
    TORCH_NN,
    WRAPPER,
    CompileCall,
    PerArm,
    ScriptRun,
    of_arm,
)
from sweeper.loading.entries import Entry
from sweeper.report.columns.formats import (
    duration,
    figure,
    join,
    percent,
    prefix,
    ratio,
    show_steps,
)

from . import trajectories
from .candidates import Candidate, find_candidate
from .decision import OPEN, Answer
from .trials import find_varying, list_compile_arguments, name_by

# torch compiles a frame for so many shapes that differ in more than one size, then runs it eager.
MANY_SHAPES = 8
MAX_UNCALLED = 0.05  # of the trained parameters: a temperature or a position is less
OF_WRAPPER = "torch/nn/parallel/distributed.py"
SPLIT = "DDPOptimizer"  # begins torch's reason for a graph that ends with a bucket of DDP
MIN_EVALUATIONS = 3  # in each loop, before their times are compared
NOTABLE_WAIT = 0.1  # share of the loop's time


@dataclass(frozen=True)
class Saving:
    """Seconds that compiling with an empty cache saves over a whole training; below 0 it loses.
    The interval follows the loop's. `is_small`: compiling is not worth it even so.
    """

    value_s: float
    low_s: float | None = None
    high_s: float | None = None
    is_small: bool = False

    def describe(self) -> str:
        """Say `saves 3 min 20 s (3 min 05 s to 3 min 41 s)`, or that it is not known which of
        both. A small saving is named as such.
        """
        low_s, high_s = self.low_s, self.high_s
        said = f"{'saves' if self.value_s > 0 else 'loses'} {_show_time(self.value_s)}"
        if low_s is None or high_s is None:
            return said
        if low_s < 0 < high_s:
            said = f"may save up to {_show_time(high_s)} or lose up to {_show_time(low_s)}"
        else:
            least, most = sorted((low_s, high_s), key=abs)
            said += f" ({_show_time(least)} to {_show_time(most)})"
        if self.is_small and high_s > 0:
            said += f", less than {percent(MIN_GAIN)} of the time in eager"
        return said


def _show_time(seconds: float) -> str:
    size = abs(seconds)
    if size >= 10:
        return duration(size)
    return f"{figure(size)} s"


@dataclass(frozen=True)
class ScriptAnswer:
    """A trial of a user's own script."""

    entry: Entry

    @property
    def seen(self) -> ScriptRun:
        return self.entry.result.seen_of_script or ScriptRun()

    @cached_property
    def loop(self) -> Candidate | None:
        """What its loop gains, where that was timed."""
        found = find_candidate(self.entry)
        return found if found and found.of_loop else None

    @property
    def total_steps(self) -> int | None:
        """The steps of the training: as the user plans it, else as the script ended by itself."""
        return self.entry.trial.labels.total_steps or self.entry.result.length

    @property
    def loader_share(self) -> PerArm:
        """The share of the loop's time in which it waits for its loader."""
        return self.entry.result.loader_share

    @property
    def ceiling(self) -> float | None:
        """What the loop could gain at most: everything but the wait for its loader in no time."""
        return 1 / self.loader_share.eager if self.loader_share.eager else None

    @cached_property
    def saving(self) -> Saving | None:
        compile_s = self.entry.result.compile_cold_s
        if self.loop is None or self.total_steps is None or compile_s is None:
            return None
        gain, eager_s = self.loop.gain, self.total_steps * self.loop.eager_s
        low_s, value_s, high_s = (
            eager_s * (1 - 1 / end) - compile_s for end in (gain.low, gain.value, gain.high)
        )
        if gain.by_margin or self.loop.is_unbounded:
            return Saving(value_s)
        return Saving(value_s, low_s, high_s, gain.high < 1 + MIN_GAIN)

    @property
    def total(self) -> str:
        """What compiling gives over the whole training, e.g. `over 10,000 steps compiling saves
        42 s`; empty where it is not known.
        """
        if self.saving is None:
            return ""
        own = "" if self.entry.trial.labels.total_steps else "the script's own "
        return f"over {own}{self.total_steps:,} steps compiling {self.saving.describe()}"

    @cached_property
    def findings(self) -> tuple[str, ...]:
        """What a user should know of the script, the most useful first."""
        return (
            *self._describe_total(),
            *self._say_how_to_compile(),
            *trajectories.describe(self.seen.trajectory, self.entry.trial.model.asked_trajectory),
            *self._describe_loop(),
        )

    def _describe_total(self) -> Iterator[str]:
        """Say what compiling gives over the whole training, and when it has paid."""
        result = self.entry.result
        compile_s, break_even = result.compile_cold_s, result.break_even_steps.value
        if compile_s is None or self.saving is None:
            return
        most = "at most " if "compile_contended" in self.entry.flags else ""
        when = "never pay back"
        if break_even is not None:
            paid = "have paid back" if self.saving.value_s > 0 else "would pay back"
            when = f"{paid} after {show_steps(break_even)} steps"
        yield f"{self.total}: {most}{_show_time(compile_s)} of compilation {when}"

    def _say_how_to_compile(self) -> Iterator[str]:
        calls = [call for call in self.seen.compile_calls if call.is_arm]
        if calls:
            who = "the script compiles"
            if all(call.by_library for call in calls):
                who = "a library compiles the script's modules"
            asked = " and ".join(map(describe_call, calls))
            yield f"{who} already, which is the compiled arm whatever the mode: {asked}"
            return
        trial, loop = self.entry.trial, self.loop
        if trial.mode == "eager" or loop is None or loop.is_unbounded or not self.seen.called_at:
            return
        if loop.gain.value <= 1 + MIN_GAIN:
            return
        # `compile` of a class of torch's own compiles nothing: Dynamo skips its frames.
        own: list[str] = []
        of_torch: list[str] = []
        for module, place in zip(self.seen.modules, self.seen.called_at, strict=True):
            name = module
            if module.endswith(IN_WRAPPER) and trial.compile.wrapper == "outside":
                name = f"{TORCH_NN}{WRAPPER}"
            named = f"the {name} that {place} calls"
            (of_torch if name.startswith(TORCH_NN) else own).append(named)
        lines, arguments = list_compile_arguments(trial)
        given = ", ".join(arguments)
        how = f"to compile: before the loop,{''.join(f' set {line},' for line in lines)}"
        if own:
            yield f"{how} call .compile({given}) on {' and on '.join(own)}"
        if of_torch:
            call = f"torch.compile(model{prefix(', ', given)})"
            yield f"{how} put {call} in place of {' and of '.join(of_torch)}"

    def _describe_loop(self) -> Iterator[str]:
        eager, compiled = self.loader_share.eager or 0.0, self.loader_share.compiled or 0.0
        waits = f"the loop waits for its loader ({self.seen.loader}) for"
        if eager >= NOTABLE_WAIT:
            yield f"{waits} {percent(eager)} of its time, which compiling does not shorten"
        elif compiled >= NOTABLE_WAIT:
            yield (
                f"once compiled, {waits} {percent(compiled)} of its time, which it did not in "
                "eager: speed that up next"
            )
        seen, loop = self.seen, self.seen.loop_compiled
        predicted = predict_loop_speedup(self.entry.result)
        measured = self.entry.result.loop_speedup
        if "unexplained" in self.entry.flags and predicted is not None and measured:
            yield (
                f"the loop's speedup is {ratio(measured.ratio)}x, and its step and loader explain "
                f"{ratio(predicted)}x: other work of the script, or of other programs, may hold "
                "the cores"
            )
        if any(run and run.left_out for run in (seen.loop_eager, loop)):
            yield (
                "evaluations, saved files or ends of epochs are not in the loop's time, or not as "
                "often in both arms"
            )
        yield from _describe_evaluation(seen, find_margin(self.entry.trial.device).row)
        if seen.num_shapes > 1:
            advice = ""
            if seen.num_shapes > MANY_SHAPES and seen.pad_to:
                advice = f": pad to {', '.join(map(str, seen.pad_to))}"
            yield f"{seen.num_shapes} shapes of inputs{advice}"
        if loop and loop.recompiles:
            times = "once" if loop.recompiles == 1 else f"{loop.recompiles} times"
            yield f"the loop compiled {times} in {loop.steps} steps, after the first steps"
        yield from self._describe_breaks()
        if loop and loop.batches > 1:
            yield f"{loop.batches:.2g} batches per step"
        yield from self.say_entered()
        if seen.gone_round:
            yield f"compiled, but called past the compiler: {', '.join(seen.gone_round)}"
        yield from _describe_ranks(seen, self.entry.result)
        if len(seen.optimizers) > 1:
            yield f"{len(seen.optimizers)} optimizers take turns, and a step is one turn of all"
        if seen.uncalled_share and seen.uncalled_share > MAX_UNCALLED:
            advice = "; if it calls module.forward(...), call module(...) instead"
            yield (
                f"{percent(seen.uncalled_share)} of the trained parameters are in no module that "
                "the script was seen to call, so what computes with them is eager in both arms"
                f"{'' if seen.entered else advice}"
            )
        if seen.late:
            yield (
                "stepped later for the first time, so its modules stay eager in both arms: "
                f"{' and '.join(seen.late)}"
            )
        if seen.per_call:
            yield "steps differ in their calls of modules, so times are for equally many calls"
        if seen.skipped_steps:
            yield f"the gradient scaler skipped {seen.skipped_steps} steps"
        silenced = [describe_call(call) for call in seen.compile_calls if not call.is_arm]
        if silenced:
            yield f"compiled by libraries, and eager in the eager arm too: {' and '.join(silenced)}"

    def say_entered(self) -> Iterator[str]:
        """Say which modules are not compiled as a whole, and what to do."""
        compiles = any(call.is_arm for call in self.seen.compile_calls)
        if self.seen.entered and not compiles and self.entry.trial.mode != "eager":
            named = join(self.seen.entered, " and of ")
            yield (
                f"the script calls forward of {named}, so only the modules inside are compiled: "
                "call the module instead"
            )

    def _describe_breaks(self) -> Iterator[str]:
        diagnostics = self.entry.record.diagnostics
        breaks = diagnostics.graph_breaks if diagnostics else ()
        splits = [item for item in breaks if item.reason.startswith(SPLIT)]
        places = dict.fromkeys(item.where for item in breaks if item.where and item not in splits)
        own = [place for place in places if OF_WRAPPER not in place]
        if len(own) < len(places):
            yield (
                f"graph breaks in {WRAPPER} itself, which the script cannot mend: what is compiled "
                "inside the wrapper has none of them"
            )
        if own:
            yield f"graph breaks at {', '.join(own)}"
        if splits:
            yield (
                f"DDPOptimizer has split graphs at {sum(item.count for item in splits)} places, so "
                "that their parts wait for no other part's gradients"
            )


def _describe_evaluation(seen: ScriptRun, margin: float) -> Iterator[str]:
    """Say how fast evaluation became, where that is more than `margin`, or that it stayed eager."""
    loop = seen.loop_compiled
    if loop and loop.evaluations and loop.untrained == 0:
        yield ("evaluation ran eager: it calls nothing that is compiled, unless with gradients")
    elif loop and seen.loop_eager and not loop.recompiles:
        eager_s, compiled_s = seen.loop_eager.evaluation_s, loop.evaluation_s
        count = min(loop.evaluations, seen.loop_eager.evaluations)
        if not (eager_s and compiled_s) or count < MIN_EVALUATIONS:
            return
        if abs(math.log(eager_s / compiled_s)) > math.log1p(margin):
            yield f"evaluation is {ratio(eager_s / compiled_s)}x as fast ({count} in each arm)"


def _describe_ranks(seen: ScriptRun, result: Result) -> Iterator[str]:
    if not seen.ranks:
        return
    spread = percent(seen.rank_spread.largest or 0.0) if seen.rank_spread else "an unknown share"
    yield (
        f"it trains in {len(seen.ranks)} processes, and a step takes as long as in the slowest "
        f"rank: {spread} longer than in the fastest"
    )
    shares = []
    for arm in ARMS:
        exposed_s, step_s = of_arm(result.exposed_s, arm), of_arm(result.device_step_s, arm)
        if exposed_s is not None and step_s:
            shares.append(f"{percent(exposed_s / step_s)} of the {arm} step")
    if shares:
        yield f"collectives that no computing overlaps take {join(shares, ' and ')} on the device"
    if seen.apart:
        yield f"the ranks train apart, in eager too: {seen.apart} has other values than in rank 0"
    if needed := [one.allocator_peak_bytes for one in seen.ranks if one.allocator_peak_bytes]:
        for arm in ARMS:
            amounts = [figure((of_arm(one, arm) or 0.0) / 2**30) for one in needed]
            yield f"peak memory of the {arm} step by rank: {join(amounts, ', ')} GiB"
    if len({(one.graphs, one.recompiles) for one in seen.ranks}) > 1:
        counts = [
            f"rank {number} {rank.graphs} graphs and {rank.recompiles} recompilations"
            for number, rank in enumerate(seen.ranks)
        ]
        yield f"the ranks compiled different code: {join(counts, ', ')}"


def describe_call(call: CompileCall) -> str:
    what, given = prefix(" ", call.target), prefix(" with ", call.arguments)
    return f"torch.compile{what} at {call.where}{given}"


def conclude(answers: Sequence[Answer]) -> list[str]:
    """Say the answer for each script in a sentence, the most gain first, e.g. `script train.py:
    compile default: loop 1.08x [1.05, 1.11], step 1.50x; pays back after 3,000 steps (20 min)`.
    """
    axes = find_varying([answer.entry for answer in answers], ("variant",))
    lines = []
    for answer in sorted(answers, key=_rank, reverse=True):
        parts = [f"script {name_by(answer.entry, axes)}: {answer}"]
        if answer.best:
            parts += _add_of_loop(ScriptAnswer(answer.best.entry), answer)
        lines.append(join(parts))
    return lines


def _rank(answer: Answer) -> float:
    return answer.best.gain.value if answer.best else 0.0


def _add_of_loop(script: ScriptAnswer, answer: Answer) -> Iterator[str]:
    """Say what is wrong with the training itself, what keeps the loop from gaining what its steps
    gain, and what a whole training saves.
    """
    if script.seen.apart:
        yield "its ranks train apart, in eager too"
    yield from script.say_entered()
    result = script.entry.result
    gain = ratio_of(result.speedup) or 1.0
    # Otherwise the loader is not what keeps the loop from gaining.
    if max(gain, ratio_of(result.loop_speedup) or 0.0) > 1 + MIN_GAIN:
        eager, compiled = script.loader_share.eager or 0.0, script.loader_share.compiled or 0.0
        if eager >= NOTABLE_WAIT and 1 / (eager + (1 - eager) / gain) < gain / (1 + MIN_GAIN):
            most = f"no loop gains more than {ratio(script.ceiling)}x"
            yield f"the loader takes {percent(eager)}, so {most}"
        elif compiled >= NOTABLE_WAIT:
            yield f"once compiled, the loader takes {percent(compiled)}"
    if script.saving and script.total_steps == answer.limits.steps:
        # one process: the answer is open, and the figure has no interval that says so
        is_measured = answer.verdict == OPEN and script.saving.low_s is None
        yield f"{script.total}{', as measured' if is_measured else ''}"
    yield trajectories.say(script.seen.trajectory)
