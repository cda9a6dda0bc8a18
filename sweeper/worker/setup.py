"""The laboratory of one process: the model, its two arms, the bench that runs them and what watches them.

Place in the flow: `session` makes a `TrialSetup` in the phase `building` and leads it through the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from sweeper.core.protocol import Job
from sweeper.core.serialization import Json
from sweeper.core.trial import Trial
from sweeper.worker.compilation.compiler import compiled, uses_cuda_graphs
from sweeper.worker.compilation.counters import Watch
from sweeper.worker.measurement import memory
from sweeper.worker.measurement.bench import Arm, Bench
from sweeper.worker.measurement.capture import Capture
from sweeper.worker.measurement.step import (
    Numerics,
    inference_step,
    is_sound,
    make_optimizer,
    make_scaler,
    optimizer_settings,
    resolve,
    training_step,
)
from sweeper.worker.models import Built, attention_of, build, memory_format
from sweeper.worker.monitoring.round_monitor import RoundMonitor


class TrialSetup:
    """The things of a process that its phases share: the model, both arms, the bench and what watches them."""

    def __init__(self, job: Job, device: torch.device, lookout: RoundMonitor, clock: Callable[[], float]) -> None:
        self.trial, self.measure, self.device, self.lookout = job.trial, job.measure, device, lookout
        self.meter = memory.Meter(device, lookout.gpu.own_bytes)
        self.numerics = resolve(self.trial, device)
        lookout.settle()
        built = build(self.trial, self.measure.seed, device)
        self._set_by_model = lookout.moved()
        lookout.settle()  # what the model's own code sets counts in both arms
        self.tap = Capture(built.loss)
        whole_step = self.trial.compile.scope == "step"  # there the loss is compiled with the rest, and left alone
        self.built = built if whole_step else replace(built, loss=self.tap)
        self.bench = Bench(built.batches, device, clock, built.num_sizes)
        self.arms = Arms(self.trial, self.built, self.numerics, device)
        lookout.gradient_scales = self.arms.gradient_scales
        self.eager = self.arms.eager()
        self.compiled: Arm

    def compile(self, watch: Watch) -> Arm:
        """Make the compiled arm; the compiler itself runs in its first step."""
        self.compiled = self.arms.compiled(watch)
        return self.compiled

    def settings(self) -> dict[str, Json]:
        """What is equal in both arms, as it came out."""
        return {
            **self.lookout.switches,
            "set_by_model": ", ".join(f"{name}={value}" for name, value in self._set_by_model.items()) or None,
            "autocast": str(self.numerics.autocast).removeprefix("torch.") if self.numerics.autocast else None,
            "grad_scaler": self.numerics.scaler,
            "dropout": self.trial.model.dropout,
            "memory_format": memory_format(self.built.module),
            "attention": attention_of(self.built.module),
            **self.arms.settings,
        }

    def memory_of(self, arm: Arm) -> memory.Reading:
        return self.meter.of_arm(lambda steps: self.bench.run(arm, self.bench.whole(steps)))

    def is_sound(self, arm: Arm) -> bool:
        return is_sound(self.bench.run(arm, 1), self.trial.workload)

    def require_sound(self, arm: Arm, error: Exception) -> None:
        if not self.is_sound(arm):
            raise error


class Arms:
    """Makes eager and compiled. Under scope=model both share one optimizer; under scope=step each has its own."""

    def __init__(self, trial: Trial, built: Built, numerics: Numerics, device: torch.device) -> None:
        self._trial, self._built, self._numerics, self._device = trial, built, numerics, device
        self._trains = trial.workload == "train"
        self._optimizer = make_optimizer(trial, built.module, numerics.scaler) if self._trains else None
        self._scaler = make_scaler(numerics, device)
        self.optimizers = [self._optimizer]
        self.scalers = [self._scaler]
        self.settings = optimizer_settings(trial, self._optimizer)

    def eager(self) -> Arm:
        module = self._built.module
        if not self._trains:
            return Arm("eager", inference_step(module, self._context), eager=True)
        step = training_step(self._built, module, self._optimizer, self._scaler, self._context)
        return Arm("eager", step, eager=True)

    def compiled(self, watch: Watch) -> Arm:
        """The arm that is compared with eager; with mode=eager it is eager as well. Nothing is compiled yet."""
        trial, built = self._trial, self._built
        if not self._trains:
            step: Callable[..., object] = inference_step(compiled(built.module, trial, watch), self._context)
        elif trial.compile.scope == "step":
            self.optimizers.append(make_optimizer(trial, built.module, self._numerics.scaler))
            self.scalers.append(make_scaler(self._numerics, self._device))
            own = training_step(built, built.module, self.optimizers[-1], self.scalers[-1], self._context)
            step = compiled(own, trial, watch)
        else:
            module = compiled(built.module, trial, watch)
            step = training_step(built, module, self._optimizer, self._scaler, self._context)
        return Arm("compiled", step, trial.mode == "eager", uses_cuda_graphs(trial, self._device))

    def forget_eager(self) -> None:
        """Free what only the eager arm keeps, so that it does not count as the compiled one's memory."""
        if self._trial.compile.scope == "step" and self._optimizer is not None:
            self._optimizer.state.clear()

    def gradient_scales(self) -> tuple[float, ...]:
        return tuple(scaler.get_scale() for scaler in self.scalers if scaler is not None)

    def left_in_gradients(self) -> float:
        """The factor that gradients still carry after a step: the optimizer's part is to take it out."""
        scales = self.gradient_scales()
        return scales[-1] if scales and self._optimizer is None else 1.0

    def _context(self) -> Any:
        return self._numerics.context(self._device)
