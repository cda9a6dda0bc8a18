"""The accuracy check of the compiled step: what is taken when, and what becomes of a check that cannot be made.

The reference is the same step in fp64, of a copy that was taken before any step; where that does not fit or run, or
eager is nowhere near it, in fp32 at the highest precision. Nothing that goes wrong in here decides the trial's status:
the record then says why its accuracy is unknown. `rule` has the rule itself.

From the reference to the verdict all that is compared or restored lies on the device where that has room: logits of a
large vocabulary are gigabytes, and seven times over the bus they took longer than the steps. Else it is on the host.

`session` makes an `AccuracyCheck` right after building, before any step, and asks for the reference and the verdict
when the step is compiled and the device is its own; eager steps are eager then as well, by the stance.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from sweeper.core.record import Accuracy
from sweeper.worker.accuracy import rule
from sweeper.worker.accuracy.rule import TOLERANCE, Bounds
from sweeper.worker.accuracy.snapshot import Snapshot, perturb
from sweeper.worker.failures import MismatchError, Missing, is_out_of_memory, try_reading
from sweeper.worker.measurement.bench import Arm
from sweeper.worker.measurement.capture import HOST, Keep, Named, StepTensors, capture_step, run_reference
from sweeper.worker.setup import TrialSetup

FORMATS = (torch.float64, torch.float32)  # of the reference, the first that will do
ROOMY = 0.5  # of a device's memory: with so much of it free, what is compared may stay there
T = TypeVar("T")


class AccuracyCheck:
    """Keeps the state in which the model was built, the reference and what eager's distance from it allows."""

    def __init__(self, setup: TrialSetup) -> None:
        self._setup = setup
        self._snapshot = Snapshot(setup.built.module)
        self._pristine = try_reading(lambda: copy.deepcopy(setup.built.module).to("cpu"))
        self._reference: tuple[StepTensors, Bounds] | None = None
        self._unverified = "no reference was taken"
        self._looks_closer = False
        self._place: torch.device | None = None  # of what is compared and restored; the host, once that had to be

    def restore(self) -> None:
        """Set parameters, buffers, optimizers and random generators back to where the model was built."""
        self._snapshot.restore(self._setup.optimizers, self._setup.measure.seed)

    def take_reference(self) -> None:
        """Take the reference, and eager steps from the same state: two with different seeds, and some perturbed."""
        pristine = self._pristine
        if isinstance(pristine, Missing):
            self._unverified = f"no reference, the model cannot be copied: {pristine.reason}"
            return
        self._place = self._place or (self._setup.device if _fits_on_device(self._setup.device) else HOST)
        reasons, best = [], None
        for dtype in FORMATS:
            taken = try_reading(partial(self._run_or_retry_on_host, partial(self._compare_eager, pristine, dtype)))
            if isinstance(taken, Missing):
                reasons.append(f"in {str(dtype).removeprefix('torch.')}: {taken.reason.splitlines()[0]}")
            elif best is None or not taken[1].far_off:
                best = taken
            if best is not None and not best[1].far_off:
                break
            torch.cuda.empty_cache()
        self._reference = best or self._reference  # what an earlier look has found stays
        self._unverified = f"no reference, {'; '.join(reasons)}"
        self.restore()

    def judge(self) -> Accuracy:
        """Judge the compiled arm; parameters are afterwards as they were built, and the reference is gone.

        Before a step in reduced precision is called wrong, eager is asked again how far off it is, now with its numbers
        moved by what rounding does; in full precision that has been done.

        Raises MismatchError when the compiled step gives other tensors than the reference, and whatever it raises.
        """
        try:
            verdict = self._judge_once()
            if verdict.passed is False and self._tolerance() == TOLERANCE["reduced"]:
                self._looks_closer = True
                self.take_reference()
                verdict = self._judge_once()
            return verdict
        finally:
            self._reference = None
            self._place = HOST
            self._snapshot.move(HOST)

    def _judge_once(self) -> Accuracy:
        if self._reference is None:
            return Accuracy(None, None, self._unverified)
        kind = self._reference[1].kind
        try:
            named = self._run_or_retry_on_host(lambda: self._capture(self._setup.compiled, self._setup.measure.seed))
            verdict = try_reading(lambda: self._judge_step(named))
        finally:
            self.restore()
        if isinstance(verdict, Missing):
            return Accuracy(kind, None, f"the comparison failed: {verdict.reason}")
        return verdict

    def _judge_step(self, named: Named) -> Accuracy:
        assert self._reference is not None
        try:
            return rule.judge(named, *self._reference)
        except rule.DifferentTensorsError as error:
            raise MismatchError(f"the compiled step gives other tensors: {error}") from error
        except torch.OutOfMemoryError:
            pass  # what it had in memory is free only after this clause
        named = Keep().copy(named).items()
        self._clear_device()
        return rule.judge(named, *self._reference)

    def _run_or_retry_on_host(self, work: Callable[[], T]) -> T:
        """Do `work`; if the device runs out of memory, move the check's tensors to the host and do it again."""
        if self._place != HOST:
            try:
                return work()
            except Exception as error:  # what it had in memory is free only after this clause
                if not is_out_of_memory(error):
                    raise
            self._clear_device()
        return work()

    def _clear_device(self) -> None:
        self._place = HOST
        self._snapshot.move(HOST)
        if self._reference is not None:
            reference, bounds = self._reference
            self._reference = reference.move(HOST), bounds
        torch.cuda.empty_cache()

    def _compare_eager(self, pristine: torch.nn.Module, dtype: torch.dtype) -> tuple[StepTensors, Bounds]:
        """Take the reference in a number format, and set bounds by eager's distance from it."""
        setup, seed, place, tolerance = self._setup, self._setup.measure.seed, self._place or HOST, self._tolerance()
        keep = Keep(place, torch.float32 if tolerance == TOLERANCE["reduced"] else torch.float64)
        self._snapshot.move(place)
        self._snapshot.restore(setup.optimizers, seed)
        module = copy.deepcopy(pristine).to(setup.device)
        reference = run_reference(replace(setup.built, module=module), setup.trial, seed, dtype, keep)
        del module  # with it goes what the reference has on the device beside the tensors that are kept
        eager = StepTensors(Keep(place).copy(self._capture(setup.eager, seed)))
        steps = rule.PERTURBED_STEPS if self._looks_closer or tolerance == TOLERANCE["full"] else 0
        relative = rule.perturbation(setup.trial.precision, tolerance)
        perturbed = (self._capture(setup.eager, seed + index, relative) for index in range(steps))
        return reference, rule.set_bounds(reference, eager, self._capture(setup.eager, seed + 1), tolerance, perturbed)

    def _tolerance(self) -> float:
        return rule.choose_tolerance(self._setup.trial, self._setup.built.module)

    def _capture(self, arm: Arm, seed: int, perturbation: float = 0.0) -> Named:
        """Run a step of an arm from the state in which the model was built, moved by `perturbation`."""
        setup = self._setup
        self._snapshot.restore(setup.optimizers, seed)
        batch, module, run = setup.built.unseen, setup.built.module, setup.bench.run_on
        if perturbation:
            batch = perturb(module, batch, perturbation)
        return capture_step(lambda: run(arm, batch), setup.capture, module, setup.trial, setup.gradient_factor())


def _fits_on_device(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return free >= ROOMY * total
