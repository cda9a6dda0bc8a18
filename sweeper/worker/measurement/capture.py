"""One step seen from inside: its loss, its outputs and its gradients, by name; and the same step in fp64.

Place in the flow: `session` observes eager and compiled as they run, `accuracy` compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from sweeper.core.trial import Trial
from sweeper.worker.models import Built
from sweeper.worker.models.batches import Batch, Loss, cast, in_format, tensors_of

HOST = torch.device("cpu")
LOSS, OUTPUT, GRADIENT = "loss", "output", "gradient of "  # a parameter
Named = Iterable[tuple[str, torch.Tensor]]


class Capture:
    """A loss that keeps a copy of the output it was given, when asked to: the step is then seen as it runs.

    Kept itself, the output would outlive the backward pass, where it does not when the step is timed; a recorded CUDA
    graph cannot be replayed with an output alive that had died when it was recorded (pytorch issue 154306).
    """

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self.keeps = False
        self.output: list[tuple[str, torch.Tensor]] = []

    def __call__(self, output: object, batch: Batch) -> torch.Tensor:
        if self.keeps:
            self.output = [(name, tensor.clone()) for name, tensor in _outputs(output)]
        return self._loss(output, batch)


@dataclass(frozen=True)
class Observed:
    """Tensors of one step by name, apart from the step: the loss, floating-point outputs, gradients."""

    tensors: Mapping[str, torch.Tensor]
    kind: str  # float64, float32, or `as timed`

    def on(self, place: torch.device) -> Observed:
        return replace(self, tensors={name: tensor.to(place) for name, tensor in self.tensors.items()})


@dataclass(frozen=True)
class Keep:
    """Where tensors of a step are kept, and in which number format; None is their own."""

    place: torch.device
    dtype: torch.dtype | None = None

    def copies(self, found: Named) -> dict[str, torch.Tensor]:
        """Converted where they are: on the way to the host a longer format takes longer."""
        converted = ((name, tensor, tensor.to(self.dtype or tensor.dtype)) for name, tensor in found)
        return {name: new.to(self.place, copy=new is tensor) for name, tensor, new in converted}


def reference(built: Built, trial: Trial, seed: int, dtype: torch.dtype, keep: Keep) -> Observed:
    """The step in a number format, nothing lower allowed in it; the module is cast in place.

    What is kept may be in a shorter format, where the comparison needs no more. Raises whatever the model raises.
    """
    module = built.module._apply(lambda tensor: in_format(tensor, dtype))  # type: ignore[no-untyped-call]
    batch = cast(built.unseen, dtype)
    torch.manual_seed(seed)
    with _highest_precision(), torch.compiler.set_stance("force_eager"):
        if trial.workload == "train":
            found = _trained(module, batch, built.loss, trial, keep)
        else:
            found = _inferred(module, batch, keep)
    return Observed(found, str(dtype).removeprefix("torch."))


def _inferred(module: torch.nn.Module, batch: Batch, keep: Keep) -> dict[str, torch.Tensor]:
    with torch.inference_mode():
        return keep.copies(_outputs(module(*batch.args, **batch.kwargs)))


def _trained(module: torch.nn.Module, batch: Batch, loss_of: Loss, trial: Trial, keep: Keep) -> dict[str, torch.Tensor]:
    output = module(*batch.args, **batch.kwargs)
    loss = loss_of(output, batch)
    outputs = _outputs(output) if shows_outputs(trial) else ()
    found = keep.copies([(LOSS, loss.detach()), *outputs])
    del output
    loss.backward()  # type: ignore[no-untyped-call]
    return found | keep.copies(_gradients(module))


@contextmanager
def _highest_precision() -> Iterator[None]:
    """No TF32 in here, and everything as it was afterwards."""
    matmul = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)


def observe(
    run: Callable[[], object], tap: Capture, module: torch.nn.Module, trial: Trial, scale: float = 1.0
) -> Named:
    """Run one step and name what came out, still on the device; gradients are divided by `scale`."""
    tap.keeps = True
    try:
        returned = run()
    finally:
        tap.keeps = False
        output, tap.output = tap.output, []  # a step that fails leaves nothing on the device
    if trial.workload != "train":
        return list(_outputs(returned))
    assert isinstance(returned, torch.Tensor)
    gradients = ((name, tensor / scale if scale != 1.0 else tensor) for name, tensor in _gradients(module))
    return [(LOSS, returned), *output, *gradients]


def shows_outputs(trial: Trial) -> bool:
    """Whether the model's output can be seen in a step: not where the whole step is one compiled function."""
    return trial.workload != "train" or trial.compile.scope != "step"


def kept(found: Named, place: torch.device = HOST) -> Observed:
    return Observed(Keep(place).copies(found), "as timed")


def _outputs(output: object) -> Iterator[tuple[str, torch.Tensor]]:
    judged = [tensor for tensor in tensors_of(output) if tensor.is_floating_point() or tensor.is_complex()]
    for index, tensor in enumerate(judged):
        yield f"{OUTPUT} {index}" if len(judged) > 1 else OUTPUT, _as_reals(tensor.detach())


def _gradients(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            yield f"{GRADIENT}{name}", _as_reals(parameter.grad.detach())


def _as_reals(tensor: torch.Tensor) -> torch.Tensor:
    """Dense, and complex numbers as pairs of real ones."""
    dense = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
