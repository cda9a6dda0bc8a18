"""The check of the compiled step as it is made: what is taken when, and what becomes of a check that cannot be made.

The reference is the same step in fp64, of a copy that was taken before any step; where that does not fit or run, or
eager is nowhere near it, in fp32 at the highest precision. Nothing that goes wrong in here decides the trial's status:
the record then says why its accuracy is unknown. `accuracy` has the rule itself.

From the reference to the verdict all that is compared or restored lies on the device where that has room: logits of a
large vocabulary are gigabytes, and seven times over the bus they took longer than the steps. Else it is on the host.

Place in the flow: `session` makes a `Verification` right after building, before any step, and asks for the reference
and the verdict when the step is compiled and the device is its own; eager steps are eager then as well, by the stance.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar
from typing import cast as typed

import torch

from sweeper.core.record import Accuracy
from sweeper.worker.accuracy.rule import (
    PERTURBED_STEPS,
    TOLERANCE,
    Bounds,
    DifferentTensorsError,
    bounds,
    judge,
    perturbation,
    tolerance,
)
from sweeper.worker.accuracy.snapshot import Saved, perturb
from sweeper.worker.failures import MismatchError, Missing, beside, is_out_of_memory
from sweeper.worker.measurement.bench import Arm
from sweeper.worker.measurement.capture import HOST, Keep, Named, Observed, kept, observe, reference
from sweeper.worker.setup import TrialSetup

FORMATS = (torch.float64, torch.float32)  # of the reference, the first that will do
ROOMY = 0.5  # of a device's memory: with so much of it free, what is compared may stay there
T = TypeVar("T")


class Verification:
    """Keeps the state in which the model was built, the reference and what eager's distance from it allows."""

    def __init__(self, lab: TrialSetup) -> None:
        self._lab = lab
        self._saved = Saved(lab.built.module)
        self._pristine = beside(lambda: copy.deepcopy(lab.built.module).to("cpu"))
        self._reference: Observed | None = None
        self._bounds: Bounds | None = None
        self._unverified = "no reference was taken"
        self._looks_closer = False
        self._place: torch.device | None = None  # of what is compared and restored; the host, once that had to be

    def restore(self) -> None:
        """Set parameters, buffers, optimizers and random generators back to where the model was built."""
        self._restore(self._lab.measure.seed)

    def take_reference(self) -> None:
        """The reference, and eager steps from the same state: two with different seeds, and some perturbed."""
        if isinstance(self._pristine, Missing):
            self._unverified = f"no reference, the model cannot be copied: {self._pristine.reason}"
            return
        if self._place is None:
            self._place = self._lab.device if _is_roomy(self._lab.device) else HOST
        reasons, best = [], None
        for dtype in FORMATS:
            found = beside(functools.partial(self._with_room, functools.partial(self._against, dtype)))
            if isinstance(found, Missing):
                reasons.append(f"in {_name(dtype)}: {found.reason.splitlines()[0]}")
            elif best is None or not found[1].far_off:
                best = found
            if best is not None and not best[1].far_off:
                break
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        if best is not None:  # else what an earlier look has found stays
            self._reference, self._bounds = best
        self._unverified = f"no reference, {'; '.join(reasons)}"
        self.restore()

    def judge(self) -> Accuracy:
        """The verdict on the compiled arm; parameters are afterwards as they were built, and the reference is gone.

        Before a step in reduced precision is called wrong, eager is asked again how far off it is, now with its numbers
        moved by what rounding does; in full precision that has been done.

        Raises MismatchError when it gives other tensors than the reference, and whatever the compiled step raises.
        """
        try:
            return self._verdict_after_all()
        finally:
            self._reference = self._bounds = None
            self._place = HOST
            self._saved.bring(HOST)

    def _verdict_after_all(self) -> Accuracy:
        verdict = self._verdict()
        reduced = tolerance(self._lab.trial, self._lab.built.module) == TOLERANCE["reduced"]
        if verdict.passed is False and reduced:
            self._looks_closer = True
            self.take_reference()
            verdict = self._verdict()
        return verdict

    def _verdict(self) -> Accuracy:
        if self._reference is None or self._bounds is None:
            return Accuracy(None, None, self._unverified)
        try:
            found = self._with_room(lambda: self._see(self._lab.compiled, self._lab.measure.seed))
            verdict = beside(lambda: self._judged(found))
        finally:
            self.restore()
        if isinstance(verdict, Missing):
            return Accuracy(self._bounds.kind, None, f"the comparison failed: {verdict.reason}")
        return verdict

    def _judged(self, found: Named) -> Accuracy:
        allowed = typed(Bounds, self._bounds)
        try:
            return judge(found, typed(Observed, self._reference), allowed)
        except DifferentTensorsError as error:
            raise MismatchError(f"the compiled step gives other tensors: {error}") from error
        except torch.OutOfMemoryError:
            pass  # what it had in memory is free only after this clause
        found = kept(found).tensors.items()
        self._clear_device()
        return judge(found, typed(Observed, self._reference), allowed)

    def _with_room(self, work: Callable[[], T]) -> T:
        """Do it; where the device's memory does not suffice, once more with nothing of the check's lying there."""
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
        self._saved.bring(HOST)
        if self._reference is not None:
            self._reference = self._reference.on(HOST)
        torch.cuda.empty_cache()

    def _against(self, dtype: torch.dtype) -> tuple[Observed, Bounds]:
        """The reference in a number format, and what eager's distance from it allows."""
        lab, seed, place = self._lab, self._lab.measure.seed, self._place or HOST
        allowed = tolerance(lab.trial, lab.built.module)
        keep = Keep(place, torch.float32 if allowed == TOLERANCE["reduced"] else torch.float64)
        self._saved.bring(place)
        self._restore(seed)
        module = copy.deepcopy(typed(torch.nn.Module, self._pristine)).to(lab.device)
        taken = reference(replace(lab.built, module=module), lab.trial, seed, dtype, keep)
        del module  # with it goes what the reference has on the device beside the tensors that are kept
        first = kept(self._see(lab.eager, seed), place)
        steps = PERTURBED_STEPS if self._looks_closer or allowed == TOLERANCE["full"] else 0
        relative = perturbation(lab.trial.precision, allowed)
        perturbed = (self._see(lab.eager, seed + i, relative) for i in range(steps))
        return taken, bounds(taken, first, self._see(lab.eager, seed + 1), allowed, perturbed)

    def _see(self, arm: Arm, seed: int, perturbation: float = 0.0) -> Named:
        lab = self._lab
        self._restore(seed)
        batch = lab.built.unseen
        if perturbation:
            batch = perturb(lab.built.module, batch, perturbation)

        def run() -> object:
            return lab.bench.run_on(arm, batch)

        return observe(run, lab.tap, lab.built.module, lab.trial, lab.arms.left_in_gradients())

    def _restore(self, seed: int) -> None:
        self._saved.restore(self._lab.arms.optimizers, seed)


def _is_roomy(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return free >= ROOMY * total


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
