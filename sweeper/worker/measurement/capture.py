"""The tensors of one step by name: what it gives and what it changes; and the same step in fp64, in
place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from sweeper.core.trial import Trial
from sweeper.worker.models import Built
from sweeper.worker.models.batches import (
    Batch,
    Loss,
    cast_tensor,
    copy_batch,
    find_tensors,
    is_plain,
    map_tensors,
    name_format,
)

from .attributes import Attributes
from .leaves import read_leaves
from .step import make_optimizer, make_step

HOST = torch.device("cpu")
LOSS, OUTPUT, GRADIENT, CHANGE = "loss", "output", "gradient of ", "change of "
Named = Iterable[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class Keep:
    """Where copies of tensors are kept, and in which number format; None is their own."""

    place: torch.device | None = HOST
    dtype: torch.dtype | None = None

    def copy(self, named: Named) -> dict[str, torch.Tensor]:
        """Copy tensors, converted where they are: on the way to the host a longer format takes
        longer.
        """
        copies = {}
        for name, tensor in named:
            converted = tensor.to(tensor.dtype if is_whole(tensor) else self.dtype)
            copies[name] = converted.to(self.place, copy=converted is tensor)
        return copies


class OutputCapture:
    """Wraps losses so that they keep a copy of the output that they are given, and note what the
    forward pass has changed, while `changes` is set.

    Kept itself, the output would outlive the backward pass, where it does not when the step is
    timed; a recorded CUDA graph cannot be replayed with an output alive that had died when it was
    recorded (pytorch issue 154306).
    """

    def __init__(self) -> None:
        self.changes: Changes | None = None
        self.keep = Keep(None)  # of the output
        self.output: list[tuple[str, torch.Tensor]] = []
        self.texts: dict[str, str] = {}  # of the last step that was seen
        self.unseen: dict[str, None] = {}  # parts of outputs that nobody looked into

    def wrap(self, loss: Loss) -> Loss:
        """The same loss, of which the wrapper stays eager where `loss` is compiled."""

        def keep_and_call(output: object, batch: Batch) -> torch.Tensor:
            if self.changes is not None:
                copies = self.keep.copy(self.read(output))
                self.output = [*copies.items(), *self.changes.name_parameters()]
            return loss(output, batch)

        return keep_and_call

    def read(self, output: object) -> Named:
        """Name the tensors of an output, and note its other leaves."""
        leaves = read_leaves(OUTPUT, output)
        self.texts = leaves.texts
        self.unseen |= dict.fromkeys(leaves.unseen)
        return [(name, to_reals(tensor.detach())) for name, tensor in leaves.tensors]


@dataclass(frozen=True)
class StepTensors:
    """Copies of the tensors of one step by name.

    These are the loss, outputs, gradients, and the changes of buffers, inputs, parameters and
    attributes; where the optimizer is compiled also its state. With scope=step there are no
    outputs.
    """

    tensors: Mapping[str, torch.Tensor]
    kind: str = "as timed"  # or the number format of a reference, float64 or float32
    # root mean squares of what is changed, before the step
    sizes: Mapping[str, float] = field(default_factory=dict)


class Changes:
    """What a step changes beside gradients, from now on: buffers, inputs, attributes, and the
    parameters, by the forward pass alone where the optimizer is not part of what is compared.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        attributes: Attributes,
        batch: Batch,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        self.module, self._batch, self._optimizer = module, batch, optimizer
        self._attributes = attributes
        named = (*self._name_tensors(), *self._name_others())
        self._before = {name: tensor.detach().clone() for name, tensor in named}

    def name(self) -> Named:
        """Name what has changed by how much, and the state of the optimizer, which begins at
        zero.
        """
        for name, tensor in self._name_tensors():
            yield f"{CHANGE}{name}", to_reals(_subtract(tensor.detach(), self._before.get(name)))
        yield from self._name_changed(self._attributes.name_tensors())
        if self._optimizer is None:
            return
        for name, parameter in self.module.named_parameters():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    yield f"{key} of {name}", to_reals(value)

    def name_parameters(self) -> Named:
        """Name the parameters that the forward pass has changed, while nothing else has."""
        if self._optimizer is None:
            yield from self._name_changed(_name_parameters(self.module))

    def _name_changed(self, named: Named) -> Named:
        pairs = [(name, tensor.detach(), self._before.get(name)) for name, tensor in named]
        same = _find_same(pairs)
        for name, after, before in pairs:
            if name in same:
                continue
            change = to_reals(_subtract(after, before))
            if _is_change(change, before):
                yield f"{CHANGE}{name}", change

    def sizes(self, names: Iterable[str]) -> dict[str, float]:
        """Root mean squares of what these changes are of, before the step, of the numbers that are
        finite.
        """
        sizes = {}
        for name in names:
            tensor = self._before.get(name.removeprefix(CHANGE))
            if tensor is not None:
                values = to_reals(tensor).double()
                values = values[torch.isfinite(values)]
                sizes[name] = float(values.square().mean().sqrt()) if values.numel() else 0.0
        return sizes

    def _name_tensors(self) -> Named:
        for name, tensor in self.module.named_buffers():
            yield f"buffer {name}", tensor
        inputs = find_tensors([self._batch.args, self._batch.kwargs, self._batch.target])
        for index, tensor in enumerate(inputs):
            if is_plain(tensor):
                yield f"input {index}", tensor
        if self._optimizer is not None:
            yield from self.module.named_parameters()

    def _name_others(self) -> Named:
        """What few steps change, and what is compared only where one has."""
        yield from self._attributes.name_tensors()
        if self._optimizer is None:
            yield from _name_parameters(self.module)


def _name_parameters(module: torch.nn.Module) -> Named:
    for name, parameter in module.named_parameters():
        yield f"parameter {name}", parameter


def _subtract(after: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
    """The difference, in fp32 or longer, of whole numbers in int64; all of `after` where there was
    nothing of its shape.
    """
    dtype = torch.int64 if is_whole(after) else torch.promote_types(after.dtype, torch.float32)
    after = after.to(dtype)
    if before is None or before.shape != after.shape:
        return after
    before = before.to(after.device, after.dtype)
    # infinity less infinity is nothing here
    return torch.where(after == before, 0, after - before)


def _find_same(pairs: list[tuple[str, torch.Tensor, torch.Tensor | None]]) -> set[str]:
    """Name what is as it was, as nearly all is. The host waits for the device once, and not once
    for each parameter.
    """
    differ = {}
    for name, after, before in pairs:
        if before is not None and is_plain(after) and _is_alike(after, before):
            differ[name] = (after != before).any()
    if not differ:
        return set()
    place = next(iter(differ.values())).device
    found = torch.stack([flag.to(place) for flag in differ.values()]).tolist()
    return {name for name, differs in zip(differ, found, strict=True) if not differs}


def _is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def _is_change(change: torch.Tensor, before: torch.Tensor | None) -> bool:
    """Whether it is more than rounding makes of a mean of equal numbers."""
    if before is None or is_whole(change):
        return bool(change.any())
    rounding = 2 * torch.finfo(before.dtype).eps * before.abs().max() if before.numel() else 0.0
    return change.numel() > 0 and not bool(change.abs().max() <= rounding)


def run_reference(
    built: Built,
    capture: OutputCapture,
    attributes: Attributes,
    batch: Batch,
    trial: Trial,
    dtype: torch.dtype,
    keep: Keep,
) -> StepTensors:
    """Run the step in a number format, with nothing lower allowed in it; the module is as it was
    afterwards.

    `capture` has wrapped the loss. The copies may be in a shorter format, where the comparison
    needs no more. Raises whatever the model raises.
    """
    module = built.module
    others = [tensor for _, tensor in attributes.name_tensors()]
    with (
        cast_in_place(module, dtype, others),
        _highest_precision(),
        torch.compiler.set_stance("force_eager"),
    ):
        batch = copy_batch(map_tensors(batch, lambda tensor: cast_tensor(tensor, dtype)))
        optimizer = None
        if trial.workload == "train" and trial.compile.has_optimizer:
            optimizer = make_optimizer(trial, module, False)
        changes = Changes(module, attributes, batch, optimizer)
        run = partial(make_step(trial, built, module, optimizer), batch)
        copies: dict[str, torch.Tensor] = {}
        for name, tensor in capture_step(run, capture, changes, trial, keep=keep):
            is_copy = trial.workload == "train" and name.startswith(OUTPUT)  # by the loss's wrapper
            copies |= {name: tensor} if is_copy else keep.copy([(name, tensor)])
    return StepTensors(copies, name_format(dtype), changes.sizes(copies))


@contextmanager
def cast_in_place(
    module: torch.nn.Module, dtype: torch.dtype, others: Iterable[torch.Tensor] = ()
) -> Iterator[None]:
    """Have parameters, buffers and other tensors in another number format in here, without
    gradients.

    They stay the same tensors, so what is attached to them (hooks) goes on working, and get their
    memory back afterwards, whose addresses recorded CUDA graphs hold.
    """
    tensors = dict.fromkeys((*module.parameters(), *module.buffers()))  # each one once
    # what a step has computed keeps its format
    tensors |= dict.fromkeys(item for item in others if item.is_leaf and not item.is_inference())
    kept = [(tensor, tensor.data, tensor.grad) for tensor in tensors]
    try:
        for tensor, data, _ in kept:
            tensor.grad = None
            tensor.data = cast_tensor(data, dtype).clone()
        yield
    finally:
        for tensor, data, grad in kept:
            tensor.grad = None
            tensor.data = data
            tensor.grad = grad


@contextmanager
def _highest_precision() -> Iterator[None]:
    """Switch TF32 off in here, and set everything back afterwards."""
    matmul = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)


def capture_step(
    run: Callable[[], object],
    capture: OutputCapture,
    changes: Changes,
    trial: Trial,
    factor: float = 1.0,
    keep: Keep = Keep(None),
) -> Iterator[tuple[str, torch.Tensor]]:
    """Run one step and name what it gives and changes. The tensors stay on the device; the output
    of a training step is copied as `keep` says. Gradients are divided by `factor`.
    """
    capture.changes, capture.keep, capture.texts = changes, keep, {}
    try:
        returned = run()
    finally:
        capture.changes = None
        # a step that fails leaves nothing on the device
        named, capture.output = capture.output, []
    yield from named
    if trial.workload == "train":
        assert isinstance(returned, torch.Tensor)
        capture.texts[LOSS] = name_format(returned.dtype)
        yield LOSS, returned
        for name, tensor in name_gradients(changes.module):
            yield name, tensor / factor if factor != 1.0 else tensor
    else:
        yield from capture.read(returned)
        yield from changes.name_parameters()
    yield from changes.name()


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether it holds whole numbers or booleans."""
    return not (tensor.is_floating_point() or tensor.is_complex())


def name_gradients(module: torch.nn.Module) -> Named:
    """Name the gradients that the parameters have."""
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            yield f"{GRADIENT}{name}", to_reals(parameter.grad.detach())


def to_reals(tensor: torch.Tensor) -> torch.Tensor:
    """Dense, and complex numbers as pairs of real ones."""
    dense = tensor
    if tensor.is_nested:
        dense = torch.nested.to_padded_tensor(tensor, 0.0)
    elif tensor.layout != torch.strided:
        dense = tensor.to_dense()
    elif tensor.is_quantized:
        dense = tensor.dequantize()
    return torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
