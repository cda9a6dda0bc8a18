"""Blocks and rounds: the wall time of K steps between two device synchronisations, for both arms in
turn.

Rules, the same for both arms: K is one number; the order alternates AB, BA; two untimed steps come
before each block; nothing synchronises inside a block, because users' training loops do not; the
garbage collector is off in a block. A round is void when anything is compiled in it. A model cannot
ask the collector or torch's stance whether its step is timed or checked: both are alike.

A model's steps are calls of ours, and a script's steps are those of its own loop, which resumes us
at the end of each. So what runs steps is a generator here that yields once for each step that a
loop has to run: `Steps`. Where no loop is needed, `complete` runs it to its end.
"""

import gc
import itertools
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from random import Random
from statistics import median, quantiles
from time import perf_counter  # before a model can put another one in its place
from typing import NamedTuple, TypeVar

import torch
from torch.compiler import set_stance
from torch.cuda import synchronize

from sweeper.core.record import MAX_VOID_ROUNDS, OTHERS_BUSY, Latency, Round
from sweeper.core.settings import Measure
from sweeper.core.system.garbage import pause_garbage_collection
from sweeper.worker.failures import MismatchError, UnsteadyError
from sweeper.worker.models.batches import Batch, find_tensors
from sweeper.worker.monitoring.round_monitor import RoundMonitor

MIN_BLOCK_S = {"cuda": 0.2, "cpu": 0.1}
MIN_BLOCK_STEPS = 2
STEPS_BEFORE_BLOCK = 2
MIN_BLOCK_FRACTION = 0.8  # of the minimum length: a block shorter than this is made longer
MAX_STEP_TIME_DIFFERENCE = 0.05  # the step times at K and at 2K agree when they differ by less
# blocks this long are not doubled: the milliseconds at their start and end are negligible
MAX_DOUBLED_BLOCK_S = 1.0
# warm-up ends when the last three readings lie within this range
MAX_WARM_UP_SPREAD = {"cuda": 0.03, "cpu": 0.10}
MIN_READING_S = 0.05  # minimum length of a reading during warm-up
# minimum and maximum number of compiled steps of each size that are timed one by one
FIRST_STEPS = (5, 15)
MAX_FIRST_STEPS_SPREAD = 0.10  # the first steps are over when three in a row lie within this range
# of what the timed steps of both arms give, as a share of it; the check judges what is less
MAX_SIZE_DIFFERENCE = 0.5
MAX_NOISE = 5e-3  # of a loss near zero, as a share of the first loss
Clock = Callable[[], float]
T = TypeVar("T")
# goes on at the end of each step of a loop; what it returns is a `T`
Steps = Generator[None, None, T]


def complete(steps: Steps[T]) -> T:
    """Run what needs no loop to its end, as all that a `ModelBench` runs; return its result."""
    try:
        next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a loop has to run these steps")


@dataclass(frozen=True)
class Arm:
    """One side of a trial. An eager arm never runs compiled code, also where the model brings its
    own.

    The exception is a model whose eager code compiles a kernel without which it would be another
    model: FlexAttention left uncompiled holds all scores at once.
    """

    name: str
    step: Callable[[Batch], object]
    eager: bool
    marks_steps: bool = False
    compiles_kernels: bool = False

    def run(self, batch: Batch) -> object:
        if self.marks_steps:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return self.step(batch)

    def stance(self) -> AbstractContextManager[object]:
        """The same for steps that are checked and that are timed: a model could ask for it."""
        forced = self.eager and not self.compiles_kernels
        return set_stance("force_eager" if forced else "default")  # type: ignore[no-any-return]


Arms = tuple[Arm, Arm]  # eager and compiled, or the other way around


class Bench(ABC):
    """Runs steps of an arm, and times them.

    `clock` gives seconds and stands still while this process waits for the device; `num_sizes`
    batches in a row differ in their shapes.
    """

    def __init__(
        self, device: torch.device, clock: Clock = perf_counter, num_sizes: int = 1
    ) -> None:
        self.device, self.clock, self.num_sizes = device, clock, num_sizes

    @abstractmethod
    def run(self, arm: Arm, steps: int) -> Iterable[None]:
        """Run steps without waiting for the device: those that are left for a loop are to be
        yielded.
        """

    @abstractmethod
    def steps_s(self, arm: Arm, steps: int, until_idle: bool = True) -> Steps[list[float]]:
        """Wall seconds of each step, from an idle device until it is idle again, or until the call
        returns.
        """

    def first_steps_s(
        self, arm: Arm, note: Callable[[list[float]], None] = lambda _: None
    ) -> Steps[list[float]]:
        """Time the first steps one by one until they are steady; the arm compiles during them.

        The time of one step of each size together has to become steady. `note` hears the times so
        far after each step.
        """
        self.rewind()
        least, most = FIRST_STEPS
        times: list[float] = []
        cycles: list[float] = []
        while len(cycles) < most and (
            len(cycles) < least or spread(cycles[-3:]) > MAX_FIRST_STEPS_SPREAD
        ):
            for _ in range(self.num_sizes):
                times.append((yield from self.block_s(arm, 1)))
                note(times)
            cycles.append(sum(times[-self.num_sizes :]))
        return times

    def rewind(self) -> None:  # noqa: B027  # a script's loader goes on
        """Go back to the first batch."""

    def before_block(self, steps: int) -> Iterable[None]:  # noqa: ARG002  # nothing disturbs a model's steps
        """Run what would disturb so many steps in a row."""
        return ()

    def round_up(self, steps: float) -> int:
        """Round `steps` up to a number in which each size occurs equally often."""
        return math.ceil(steps / self.num_sizes) * self.num_sizes

    def count_least(self, step_s: float, measure: Measure) -> int:
        """Count the steps that it takes at least to compile, warm up, choose K and time two
        rounds, where each takes `step_s`.
        """
        reading = math.ceil(MIN_READING_S / step_s)
        readings = 3 if reading == 1 else 2 + 3 * reading
        block_s = measure.block_s or MIN_BLOCK_S[self.device.type]
        least = measure.block_steps or MIN_BLOCK_STEPS
        block = STEPS_BEFORE_BLOCK + max(least, math.ceil(block_s / step_s))
        return FIRST_STEPS[0] + 2 * (STEPS_BEFORE_BLOCK + readings) + 6 * block

    def now(self) -> float:
        """The time by `clock`, which is the same for all who decide by it at this step."""
        return self.clock()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            synchronize()

    keeps_result = False  # of the last step, for `take_size`; it takes memory
    first_loss: float | None = None  # of the first eager step of training, where that is known

    def take_size(self) -> float | None:
        """The loss that the last step gave, or the root mean square of its output; None where that
        is not known.
        """
        return None

    def block_s(self, arm: Arm, steps: int) -> Steps[float]:
        """Wall seconds of `steps` steps, from one synchronisation to the next."""
        yield from self.before_block(steps)
        self.synchronize()
        start = self.clock()
        yield from self.run(arm, steps)
        self.synchronize()
        return self.clock() - start

    def warm_up(self, arm: Arm, limit_s: float) -> Steps[tuple[float, bool]]:
        """Run until the step time is flat or `limit_s` is over; return seconds per step and whether
        they are flat.
        """
        deadline = self.now() + limit_s
        # libraries load and pick algorithms in the first steps
        yield from self.run(arm, STEPS_BEFORE_BLOCK)
        last = deque[float](maxlen=3)
        for _ in range(2):
            last.append((yield from self.block_s(arm, self.num_sizes)) / self.num_sizes)
        steps = self.round_up(MIN_READING_S / min(last))
        if steps > self.num_sizes:
            last.clear()  # these were too short for readings
        while True:
            last.append((yield from self.block_s(arm, steps)) / steps)
            flat = len(last) == 3 and spread(last) <= MAX_WARM_UP_SPREAD[self.device.type]
            if flat or self.now() >= deadline:
                return median(last), flat

    def steps_per_block(self, faster: Arm, step_s: float, measure: Measure) -> Steps[int]:
        """K: long enough for the faster arm, then doubled where the step time depends on it.

        A machine that was busy when `step_s` was taken would make blocks too short, so a block is
        tried.
        """
        least_s = measure.block_s or MIN_BLOCK_S[self.device.type]
        steps = self.round_up(max(measure.block_steps or MIN_BLOCK_STEPS, least_s / step_s))
        on_cpu = self.device.type == "cpu"
        while True:
            block_s = yield from self.block_s(faster, steps)
            if on_cpu:  # other processes may delay any single block
                block_s = min(block_s, (yield from self.block_s(faster, steps)))
            if block_s >= MIN_BLOCK_FRACTION * least_s:
                break
            steps = self.round_up(steps * least_s / block_s)
        # nothing is queued on a CPU, so K changes nothing
        if on_cpu or block_s >= MAX_DOUBLED_BLOCK_S:
            return steps
        twice_s = yield from self.block_s(faster, 2 * steps)
        agree = abs(2 * block_s / twice_s - 1) <= MAX_STEP_TIME_DIFFERENCE
        return steps if agree else 2 * steps


class ModelBench(Bench):
    """Runs the steps of a model, on batches that alternate."""

    def __init__(
        self,
        batches: tuple[Batch, ...],
        device: torch.device,
        clock: Clock = perf_counter,
        num_sizes: int = 1,
    ) -> None:
        super().__init__(device, clock, num_sizes)
        self._all_batches = batches
        self.num_steps = 0  # of both arms, in `run` and `steps_s`
        self._result: object = None  # of the last step, until another one runs
        self.rewind()

    def run(self, arm: Arm, steps: int) -> tuple[()]:
        """Run steps at once, without waiting for the device; none are left for a loop."""
        self.num_steps += steps
        with arm.stance():
            for _ in range(steps - 1):
                arm.run(next(self._batches))
            self._keep(arm.run(next(self._batches)))
        return ()

    def _keep(self, result: object) -> None:
        if self.keeps_result:
            self._result = result

    def take_size(self) -> float | None:
        tensors = [found for found in find_tensors(self._result) if found.is_floating_point()]
        self._result = None
        if len(tensors) == 1 and tensors[0].numel() == 1:
            return float(tensors[0])
        norms = [float(torch.linalg.vector_norm(found, dtype=torch.float32)) for found in tensors]
        count = sum(found.numel() for found in tensors)
        return math.hypot(*norms) / math.sqrt(count) if count else None

    def run_one(self, arm: Arm) -> object:
        """Run one step; return its loss or output."""
        return self.run_on(arm, next(self._batches))

    def run_on(self, arm: Arm, batch: Batch) -> object:
        """Run one step on a batch that is not among those that alternate."""
        with pause_garbage_collection(), arm.stance():
            return arm.run(batch)

    def steps_s(self, arm: Arm, steps: int, until_idle: bool = True) -> Steps[list[float]]:
        yield from ()  # no step is left for a loop
        self.num_steps += steps
        times = []
        with arm.stance():
            for _ in range(steps):
                batch, self._result = next(self._batches), None
                self.synchronize()
                start = self.clock()
                result = arm.run(batch)
                if until_idle:
                    self.synchronize()
                times.append(self.clock() - start)
                self._keep(result)
                del result
        return times

    def rewind(self) -> None:
        """Begin with the first batch, no matter how many eager steps ran before: a trace records
        what its inputs did.
        """
        self._batches = itertools.cycle(self._all_batches)


class Timed(NamedTuple):
    """A round, and by arm, with `measure.clock=step` the wall seconds of each step."""

    round: Round
    steps_s: Mapping[str, list[float]]
    sizes: Mapping[str, float | None]  # what `Bench.take_size` gave after each block


def measure_rounds(
    bench: Bench,
    arms: Arms,
    steps: int,
    measure: Measure,
    monitor: RoundMonitor,
    note: Callable[[Timed], None],
    process: int = 0,
) -> Steps[None]:
    """Time rounds in the order AB, BA, AB, ... until `measure.rounds` of them count; `monitor` says
    which are void. Which order begins is drawn for each process.

    `note` hears of each. `measure.rounds_s` may end them earlier, after as many AB as BA rounds: no
    pair begins of which more than half would lie beyond it. Rounds that others disturb take no part
    in that time, and they may take as long once more.
    Raises UnsteadyError after three void rounds, MismatchError where the timed steps of the arms
    give other results.
    """
    begin = since = bench.now()
    counted, void = 0, []
    sizes: dict[str, list[float]] = {arm.name: [] for arm in arms}
    orders = [("AB", arms), ("BA", arms[::-1])]
    Random(f"{measure.seed} {process}").shuffle(orders)  # noqa: S311  # nobody guesses it
    freeze_objects()
    while counted < measure.rounds:
        if measure.rounds_s and counted and counted % 2 == 0:
            spent_s = bench.now() - begin
            if spent_s + spent_s / counted >= measure.rounds_s:
                break
        order, in_turn = orders[counted % 2]
        start = bench.now()
        timed = yield from _measure_round(bench, in_turn, steps, order, measure, monitor)
        note(timed)
        if timed.round.void == OTHERS_BUSY:
            begin += bench.now() - start
            if measure.rounds_s and begin - since >= measure.rounds_s:
                monitor.rounds_again = 0
            continue
        if timed.round.void is None:
            counted += 1
            for name, size in timed.sizes.items():
                if size is not None:
                    sizes[name].append(size)
            continue
        void.append(timed.round.void)
        if len(void) >= MAX_VOID_ROUNDS:
            reasons = "; ".join(sorted(set(void)))
            raise UnsteadyError(f"{len(void)} of {len(void) + counted} rounds were void: {reasons}")
    _require_alike(sizes["eager"], sizes["compiled"], bench.first_loss)


def _measure_round(
    bench: Bench,
    arms: Arms,
    steps: int,
    order: str,
    measure: Measure,
    monitor: RoundMonitor,
) -> Steps[Timed]:
    times: dict[str, list[float]] = {}
    sizes: dict[str, float | None] = {}
    by_step = measure.clock == "step"
    monitor.start_round()
    for arm in arms:
        yield from bench.before_block(STEPS_BEFORE_BLOCK + steps)
        with without_collector():
            yield from bench.run(arm, STEPS_BEFORE_BLOCK)
            monitor.start_block()
            bench.keeps_result = True
            if by_step:
                times[arm.name] = yield from bench.steps_s(arm, steps)
            else:
                times[arm.name] = [(yield from bench.block_s(arm, steps))]
            bench.keeps_result = False
        monitor.read_after_block(arm.name)
        sizes[arm.name] = bench.take_size()
    measured = Round(order, sum(times["eager"]), sum(times["compiled"]), monitor.explain_void())
    return Timed(measured, times if by_step else {}, sizes)


def _require_alike(
    eager: Sequence[float], compiled: Sequence[float], first_loss: float | None
) -> None:
    """Raise MismatchError where what the compiled arm gave while it was timed is far from all that
    eager gave. A step that does its work only while it is checked is seen here.

    Of two blocks of training one has to be near. The arms train the same parameters in turn: in the
    order BA, AB the compiled arm has the first block and the last, and where the loss falls fast,
    the first one is far from both of eager's, and so is the middle of the two.

    What eager gives may itself change tenfold from round to round: a loss near zero. There an
    optimizer goes to and fro, and the loss is about the square of its distance from the minimum. At
    MAX_NOISE of the first loss only 7 % of the first distance is left, so differences up to
    MAX_NOISE are noise: a BERT with dropout that had memorised its two batches had losses of 0.007
    in eager and 0.015 compiled, after a first loss of about 6.
    """
    if not eager or not compiled:
        return
    sizes = list(map(abs, eager))
    margin = MAX_SIZE_DIFFERENCE * max(sizes) * (max(sizes) / max(min(sizes), 1e-30))
    if first_loss is not None and math.isfinite(first_loss):
        margin = max(margin, MAX_NOISE * abs(first_loss))
    low, high = min(eager) - margin, max(eager) + margin
    trains_in_two = len(compiled) == 2 and first_loss is not None
    by_block = trains_in_two and all(map(math.isfinite, compiled))
    judged = compiled if by_block else [median(compiled)]
    is_alike = any(low <= loss <= high for loss in judged)
    if all(map(math.isfinite, eager)) and not is_alike:
        raise MismatchError(
            f"while they were timed, the compiled steps gave {median(compiled):.3g}, and eager's "
            f"gave {median(eager):.3g} (the loss, or the root mean square of the output)"
        )


def freeze_objects() -> None:
    """Have later collections skip all objects made so far; else each takes as long as a block."""
    gc.collect()
    gc.freeze()


@contextmanager
def without_collector() -> Iterator[None]:
    """Collect no garbage meanwhile, but before."""
    gc.collect()
    with pause_garbage_collection():
        yield


def latency(steps_s: list[float]) -> Latency:
    """Percentiles of single steps, interpolated between neighbouring values."""
    hundredths = quantiles(steps_s if len(steps_s) > 1 else steps_s * 2, n=100, method="inclusive")
    return Latency(hundredths[49], hundredths[89], hundredths[98], len(steps_s))


def spread(values: Sequence[float]) -> float:
    """Return max / min - 1."""
    return max(values) / min(values) - 1
