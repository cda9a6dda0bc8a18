"""Follows one module of a script through its training, and runs each of its calls again in every
arm.

The script runs with the compiled module. After each of its steps the calls of that step are
repeated, from the weights, buffers, random numbers and inputs that they had, with the gradients
that the script's loss sent back. What the script goes on with is as the step has left it, but for
what a module keeps in Python objects of its own.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from sweeper.core.record import Trajectory
from sweeper.core.trial import Trial
from sweeper.worker.accuracy import rule
from sweeper.worker.accuracy.generators import GeneratorStates, read_states, write_states
from sweeper.worker.accuracy.states import is_expanded, perturb
from sweeper.worker.accuracy.trajectory import COMPILED, EAGER, INPUT, LONGER, MOVED, Differences
from sweeper.worker.accuracy.verdict import severity
from sweeper.worker.compilation.compiler import Function
from sweeper.worker.failures import Missing, try_reading
from sweeper.worker.measurement.capture import CHANGE, GRADIENT, OUTPUT, is_whole, to_reals
from sweeper.worker.models.batches import Batch, copy_batch, find_tensors, map_tensors
from sweeper.worker.models.formats import FormatWatch, find_precision, read_autocast
from sweeper.worker.scripts.arms import call_eager

MAX_CALLS = 4  # of a module in a step that are repeated
MAX_DISTANCE = 0.1  # of outputs, beyond which an arm is taken to draw other random numbers
Named = dict[str, torch.Tensor]


class State:
    """All that a module has at a time: which tensors it holds, their values, and its modes.
    `weights` are copies of its parameters.
    """

    def __init__(self, module: torch.nn.Module, weights: dict[int, torch.Tensor]) -> None:
        parts = list(module.modules())
        self._tables = [
            (table, dict(table)) for part in parts for table in (part._parameters, part._buffers)
        ]
        self._modes = [(part, part.training) for part in parts]
        self._gradients = [(item, item.requires_grad) for item in module.parameters()]
        self.values = weights | _copy_values(module.buffers())

    def restore(self) -> None:
        for table, tensors in self._tables:
            table.update(tensors)  # type: ignore[arg-type]
        for part, training in self._modes:
            part.training = training
        for parameter, trained in self._gradients:
            parameter.requires_grad_(trained)
        with torch.no_grad():
            for _, tensors in self._tables:
                for tensor in tensors.values():
                    if id(tensor) in self.values:
                        tensor.copy_(self.values[id(tensor)])  # type: ignore[union-attr]


@dataclass(frozen=True)
class RecordedCall:
    """A call of the module in a step, with all that it depended on."""

    batch: Batch
    state: State
    autocast: torch.dtype | None
    generators: GeneratorStates
    gradients: dict[int, torch.Tensor] = field(default_factory=dict)  # of outputs, by their place
    hooks: list[Any] = field(default_factory=list)

    def add_gradient(self, place: int, gradient: torch.Tensor | None) -> None:
        if gradient is None:  # of an output beside those that the loss is made of
            return
        self.gradients[place] = self.gradients.get(place, 0) + gradient.detach()


class StepReplayer:
    """Stands in a module's place; `compare` is to be called after each step."""

    is_comparing = False  # of all of them: one may be part of another's module

    def __init__(
        self, module: torch.nn.Module, compiled: Function, trial: Trial, device: torch.device
    ) -> None:
        self._module, self._compiled, self._trial, self._device = module, compiled, trial, device
        self._calls: list[RecordedCall] = []
        self._weights: dict[int, torch.Tensor] = {}  # copies of this step's
        self._versions: list[tuple[int, int]] = []  # of the weights when they were copied
        self._num_noises = 0
        # the short format that the module computes in, once it has run
        self._computed: str | None = None
        # whether eager without autocast draws the same random numbers
        self._longer: bool | None = None
        # by the tensors that a call gives
        self._differences: dict[tuple[str, ...], Differences] = {}
        self.unknown: str | None = None  # why the arms cannot be compared

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the compiled module, and note the call where its gradients will be asked for."""
        if not torch.is_grad_enabled() or self.is_comparing or self.unknown or not self._has_room():
            return self._compiled(*arguments, **options)
        parameters = list(self._module.parameters())
        versions = [(id(item), item._version) for item in parameters]
        if versions != self._versions:
            self._weights, self._versions = _copy_values(parameters), versions
        state = State(self._module, self._weights)
        batch, autocast = copy_batch(Batch(arguments, options)), read_autocast(self._device)
        call = RecordedCall(batch, state, autocast, read_states(self._device))
        output = self._compiled(*arguments, **options)
        # a CUDA graph writes to its outputs again when the call is repeated
        if self._device.type == "cuda":
            output = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, output)
        for place, tensor in enumerate(find_tensors(output)):
            if tensor.requires_grad:
                call.hooks.append(tensor.register_hook(partial(call.add_gradient, place)))  # type: ignore[no-untyped-call]
        self._calls.append(call)
        return output

    def _has_room(self) -> bool:
        """Whether another call may be noted; one that nobody has asked for gradients, as in an
        evaluation, goes.
        """
        if len(self._calls) < MAX_CALLS:
            return True
        for call in self._calls:
            if not call.gradients:
                self._forget(call)
                return True
        return False

    def _forget(self, call: RecordedCall) -> None:
        self._calls.remove(call)
        for hook in call.hooks:
            hook.remove()

    def compare(self) -> None:
        """Run the calls of the step that has ended in every arm, and compare what they give."""
        calls = [call for call in self._calls if call.gradients]
        while self._calls:
            self._forget(self._calls[0])
        if calls and not self.unknown:
            failed = try_reading(partial(self._compare_all, calls))
            if isinstance(failed, Missing):
                self.unknown = failed.reason
        self._weights, self._versions = {}, []

    def _compare_all(self, calls: Sequence[RecordedCall]) -> None:
        """Compare calls, and put back afterwards what the script goes on with."""
        state = State(self._module, _copy_values(self._module.parameters()))
        generators = read_states(self._device)
        StepReplayer.is_comparing = True
        try:
            for call in calls:
                if not self.unknown:
                    self._compare(call)
        finally:
            StepReplayer.is_comparing = False
            state.restore()
            write_states(generators, self._device)
            torch.clear_autocast_cache()

    def _compare(self, call: RecordedCall) -> None:
        if self._computed is None:
            with FormatWatch() as watch:  # type: ignore[no-untyped-call]
                eager = self._run(call, EAGER)
            self._computed = watch.found
        else:
            eager = self._run(call, EAGER)
        if not any(name.startswith((GRADIENT, INPUT)) for name in eager):
            return
        after = read_states(self._device)
        arms = {EAGER: eager, COMPILED: self._run(call, COMPILED)}
        is_random = after != call.generators
        if (is_random and not self._differences) and not (
            read_states(self._device) == after and _are_near(arms[COMPILED], eager)
        ):
            self.unknown = "compiled code draws other random numbers than eager"
            return
        precision = find_precision(self._module, call.autocast, self._computed)
        trial = replace(self._trial, precision=precision, device=self._device.type)
        tolerance = rule.choose_tolerance(trial, self._module)
        relative = rule.perturbation(precision, tolerance)
        arms |= {name: self._run(call, name, relative) for name in MOVED}
        if call.autocast is not None and self._longer is not False:
            longer = self._run(call, LONGER)
            self._longer = self._longer or not is_random or _are_near(longer, eager)
            if self._longer:
                arms[LONGER] = longer
        self._differences.setdefault(tuple(eager), Differences(tolerance)).add(arms)

    def judge(self) -> Trajectory:
        """Say whether the compiled module trains as eager does, by the calls so far."""
        found = [differences.judge() for differences in self._differences.values()]
        judged = [one for one in found if one.passed is not None]
        samples = sum(one.samples for one in found)
        if self.unknown or not found:
            return Trajectory(samples, None, self.unknown or "no gradient went through the module")
        return replace(max(judged or found, key=_share), samples=samples)

    def _call_eager(self, *arguments: Any, **options: Any) -> Any:
        with torch.compiler.set_stance("force_eager"):
            return call_eager(self._module, *arguments, **options)

    def _run(self, call: RecordedCall, arm: str, relative: float = 0.0) -> Named:
        """Run a call in an arm, moved by noise of a `relative` size: outputs, gradients of
        parameters and inputs, and changes of buffers, by name.
        """
        call.state.restore()
        leaves = copy_batch(call.batch)
        if relative:
            torch.manual_seed(self._num_noises)  # another noise in each arm of each call
            self._num_noises += 1
            perturb(self._module, leaves, relative)
        write_states(call.generators, self._device)
        function: Function = self._call_eager
        if arm == COMPILED:
            function = self._compiled
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        dtype = None if arm == LONGER else call.autocast
        torch.clear_autocast_cache()  # of weights that were other ones
        with torch.enable_grad():
            # A module may write to its inputs, which no leaf that wants a gradient allows.
            batch = map_tensors(
                leaves, lambda tensor: tensor.clone() if tensor.requires_grad else tensor
            )
            with torch.autocast(self._device.type, dtype=dtype, enabled=dtype is not None):
                outputs = find_tensors(function(*batch.args, **batch.kwargs))
            named = self._take_gradients(call, outputs, leaves)
        for number, tensor in enumerate(outputs, 1):
            if not is_whole(tensor):
                named[f"{OUTPUT} {number}"] = tensor.detach()
        for name, buffer in self._module.named_buffers():
            before = call.state.values.get(id(buffer))
            if buffer.is_floating_point() and before is not None:
                named[f"{CHANGE}buffer {name}"] = torch.where(
                    buffer == before, 0.0, buffer - before
                )
        return {name: to_reals(tensor).clone() for name, tensor in named.items()}

    def _take_gradients(
        self, call: RecordedCall, outputs: Sequence[torch.Tensor], leaves: Batch
    ) -> Named:
        """Go back as the script did: `torch.autograd.grad` would leave out what reentrant
        checkpoints hold.
        """
        inputs = [tensor for tensor in leaves.inputs if tensor.requires_grad]
        trained = {
            name: item for name, item in self._module.named_parameters() if item.requires_grad
        }
        places = [
            place
            for place in call.gradients
            if place < len(outputs) and outputs[place].requires_grad
        ]
        if not (trained or inputs) or not places:
            return {}
        if any(getattr(item, "_post_accumulate_grad_hooks", None) for item in trained.values()):
            raise ValueError("parameters have hooks that run when their gradients are there")
        before = [item.grad for item in trained.values()]
        try:
            for item in trained.values():
                item.grad = None
            gradients = [call.gradients[place].to(outputs[place].dtype) for place in places]
            torch.autograd.backward([outputs[place] for place in places], gradients)
            named = {f"{GRADIENT}{name}": _read_gradient(item) for name, item in trained.items()}
        finally:
            for item, gradient in zip(trained.values(), before, strict=True):
                item.grad = gradient
        return named | {
            f"{INPUT} {number}": _read_gradient(item) for number, item in enumerate(inputs, 1)
        }


def combine(replayers: Sequence[tuple[str, StepReplayer]], steps: int) -> Trajectory:
    """The trajectory of a loop by those of its modules, which have names: the worst of them."""
    found = [(name, replayer.judge()) for name, replayer in replayers]
    name, worst = max(found, key=lambda one: severity(one[1].passed, _share(one[1])))
    if len(found) > 1 and worst.worst:
        worst = replace(worst, worst=f"{worst.worst} of {name}")
    return replace(worst, samples=sum(one.samples for _, one in found), steps=steps)


def _share(found: Trajectory) -> float:
    """The share of its limit that the worst figure takes; infinite where that is no number."""
    if found.passed is None or not found.limit:
        return 0.0
    return (math.inf if found.value is None else found.value) / found.limit


def _are_near(one: Named, other: Named) -> bool:
    """Whether the outputs of two arms are those of the same random numbers."""
    pairs = [(one.get(name), tensor) for name, tensor in other.items() if name.startswith(OUTPUT)]
    return all(
        a is not None
        and a.shape == b.shape
        and bool((a - b).float().norm() <= MAX_DISTANCE * b.float().norm())
        for a, b in pairs
    )


def _read_gradient(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def _copy_values(tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Copies of tensors by their identity; those whose numbers share their memory cannot be written
    to.
    """
    return {id(tensor): tensor.detach().clone() for tensor in tensors if not is_expanded(tensor)}
