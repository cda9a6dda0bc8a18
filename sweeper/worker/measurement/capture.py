"""The tensors of one step by name: its loss, its outputs and its gradients; and the same step in fp64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from sweeper.core.trial import Trial
from sweeper.worker.models import Built
from sweeper.worker.models.batches import Batch, Loss, cast_tensor, find_tensors, map_tensors

HOST = torch.device("cpu")
LOSS, OUTPUT, GRADIENT = "loss", "output", "gradient of "  # a parameter
Named = Iterable[tuple[str, torch.Tensor]]


class OutputCapture:
    """A loss that keeps a copy of the output that it was given, while `keeps` is set.

    Kept itself, the output would outlive the backward pass, where it does not when the step is timed; a recorded CUDA
    graph cannot be replayed with an output alive that had died when it was recorded (pytorch issue 154306).
    """

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self.keeps = False
        self.output: list[tuple[str, torch.Tensor]] = []

    def __call__(self, output: object, batch: Batch) -> torch.Tensor:
        if self.keeps:
            self.output = [(name, tensor.clone()) for name, tensor in _name_outputs(output)]
        return self._loss(output, batch)


@dataclass(frozen=True)
class StepTensors:
    """Copies of the tensors of one step by name: the loss, floating-point outputs, gradients."""

    tensors: Mapping[str, torch.Tensor]
    kind: str = "as timed"  # or the number format of a reference, float64 or float32

    def move(self, place: torch.device) -> StepTensors:
        return replace(self, tensors={name: tensor.to(place) for name, tensor in self.tensors.items()})


@dataclass(frozen=True)
class Keep:
    """Where copies of tensors are kept, and in which number format; None is their own."""

    place: torch.device = HOST
    dtype: torch.dtype | None = None

    def copy(self, named: Named) -> dict[str, torch.Tensor]:
        """Copy tensors, converted where they are: on the way to the host a longer format takes longer."""
        converted = ((name, tensor, tensor.to(self.dtype or tensor.dtype)) for name, tensor in named)
        return {name: new.to(self.place, copy=new is tensor) for name, tensor, new in converted}


def run_reference(built: Built, trial: Trial, seed: int, dtype: torch.dtype, keep: Keep) -> StepTensors:
    """Run the step in a number format, with nothing lower allowed in it; the module is cast in place.

    The copies may be in a shorter format, where the comparison needs no more. Raises whatever the model raises.
    """
    module = built.module._apply(lambda tensor: cast_tensor(tensor, dtype))  # type: ignore[no-untyped-call]
    batch = map_tensors(built.unseen, lambda tensor: cast_tensor(tensor, dtype))
    trains = trial.workload == "train"
    torch.manual_seed(seed)
    with _highest_precision(), torch.compiler.set_stance("force_eager"), torch.inference_mode(not trains):
        output = module(*batch.args, **batch.kwargs)
        loss = built.loss(output, batch) if trains else None
        copies = {} if loss is None else keep.copy([(LOSS, loss.detach())])
        if not trains or trial.compile.scope != "step":  # else the output cannot be seen in the compiled step
            copies |= keep.copy(_name_outputs(output))
        del output
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
            copies |= keep.copy(_name_gradients(module))
    return StepTensors(copies, str(dtype).removeprefix("torch."))


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
    run: Callable[[], object], capture: OutputCapture, module: torch.nn.Module, trial: Trial, factor: float = 1.0
) -> Named:
    """Run one step and name its tensors, which stay on the device; gradients are divided by `factor`."""
    capture.keeps = True
    try:
        returned = run()
    finally:
        capture.keeps = False
        output, capture.output = capture.output, []  # a step that fails leaves nothing on the device
    if trial.workload != "train":
        return list(_name_outputs(returned))
    assert isinstance(returned, torch.Tensor)
    gradients = ((name, tensor / factor if factor != 1.0 else tensor) for name, tensor in _name_gradients(module))
    return [(LOSS, returned), *output, *gradients]


def _name_outputs(output: object) -> Iterator[tuple[str, torch.Tensor]]:
    judged = [tensor for tensor in find_tensors(output) if tensor.is_floating_point() or tensor.is_complex()]
    for index, tensor in enumerate(judged):
        yield f"{OUTPUT} {index}" if len(judged) > 1 else OUTPUT, _to_reals(tensor.detach())


def _name_gradients(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    gradients = ((name, parameter.grad) for name, parameter in module.named_parameters())
    return ((f"{GRADIENT}{name}", _to_reals(grad.detach())) for name, grad in gradients if grad is not None)


def _to_reals(tensor: torch.Tensor) -> torch.Tensor:
    """Dense, and complex numbers as pairs of real ones."""
    dense = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
