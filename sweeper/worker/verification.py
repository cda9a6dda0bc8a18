"""The check of the compiled step as it is made: what is taken when, and what becomes of a check that cannot be made.

The reference is the same step in fp64, of a copy that was taken before any step; where that does not fit or run, or
eager is nowhere near it, in fp32 at the highest precision. Nothing that goes wrong in here decides the trial's status:
the record then says why its accuracy is unknown. `accuracy` has the rule itself.

Place in the flow: `session` makes a `Verification` right after building, before any step, and asks for the reference
and the verdict when the step is compiled and the device is its own; eager steps are eager then as well, by the stance.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from typing import cast as typed

import torch

from sweeper.record import Accuracy
from sweeper.worker.accuracy import (
    PERTURBED_STEPS,
    TOLERANCE,
    Bounds,
    DifferentTensorsError,
    bounds,
    judge,
    perturbation,
    tolerance,
)
from sweeper.worker.failures import MismatchError, Missing, beside
from sweeper.worker.lab import Lab
from sweeper.worker.observation import Named, Observed, observe, on_host, reference
from sweeper.worker.state import Saved, perturb
from sweeper.worker.timing import Arm

FORMATS = (torch.float64, torch.float32)  # of the reference, the first that will do


class Verification:
    """Keeps the state in which the model was built, the reference and what eager's distance from it allows."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._saved = Saved(lab.built.module)
        self._pristine = beside(lambda: copy.deepcopy(lab.built.module).to("cpu"))
        self._reference: Observed | None = None
        self._bounds: Bounds | None = None
        self._unverified = "no reference was taken"
        self._looks_closer = False

    def restore(self) -> None:
        """Set parameters, buffers, optimizers and random generators back to where the model was built."""
        self._restore(self._lab.measure.seed)

    def take_reference(self) -> None:
        """The reference, and eager steps from the same state: two with different seeds, and some perturbed."""
        if isinstance(self._pristine, Missing):
            self._unverified = f"no reference, the model cannot be copied: {self._pristine.reason}"
            return
        reasons, best = [], None
        for dtype in FORMATS:
            found = beside(functools.partial(self._against, dtype))
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
        """The verdict on the compiled arm; parameters are afterwards as they were built.

        Before a step in reduced precision is called wrong, eager is asked again how far off it is, now with its numbers
        moved by what rounding does; in full precision that has been done.

        Raises MismatchError when it gives other tensors than the reference, and whatever the compiled step raises.
        """
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
            found = self._see(self._lab.compiled, self._lab.measure.seed)
            verdict = beside(lambda: self._judged(found))
        finally:
            self.restore()
        if isinstance(verdict, Missing):
            return Accuracy(self._bounds.kind, None, f"the comparison failed: {verdict.reason}")
        return verdict

    def _judged(self, found: Named) -> Accuracy:
        reference, allowed = typed(Observed, self._reference), typed(Bounds, self._bounds)
        try:
            return judge(found, reference, allowed)
        except DifferentTensorsError as error:
            raise MismatchError(f"the compiled step gives other tensors: {error}") from error
        except torch.OutOfMemoryError:
            kept = on_host(found)
            torch.cuda.empty_cache()
            return judge(kept.tensors.items(), reference, allowed)

    def _against(self, dtype: torch.dtype) -> tuple[Observed, Bounds]:
        """The reference in a number format, and what eager's distance from it allows."""
        lab, seed = self._lab, self._lab.measure.seed
        allowed = tolerance(lab.trial, lab.built.module)
        keep = torch.float32 if allowed == TOLERANCE["reduced"] else torch.float64
        self._restore(seed)
        module = copy.deepcopy(typed(torch.nn.Module, self._pristine)).to(lab.device)
        taken = reference(replace(lab.built, module=module), lab.trial, seed, dtype, keep)
        first = on_host(self._see(lab.eager, seed))
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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
