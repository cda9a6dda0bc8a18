"""The accuracy check of the compiled step: which cases are judged, and what becomes of a check that
cannot be made.

A case is a state of the model and a batch. The first is the model as built, on a batch that is not
timed; the others are the state in which no branch is dead, on every timed batch. Where that state
says nothing (eager is not finite, or nowhere near its reference), the way to it is halved; then the
timed batches are judged in the state as built. So they are where a program has its weights in it.

The reference is the same step in fp64; where that does not fit or run, or eager is nowhere near it,
in fp32 at the highest precision. Nothing that goes wrong in here decides the trial's status: the
record then says why its accuracy is unknown. `rule` has the rule itself. A step that draws random
numbers, or differs from itself, has no reference: `seeds` has its test.

From the reference to the verdict all that is compared or restored lies on the device: logits of a
large vocabulary are gigabytes, and seven times over the bus they took longer than the steps. Where
the device has no room, that case begins again when nobody else shares the device, and at last with
the copies on the host. The trial of a large model that has neighbours on the device even then runs
again alone instead.

An `AccuracyCheck` is made right after building, before any step, and judges when the step
is compiled; eager steps are eager then as well, by the stance. It is asked again when the timed
rounds have run code that was compiled after it.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple, TypeVar

import torch

from sweeper.core.record import Accuracy, PerArm
from sweeper.core.settings import Measure
from sweeper.core.system.pipes import log_error
from sweeper.core.trial import Trial
from sweeper.worker.compilation.compiler import holds_weights
from sweeper.worker.failures import (
    Failure,
    MismatchError,
    Missing,
    is_out_of_memory,
    try_reading,
)
from sweeper.worker.measurement.bench import Arm, ModelBench
from sweeper.worker.measurement.capture import (
    HOST,
    OUTPUT,
    Changes,
    Keep,
    Named,
    OutputCapture,
    StepTensors,
    capture_step,
    run_reference,
)
from sweeper.worker.models import Built
from sweeper.worker.models.batches import Batch, copy_batch, describe_tensors, name_format
from sweeper.worker.monitoring import torch_flags

from . import rule
from .generators import draws_random
from .rule import Bounds, TensorSums
from .seeds import DIRECTION_STEPS, ROUNDING, STEPS, WHOLE, SeedTest
from .states import BUILT, MOVED, States, perturb, seed_generators
from .verdict import CaseVerdict, severity

# the least that is needed: for a copy of the reference, and for what is taken over seeds
RELIABLE = {"full": torch.float64, "reduced": torch.float32}
LATER = "after the rounds"
MISSING = "missing"
# Of parameters, from which on a check on the host takes longer than to run the trial again alone.
# Beside an H200 that of 10 GB had not ended after seven minutes; on the device it takes 25 s.
LARGE_BYTES = 1e9

TOO_FULL = "the check does not fit beside other trials"

T = TypeVar("T")


class FullDeviceError(Failure, MemoryError):
    """The check does not fit into the device's memory."""

    status = "oom"


class Judged:
    """What the check judges: the steps of a model, or those of a module of a script."""

    trial: Trial
    measure: Measure
    device: torch.device
    built: Built
    bench: ModelBench
    eager: Arm
    compiled: Arm
    capture: OutputCapture
    optimizers: list[torch.optim.Optimizer | None]

    def compiled_optimizer(self, _arm: Arm) -> torch.optim.Optimizer | None:
        """The optimizer of an arm where it is part of what is compiled; else None."""
        return None

    def heeds_switches(self) -> bool:
        """Whether the compiled step calls torch's convolutions, which read torch's switches in each
        call.
        """
        return False

    def has_neighbours(self) -> bool:
        """Whether other trials have memory of the device, or may get some."""
        return False

    def make_room(self) -> bool:
        """Wait until no other trial shares the device; whether one may have done so before."""
        return False

    def gradient_factor(self) -> float:
        """Return the factor by which gradients are still scaled after a step."""
        return 1.0


Enter = Callable[[str], AbstractContextManager[None]]  # announces a phase
Judge = Callable[["Case"], CaseVerdict]


class Case(NamedTuple):
    """A state of the model and a batch."""

    state: str
    batch: Batch
    batch_name: str
    # whether a test over seeds takes them; the same compiled code needs them once
    slopes: bool = True

    @property
    def name(self) -> str:
        return f"{self.state}, {self.batch_name}"


class AccuracyCheck:
    """Keeps the state in which the model was built, and judges the compiled step against eager."""

    def __init__(self, judged: Judged) -> None:
        self._judged = judged
        self._states = States(judged.built.module, judged.measure.seed)
        self._stages = rule.name_stages(judged.built.module)
        self._enter: Enter
        # of what is compared and restored; the host, once that had to be
        self._place = judged.device
        # eager's step of the first case, compared with itself
        self._repeated: TensorSums | None = None
        # of an arm's last step: what its output holds beside numbers, and number formats
        self._texts: dict[str, dict[str, str]] = {}
        self._seed_offset = 0  # of the last step that had a seed of its own

    def restore(self) -> None:
        """Set parameters, buffers, optimizers and random generators back to where the model was
        built, and the bench's count of steps to zero.
        """
        self._states.restore(self._judged.optimizers, self._judged.measure.seed)
        self._judged.bench.num_steps = 0

    def judge(self, enter: Enter) -> Accuracy:
        """Judge the compiled arm in every case; parameters are afterwards as they were built.

        Raises MismatchError when the compiled step gives other tensors than the reference, and
        whatever it raises.
        """
        with self._states_in_place(enter) as random:
            if isinstance(random, Missing):
                return Accuracy(None, None, f"no eager step on the unseen batch: {random.reason}")
            found = self._judge_seeds() if random else self._judge_cases()
            if found.passed and (unseen := self._judged.capture.unseen):
                reason = f"parts of the output are not looked into: {', '.join(unseen)}"
                found = replace(found, passed=None, unverified=reason)
            return replace(found, batch=self._judged.built.unseen_origin, random_in_step=random)

    def judge_later(self, enter: Enter) -> Accuracy:
        """Judge the compiled arm in one case, from the state that it has now and keeps: a program
        may go another way after many steps. Raises as `judge` does.
        """
        kept, built = self._states, self._judged.built
        self._states = States(built.module, self._judged.measure.seed)
        case = Case(LATER, built.batches[0], "batch 1", slopes=False)
        try:
            with self._states_in_place(enter) as random:
                if random:
                    return self._run_or_run_again(self._judge_over_seeds, case).accuracy
                verdict = self._run_or_run_again(self._try, self._compare_arms, case)
                if isinstance(verdict, Missing) or not verdict.accuracy.passed:
                    verdict = self._run_or_run_again(self._judge_case, case)
                found = verdict.accuracy
                if found.nondeterministic:
                    return self._judge_noise(
                        found,
                        lambda: self._run_or_run_again(self._judge_over_seeds, case).accuracy,
                    )
                return found
        finally:
            self._states = kept

    def find_infinite(self, arm: Arm) -> str:
        """Say in which tensor a step of an arm has NaN or infinity, the nearest to the cause; empty
        where a step from the state as built has none.
        """
        for batch in self._judged.built.batches:
            for name, tensor in self._capture(arm, Case(BUILT, batch, "")):
                masks = name.startswith(OUTPUT)  # which may be infinite
                if bool((tensor.isnan() if masks else ~tensor.isfinite()).any()):
                    return f" in {name}"
        return ""

    @contextmanager
    def _states_in_place(self, enter: Enter) -> Iterator[bool | Missing]:
        """Have the states where they are needed; gives whether a step draws random numbers."""
        self._enter = enter
        if self._place != self._judged.device:  # it had no room, and would have none beside others
            self._judged.make_room()
        if self._place != HOST:
            torch.cuda.empty_cache()
        try:
            self._states.find_attributes()
            self._states.place(self._place)
            with convolve_in_fp32(self._judged):
                with enter("reference"):
                    random = self._run_or_run_again(self._try, self._draws_random)
                yield random
        finally:
            self.restore()
            self._states.place(HOST)

    def _draws_random(self) -> bool:
        """Whether an eager step draws random numbers, and depends on them; some draw one and throw
        it away.

        What a dead branch draws is seen in the second state alone.
        """
        judged, batch = self._judged, copy_batch(self._judged.built.unseen)
        self.restore()
        own = self._states.attributes.generators
        if not draws_random(lambda: judged.bench.run_on(judged.eager, batch), judged.device, own):
            return False
        self._states.move(1.0)
        for state in (BUILT, MOVED):
            case = Case(state, judged.built.unseen, "unseen batch")
            kept = self._keep_eager(case)
            try:
                comparison = rule.compare(self._capture(judged.eager, case, 1), kept)
            except rule.DifferentTensorsError:  # a layer that a seed leaves out has no gradients
                return True
            if rule.differs(comparison, self._tolerance):
                return True
        return False

    def _judge_cases(self) -> Accuracy:
        built = self._judged.built
        name = "batch 1" if built.unseen_origin == "timed" else "unseen batch"
        case = Case(BUILT, built.unseen, name)
        verdict = self._run_or_run_again(self._judge_case, case)
        first = verdict.accuracy
        if first.nondeterministic:
            return self._judge_noise(
                first, lambda: self._judge_timed_batches(self._judge_over_seeds, [])
            )
        if first.passed is False:
            return combine([verdict])
        return self._judge_timed_batches(self._judge_case, [verdict])

    def _judge_noise(self, first: Accuracy, judge_over_seeds: Callable[[], Accuracy]) -> Accuracy:
        """Judge a step that differs from itself, as `first` says, as if it had drawn random
        numbers; where modules have hooks, which may keep a state, it stays unverified.
        """
        if hooked := list_hooked(self._judged.built.module):
            reason = f"{first.unverified}; modules with hooks: {', '.join(hooked)}"
            return replace(first, unverified=reason)
        return replace(judge_over_seeds(), nondeterministic=True)

    def _judge_seeds(self) -> Accuracy:
        """Judge a step that draws random numbers on every timed batch, by a test over seeds."""
        if hooked := list_hooked(self._judged.built.module):
            reason = f"a step draws random numbers, and modules have hooks: {', '.join(hooked)}"
            return Accuracy(None, None, reason)
        return self._judge_timed_batches(self._judge_over_seeds, [])

    def _judge_over_seeds(self, case: Case) -> CaseVerdict:
        """Compare eager and compiled steps over seeds.

        Before they are called different they are compared over other seeds, and beside steps in a
        reliable format.
        """
        verdict = self._test_seeds(case)
        if verdict.accuracy.passed is False:
            verdict = self._test_seeds(case, closer=True)
        return _name_case(verdict, case)

    def _test_seeds(self, case: Case, closer: bool = False) -> CaseVerdict:
        """Make the test over seeds; one that cannot be made leaves the case unverified."""
        with self._enter("reference"):
            test = self._try(self._take_eager_seeds, case)
        if isinstance(test, Missing):
            return CaseVerdict(Accuracy(None, None, f"no test over seeds: {test.reason}"))
        with self._enter("checking"), _refusing_other_tensors():
            self._take_seeds(self._judged.compiled, case, test)
            self._require_same_texts(case)
            found = test.verdict()
            if closer and found.passed is False:
                taken = self._try(self._take_reliable_seeds, case, test)
                if isinstance(taken, Missing):
                    reason = (
                        "steps differ, and no step in a longer number format shows which are "
                        f"right: {taken.reason}"
                    )
                    return CaseVerdict(Accuracy(None, None, reason))
                found = test.verdict()
        sizes = test.direction.sizes.values()
        accuracy = Accuracy(
            reference=None,
            passed=found.passed,
            unverified=found.unverified,
            tensors=len(sizes),
            unjudged=found.unjudged,
            elements=2 * STEPS * sum(size.elements for size in sizes),
            randomness="seeds" if sizes else None,
        )
        worst = found.worst
        if worst is None:
            return CaseVerdict(accuracy)
        accuracy = replace(accuracy, worst=worst.name)
        if worst.statistic == WHOLE:
            accuracy = replace(accuracy, unequal=worst.compiled)
        elif math.isfinite(worst.compiled):
            accuracy = replace(accuracy, statistic=PerArm(worst.eager, worst.compiled))
        return CaseVerdict(accuracy, worst.excess)

    def _take_eager_seeds(self, case: Case) -> SeedTest:
        """Take all eager steps of a test over seeds."""
        eager, tolerance = self._judged.eager, self._tolerance
        steps = (self._capture(eager, case, self._next_seed()) for _ in range(DIRECTION_STEPS))
        test = SeedTest(tolerance, steps, self._place)
        relative = ROUNDING[tolerance] * self._perturbation
        test.add_rounding(self._capture(eager, case, self._seed_offset, relative))
        self._take_seeds(eager, case, test)
        return test

    def _take_reliable_seeds(self, case: Case, test: SeedTest) -> None:
        """Take eager steps in a format that rounds far less than eager does."""
        dtype, keep = RELIABLE[self._tolerance], Keep(self._place)
        for _ in range(STEPS):
            step = self._run_reference(case, dtype, keep, self._next_seed())
            test.add("reliable", step.tensors.items())

    def _take_seeds(self, arm: Arm, case: Case, test: SeedTest) -> None:
        """Take steps of an arm, each with another seed, and for slopes the losses with displaced
        parameters.
        """
        judged = self._judged
        for _ in range(STEPS):
            seed = self._next_seed()
            test.add(arm.name, self._capture(arm, case, seed))
            if judged.trial.workload != "train" or not case.slopes:
                continue
            self._restore(case, seed)
            if test.displace(judged.built.module, judged.gradient_factor()):
                loss = judged.bench.run_on(arm, copy_batch(case.batch))
                assert isinstance(loss, torch.Tensor)
                test.add_displaced_loss(loss)

    def _next_seed(self) -> int:
        self._seed_offset += 1
        return self._seed_offset

    def _judge_timed_batches(self, judge: Judge, before: list[CaseVerdict]) -> Accuracy:
        """Judge every timed batch in the second state, or as built where that one says nothing;
        the cases before count too.
        """
        reason: str | None = "the program has the weights in it as constants"
        if not holds_weights(self._judged.trial):
            # of the way to the second state
            for name, share in {"full": 1.0, "half": 0.5}.items():
                self._states.move(share)
                verdicts = before + self._judge_batches(MOVED, judge)
                reason = verdicts[-1].accuracy.unverified
                if reason is None:
                    return replace(combine(verdicts), moved=name)
        unknown = f"where no branch is dead: {reason}" if self._states.is_dead else None
        verdicts = before + self._judge_batches(BUILT, judge)
        return replace(combine(verdicts, unknown), moved=str(reason))

    def _judge_batches(self, state: str, judge: Judge) -> list[CaseVerdict]:
        """Judge the timed batches in a state, until one does not pass."""
        verdicts = []
        seen: list[dict[str, str]] = []
        for index, batch in enumerate(self._judged.built.batches):
            shapes = describe_tensors(batch)
            case = Case(state, batch, f"batch {index + 1}", slopes=shapes not in seen)
            verdicts.append(self._run_or_run_again(judge, case))
            seen.append(shapes)
            if not verdicts[-1].accuracy.passed:
                break
        return verdicts

    def _judge_case(self, case: Case) -> CaseVerdict:
        """Judge the compiled step in one case.

        Before it is called wrong, eager is asked again how far off it is, with its numbers moved by
        what rounding does; in reduced precision once more, for directions alone. A compiled step
        that is still narrowly wrong has to be wrong with its own numbers moved, too.
        """
        with self._enter("reference"):
            bounds, reasons = self._take_reference(case)
        if bounds is None:
            reason = f"no reference, {'; '.join(reasons)}"
            return _name_case(CaseVerdict(Accuracy(None, None, reason)), case)
        with self._enter("checking"):
            verdict = self._judge_step(case, bounds)
            looks = [self._look_closer]
            if self._tolerance == "reduced":
                looks.append(self._look_at_directions)
            for look in looks:
                if verdict.accuracy.passed is not False:
                    break
                closer = self._try(look, case, bounds)
                if isinstance(closer, Missing):
                    break
                bounds = closer
                verdict = self._judge_step(case, bounds)
            if verdict.accuracy.passed is False and verdict.share <= rule.NARROWLY:
                verdict = self._find_acquittal(case, bounds) or verdict
        return _name_case(verdict, case)

    def _take_reference(self, case: Case) -> tuple[Bounds | None, list[str]]:
        """Take the reference and set bounds by eager; give the reasons where there is none that
        eager is near.
        """
        reasons = []
        found = []
        for dtype in (torch.float64, torch.float32):  # the first that will do
            taken = self._try(self._compare_eager, case, dtype)
            if isinstance(taken, Missing):
                reasons.append(f"in {name_format(dtype)}: {taken.reason.splitlines()[0]}")
            else:
                found.append(taken)
                if not taken.far_off:
                    break
            torch.cuda.empty_cache()
        return min(found, key=attrgetter("far_off"), default=None), reasons

    def _compare_eager(self, case: Case, dtype: torch.dtype) -> Bounds:
        """Take the reference in a number format, and set bounds by eager's distance from it."""
        tolerance = self._tolerance
        keep = Keep(self._place, RELIABLE[tolerance])
        reference = self._run_reference(case, dtype, keep)
        named = dict(self._capture(self._judged.eager, case))
        reference = rule.take_whole(reference, named, keep)
        first = rule.compare(named.items(), reference, self._stages)
        if self._repeated is None:
            kept = StepTensors(Keep(self._place).copy(named.items()))
            self._repeated = rule.compare(self._capture(self._judged.eager, case), kept)
        return rule.set_bounds(reference, (first,), self._repeated, tolerance)

    def _run_reference(
        self, case: Case, dtype: torch.dtype, keep: Keep, seed_offset: int = 0
    ) -> StepTensors:
        judged, attributes = self._judged, self._states.attributes
        self._restore(case, seed_offset)
        return run_reference(
            judged.built, judged.capture, attributes, case.batch, judged.trial, dtype, keep
        )

    def _restore(self, case: Case, seed_offset: int) -> None:
        judged = self._judged
        self._states.restore(judged.optimizers, judged.measure.seed + seed_offset, case.state)

    def _compare_arms(self, case: Case) -> CaseVerdict:
        """Judge the compiled step by eager alone, which is enough where they are as good as
        equal.
        """
        kept = self._keep_eager(case)
        same = rule.compare(kept.tensors.items(), kept, self._stages)
        return self._judge_step(case, rule.set_bounds(kept, (same,), None, self._tolerance))

    def _keep_eager(self, case: Case) -> StepTensors:
        return StepTensors(Keep(self._place).copy(self._capture(self._judged.eager, case)))

    def _look_closer(self, case: Case, bounds: Bounds) -> Bounds:
        """Set the bounds anew, by more eager steps."""
        return self._add_moved(case, bounds, rule.PERTURBED_STEPS)

    def _look_at_directions(self, case: Case, bounds: Bounds) -> Bounds:
        """Widen the spans of projections by more eager steps."""
        wider = self._add_moved(case, bounds, rule.DIRECTION_STEPS)
        return replace(bounds, projections={**bounds.projections, **wider.projections})

    def _add_moved(self, case: Case, bounds: Bounds, number: int) -> Bounds:
        """Set the bounds by all eager steps so far and `number` more, whose numbers are moved by
        what rounding does.
        """
        eager, reference, relative = self._judged.eager, bounds.reference, self._perturbation
        comparisons = [*bounds.comparisons]
        for index in range(len(comparisons), len(comparisons) + number):
            step = self._capture(eager, case, index, relative)
            compared = dict(rule.compare(step, reference, self._stages))
            if any(sums.whole for sums in compared.values()):
                step = self._capture(eager, case, index, rule.WIDER * relative)
                wider = rule.compare(step, reference)
                compared |= {name: sums for name, sums in wider.items() if sums.whole}
            comparisons.append(compared)
        return rule.set_bounds(reference, comparisons, None, self._tolerance)

    def _find_acquittal(self, case: Case, bounds: Bounds) -> CaseVerdict | None:
        """Find a compiled step that is not wrong, of those whose parameters and inputs are moved as
        eager's were in a closer look; None where each is wrong, or cannot be judged.
        """
        for index in range(1, rule.PERTURBED_STEPS + 1):
            found = self._try(self._judge_step, case, bounds, index)
            if isinstance(found, Missing) or not found.accuracy.worst:  # it could not be judged
                continue
            if found.accuracy.passed is not False:
                return found
        return None

    def _judge_step(self, case: Case, bounds: Bounds, moved: int = 0) -> CaseVerdict:
        """Judge a compiled step as it is, or the `moved`th with its parameters and inputs moved by
        what rounding does.
        """
        relative = self._perturbation if moved else 0.0
        named = self._capture(self._judged.compiled, case, moved, relative)
        self._require_same_texts(case)
        verdict = self._try(self._judge_tensors, named, bounds)
        if isinstance(verdict, Missing):
            kind = bounds.reference.kind
            return CaseVerdict(Accuracy(kind, None, f"the comparison failed: {verdict.reason}"))
        return verdict

    def _require_same_texts(self, case: Case) -> None:
        """Raise MismatchError where the compiled output has other parts or number formats than
        eager's has, each time that it runs.
        """
        compiled, eager = self._texts[self._judged.compiled.name], self._texts["eager"]
        if compiled == eager:
            return
        self._capture(self._judged.eager, case)
        again = self._texts["eager"]
        for name in {**eager, **compiled}:
            here, there = compiled.get(name, MISSING), eager.get(name, MISSING)
            if here != there == again.get(name, MISSING):
                raise MismatchError(
                    f"{name} is {here} in the compiled step, and {there} in eager ({case.name})"
                )

    def _judge_tensors(self, named: Named, bounds: Bounds) -> CaseVerdict:
        try:
            return self._compare_with_reference(named, bounds)
        except torch.OutOfMemoryError:
            if self._place != HOST:
                raise
        # what it had in memory is free only now
        copies = Keep().copy(named)
        torch.cuda.empty_cache()
        return self._compare_with_reference(copies.items(), bounds)

    def _compare_with_reference(self, named: Named, bounds: Bounds) -> CaseVerdict:
        with _refusing_other_tensors():
            return rule.judge(rule.compare(named, bounds.reference, self._stages), bounds)

    def _try(self, work: Callable[..., T], *arguments: object) -> T | Missing:
        """Do `work`; what goes wrong in it becomes a reason. Raises FullDeviceError where it can be
        done again, on the host or without other trials.
        """

        def run() -> T:
            try:
                return work(*arguments)
            except Exception as error:
                can_have_more = self._place != HOST or self._judged.has_neighbours()
                if can_have_more and is_out_of_memory(error):
                    raise FullDeviceError(TOO_FULL) from error
                raise

        return try_reading(run)

    def _run_or_run_again(self, work: Callable[..., T], *arguments: object) -> T:
        """Do `work`; if the device runs out of memory, do all of it again while no other trial
        shares it, and at last with the check's tensors on the host.

        Raises FullDeviceError for a large model where other trials have memory of the device.
        """
        if self._place == HOST:
            return work(*arguments)
        try:
            return work(*arguments)
        except Exception as error:  # what it had in memory is free only after this clause
            if not is_out_of_memory(error):
                raise
            log_error(error)
        self._states.place(HOST)  # others need the memory while this trial waits
        if not self._judged.make_room():
            if self._judged.has_neighbours() and self._is_large:
                raise FullDeviceError(TOO_FULL)
            self._place = HOST
        torch.cuda.empty_cache()
        self._states.place(self._place)
        return self._run_or_run_again(work, *arguments)

    @property
    def _is_large(self) -> bool:
        parameters = self._judged.built.module.parameters()
        return sum(parameter.nbytes for parameter in parameters) >= LARGE_BYTES

    @property
    def _tolerance(self) -> str:
        return rule.choose_tolerance(self._judged.trial, self._judged.built.module)

    @property
    def _perturbation(self) -> float:
        """By how much rounding moves numbers, relative to them."""
        return rule.perturbation(self._judged.trial.precision, self._tolerance)

    def _capture(
        self, arm: Arm, case: Case, seed_offset: int = 0, perturbation: float = 0.0
    ) -> Named:
        """Run a step of an arm from the state of a case, moved by `perturbation`, on a copy of its
        batch.
        """
        judged = self._judged
        self._restore(case, seed_offset)
        batch, module = copy_batch(case.batch), judged.built.module
        if perturbation:
            perturb(module, batch, perturbation)
            # what the step draws is what it draws without
            seed_generators(judged.measure.seed + seed_offset)
        changes = Changes(module, self._states.attributes, batch, judged.compiled_optimizer(arm))
        run, factor = partial(judged.bench.run_on, arm, batch), judged.gradient_factor()
        named = [*capture_step(run, judged.capture, changes, judged.trial, factor)]
        self._texts[arm.name] = judged.capture.texts
        return named


@contextmanager
def convolve_in_fp32(judged: Judged) -> Iterator[None]:
    """Have cuDNN compute in fp32, in both arms, where TF32 is torch's own choice and the compiled
    step follows the switch; what is compiled stays as it is.
    """
    cudnn = torch.backends.cudnn
    chosen = judged.trial.precision.tf32 is not None or cudnn.fp32_precision == "tf32"
    if chosen or not (torch_flags.read()["cudnn_allow_tf32"] and judged.heeds_switches()):
        yield
        return
    cudnn.allow_tf32 = False
    try:
        yield
    finally:
        cudnn.allow_tf32 = True


@contextmanager
def _refusing_other_tensors() -> Iterator[None]:
    try:
        yield
    except rule.DifferentTensorsError as error:
        raise MismatchError(f"the compiled step gives other tensors: {error}") from error


def list_hooked(module: torch.nn.Module) -> list[str]:
    """Modules with hooks of their own, which may keep state or draw random numbers."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [
        name or "the model"
        for name, child in module.named_modules()
        if any(getattr(child, kind) for kind in kinds)
    ]


def _name_case(verdict: CaseVerdict, case: Case) -> CaseVerdict:
    return verdict._replace(accuracy=replace(verdict.accuracy, case=case.name, cases=(case.name,)))


def combine(verdicts: list[CaseVerdict], unknown: str | None = None) -> Accuracy:
    """The accuracy of a step by its verdicts in all cases; `unknown` is what else would have to be
    known.
    """
    worst = max(verdicts, key=lambda one: severity(one.accuracy.passed, one.share))
    passed, unverified = worst.accuracy.passed, None
    if passed is not False:
        reasons = (one.accuracy.unverified for one in verdicts if one.accuracy.passed is None)
        unverified = next(reasons, unknown)
        passed = None if unverified else True
    return replace(
        worst.accuracy,
        passed=passed,
        unverified=unverified,
        nondeterministic=any(verdict.accuracy.nondeterministic for verdict in verdicts),
        elements=sum(verdict.accuracy.elements or 0 for verdict in verdicts),
        cases=tuple(name for verdict in verdicts for name in verdict.accuracy.cases),
    )
