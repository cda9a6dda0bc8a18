"""Follows one module of a script through its training, and runs each of its calls again in every arm.

The script runs with the compiled module. After each of its steps the calls of that step are repeated, from the weights,
buffers, random numbers and inputs that they had, with the gradients that the script's loss sent back. What the script
goes on with is as the step has left it.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from sweeper.core.record import Trajectory
from sweeper.core.trial import Precision, Trial
from sweeper.worker.accuracy import rule
from sweeper.worker.accuracy.states import perturb
from sweeper.worker.accuracy.trajectory import COMPILED, EAGER, INPUT, LONGER, MOVED, Course
from sweeper.worker.failures import Missing, try_reading
from sweeper.worker.measurement.capture import CHANGE, GRADIENT, OUTPUT
from sweeper.worker.models.batches import Batch, copy_batch, find_tensors
from sweeper.worker.scripts.arms import Function, call_eager

MAX_CALLS = 4  # of a module in a step that are repeated
MAX_DISTANCE = 0.1  # of outputs, beyond which compiled code is taken to draw other random numbers


@dataclass(frozen=True)
class Call:
    """A call of the module in a step, with all that it depended on."""

    batch: Batch
    parameters: list[torch.Tensor]
    buffers: list[torch.Tensor]
    autocast: torch.dtype | None
    modes: list[bool]  # of each part, whether it trains
    generators: Generators
    gradients: dict[int, torch.Tensor] = field(default_factory=dict)  # of outputs, by their place


@dataclass(frozen=True)
class Generators:
    """The states of the random generators that a module may draw from without naming one."""

    host: torch.Tensor
    device: torch.Tensor | None
    python: Any
    numpy: Any

    @staticmethod
    def read(device: torch.device) -> Generators:
        on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        numpy = sys.modules.get("numpy.random")
        return Generators(torch.get_rng_state(), on_device, random.getstate(), numpy.get_state() if numpy else None)

    def write(self, device: torch.device) -> None:
        torch.set_rng_state(self.host)
        if self.device is not None:
            torch.cuda.set_rng_state(self.device, device)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy.random"].set_state(self.numpy)

    def equal(self, other: Generators) -> bool:
        pairs = ((self.host, other.host), (self.device, other.device))
        of_torch = all(a is None or b is None or torch.equal(a, b) for a, b in pairs)
        return of_torch and self.python == other.python and repr(self.numpy) == repr(other.numpy)


class Follower:
    """Stands in a module's place; `compare` is to be called after each step."""

    def __init__(self, module: torch.nn.Module, compiled: Function, trial: Trial, device: torch.device) -> None:
        self._module, self._compiled, self._trial, self._device = module, compiled, trial, device
        self._parameters = dict(module.named_parameters())
        self._buffers = dict(module.named_buffers())
        self._calls: list[Call] = []
        self._versions: list[int] = []  # of the parameters when they were copied last
        self._copies: list[torch.Tensor] = []
        self.course: Course | None = None  # once there was a call
        self.unknown: str | None = None  # why the arms cannot be compared

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the compiled module, and note the call where its gradients will be asked for."""
        if not torch.is_grad_enabled() or len(self._calls) >= MAX_CALLS or self.unknown:
            return self._compiled(*arguments, **options)
        call = self._note(Batch(arguments, options))
        output = self._compiled(*arguments, **options)
        for place, tensor in enumerate(find_tensors(output)):
            if tensor.requires_grad:
                tensor.register_hook(_make_hook(call.gradients, place))  # type: ignore[no-untyped-call]
        self._calls.append(call)
        return output

    def _note(self, batch: Batch) -> Call:
        versions = [tensor._version for tensor in self._parameters.values()]
        if versions != self._versions:
            self._copies, self._versions = _copy(self._parameters.values()), versions
        kind = self._device.type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        buffers, generators = _copy(self._buffers.values()), Generators.read(self._device)
        return Call(copy_batch(batch), self._copies, buffers, autocast, self._read_modes(), generators)

    def compare(self) -> None:
        """Run the calls of the step that has ended in every arm, and compare what they give."""
        calls, self._calls, self._versions = self._calls, [], []
        with self._kept():
            for call in calls:
                if call.gradients and not self.unknown:
                    failed = try_reading(partial(self._compare, call))
                    self.unknown = failed.reason if isinstance(failed, Missing) else self.unknown

    def _compare(self, call: Call) -> None:
        precision = self._find_precision(call)
        tolerance = rule.choose_tolerance(
            replace(self._trial, precision=precision, device=self._device.type), self._module
        )
        self.course = self.course or Course(tolerance)
        eager = self._run(call, self._call_eager)
        after = Generators.read(self._device)
        arms = {EAGER: eager, COMPILED: self._run(call, self._compiled, is_compiled=True)}
        if not after.equal(call.generators) and not self._draws_alike(after, arms):
            self.unknown = "compiled code draws other random numbers than eager"
            return
        relative = rule.perturbation(precision, tolerance)
        arms |= {name: self._run(call, self._call_eager, relative=relative) for name in MOVED}
        if call.autocast is not None:
            arms[LONGER] = self._run(call, self._call_eager, in_full=True)
        self.course.add(arms)

    def _find_precision(self, call: Call) -> Precision:
        formats = (str(item.dtype).removeprefix("torch.") for item in self._parameters.values())
        parameters = next((name for name in formats if name in rule.BITS), "float32")
        return Precision(parameters, str(call.autocast).removeprefix("torch.") if call.autocast else None)

    def _draws_alike(self, after: Generators, arms: dict[str, dict[str, torch.Tensor]]) -> bool:
        """Whether compiled code draws what eager draws: generators end alike, and the first outputs are alike."""
        assert self.course is not None
        if self.course.num_samples:
            return True
        pairs = [(arms[EAGER][name], arms[COMPILED][name]) for name in arms[EAGER] if name.startswith(OUTPUT)]
        near = all((b - a).float().norm() <= MAX_DISTANCE * a.float().norm() for a, b in pairs)
        return near and Generators.read(self._device).equal(after)

    def judge(self) -> Trajectory:
        """Say whether the compiled module trains as eager does, by the calls so far."""
        if self.course is None or self.unknown:
            samples = self.course.num_samples if self.course else 0
            return Trajectory(samples, None, self.unknown or "no gradient went through the module")
        return self.course.judge()

    def _call_eager(self, *arguments: Any, **options: Any) -> Any:
        with torch.compiler.set_stance("force_eager"):
            return call_eager(self._module, *arguments, **options)

    def _run(
        self, call: Call, function: Function, is_compiled: bool = False, relative: float = 0.0, in_full: bool = False
    ) -> dict[str, torch.Tensor]:
        """Run a call: outputs, gradients of parameters and inputs, and changes of buffers, by name."""
        self._restore(call)
        batch = copy_batch(call.batch)
        if relative:
            batch = _keep_gradients(perturb(self._module, batch, relative), batch)
        call.generators.write(self._device)
        if is_compiled:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with torch.enable_grad():
            with self._autocast(None if in_full else call.autocast):
                outputs = find_tensors(function(*batch.args, **batch.kwargs))
            inputs = [tensor for tensor in find_tensors([batch.args, batch.kwargs]) if tensor.requires_grad]
            trained = {name: item for name, item in self._parameters.items() if item.requires_grad}
            places = [place for place in call.gradients if place < len(outputs) and outputs[place].requires_grad]
            found = torch.autograd.grad(
                [outputs[place] for place in places],
                [*trained.values(), *inputs],
                [call.gradients[place].to(outputs[place].dtype) for place in places],
                allow_unused=True,
                materialize_grads=True,
            )
        names = [
            *(f"{GRADIENT}{name}" for name in trained),
            *(f"{INPUT} {number}" for number, _ in enumerate(inputs, 1)),
        ]
        named = dict(zip(names, found, strict=True))
        for place, tensor in enumerate(outputs):
            if tensor.is_floating_point():
                named[f"{OUTPUT} {place + 1}"] = tensor.detach()
        for (name, buffer), before in zip(self._buffers.items(), call.buffers, strict=True):
            if buffer.is_floating_point():
                named[f"{CHANGE}buffer {name}"] = buffer - before
        return {name: tensor.clone() for name, tensor in named.items()}  # CUDA graphs write to theirs again

    def _autocast(self, dtype: torch.dtype | None) -> AbstractContextManager[object]:
        return nullcontext() if dtype is None else torch.autocast(self._device.type, dtype=dtype)

    def _restore(self, call: Call) -> None:
        self._write_modes(call.modes)
        _write(self._parameters.values(), call.parameters)
        _write(self._buffers.values(), call.buffers)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Put back afterwards what the script goes on with."""
        parameters, buffers = _copy(self._parameters.values()), _copy(self._buffers.values())
        modes = self._read_modes()
        generators = Generators.read(self._device)
        try:
            yield
        finally:
            _write(self._parameters.values(), parameters)
            _write(self._buffers.values(), buffers)
            self._write_modes(modes)
            generators.write(self._device)

    def _read_modes(self) -> list[bool]:
        return [part.training for part in self._module.modules()]

    def _write_modes(self, modes: list[bool]) -> None:
        for part, training in zip(self._module.modules(), modes, strict=True):
            part.training = training


def combine(followers: Sequence[Follower], steps: int) -> Trajectory:
    """The trajectory of a loop by those of its modules: the worst of them."""
    found = [follower.judge() for follower in followers]
    worst = min(found, key=lambda one: (one.passed is not False, one.passed is not None, -_share(one)))
    return replace(worst, samples=sum(one.samples for one in found), steps=steps)


def _share(found: Trajectory) -> float:
    return (found.value or math.inf) / found.limit if found.limit else 0.0


def _make_hook(gradients: dict[int, torch.Tensor], place: int) -> Callable[[torch.Tensor], None]:
    def note(gradient: torch.Tensor) -> None:
        before = gradients.get(place)
        gradients[place] = gradient.detach().clone() if before is None else before + gradient.detach()

    return note


def _copy(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _write(tensors: Iterable[torch.Tensor], values: Iterable[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def _keep_gradients(moved: Batch, batch: Batch) -> Batch:
    for tensor, other in zip(
        find_tensors([moved.args, moved.kwargs]), find_tensors([batch.args, batch.kwargs]), strict=True
    ):
        tensor.requires_grad_(other.requires_grad)
    return moved
