"""One step seen from inside: its loss, its outputs and its gradients, by name; and the same step in fp64.

Place in the flow: `session` observes eager and compiled as they run, `accuracy` compares.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from sweeper.trial import Trial
from sweeper.worker.failures import message_of
from sweeper.worker.models import Batch, Built, Loss, cast, tensors_of

GRADIENT = "gradient of "  # a parameter
# How a model, a kernel or a copy refuses another number format; running out of memory is a RuntimeError as well.
REFUSALS = (RuntimeError, TypeError, ValueError, AttributeError, AssertionError)

Named = Iterable[tuple[str, torch.Tensor]]


class Tap:
    """A loss that keeps the output it was given, when asked to: the step is then seen as it runs."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self.keeps = False
        self.output: object = None

    def __call__(self, output: object, batch: Batch) -> torch.Tensor:
        if self.keeps:
            self.output = output
        return self._loss(output, batch)


@dataclass(frozen=True)
class Observed:
    """Tensors of one step by name, on the host: the loss, floating-point outputs, gradients."""

    tensors: Mapping[str, torch.Tensor]
    kind: str  # float64, float32 or `as timed`


def reference(built: Built, trial: Trial, seed: int, keep: torch.dtype) -> Observed | str:
    """The step in fp64, or in fp32 at the highest precision where fp64 does not fit or run; else why there is none.

    `keep` is the number format of what is kept, which may be a shorter one where the comparison needs no more.
    """
    reasons = []
    for dtype in (torch.float64, torch.float32):
        try:
            with _highest_precision():
                found = _in_precision(built, trial, seed, dtype, keep)
                return Observed(found, str(dtype).removeprefix("torch."))
        except REFUSALS as error:
            reasons.append(message_of(error).splitlines()[0])
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return f"no reference: {reasons[0]}; in fp32: {reasons[1]}"


def _in_precision(
    built: Built, trial: Trial, seed: int, dtype: torch.dtype, keep: torch.dtype
) -> dict[str, torch.Tensor]:
    module = copy.deepcopy(built.module).to(dtype)
    batch = cast(built.unseen, dtype)
    torch.manual_seed(seed)
    with torch.compiler.set_stance("force_eager"):
        if trial.workload != "train":
            with torch.inference_mode():
                return _on_host(_outputs(module(*batch.args, **batch.kwargs)), keep)
        output = module(*batch.args, **batch.kwargs)
        loss = built.loss(output, batch)
        outputs = _outputs(output) if shows_outputs(trial) else ()
        found = _on_host([("loss", loss.detach()), *outputs], keep)
        del output
        loss.backward()  # type: ignore[no-untyped-call]
    return found | _on_host(_gradients(module), keep)


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


def observe(run: Callable[[], object], tap: Tap, module: torch.nn.Module, trial: Trial, scale: float = 1.0) -> Named:
    """Run one step and name what came out, still on the device; gradients are divided by `scale`."""
    tap.keeps = True
    try:
        returned = run()
    finally:
        tap.keeps = False
    output, tap.output = tap.output, None
    if trial.workload != "train":
        return list(_outputs(returned))
    assert isinstance(returned, torch.Tensor)
    gradients = ((name, tensor / scale if scale != 1.0 else tensor) for name, tensor in _gradients(module))
    return [("loss", returned), *_outputs(output), *gradients]


def shows_outputs(trial: Trial) -> bool:
    """Whether the model's output can be seen in a step: not where the whole step is one compiled function."""
    return trial.workload != "train" or trial.compile.scope == "model"


def on_host(found: Named) -> Observed:
    return Observed(_on_host(found), "as timed")


def _outputs(output: object) -> Iterator[tuple[str, torch.Tensor]]:
    floats = [tensor for tensor in tensors_of(output) if tensor.is_floating_point()]
    for index, tensor in enumerate(floats):
        yield f"output {index}" if len(floats) > 1 else "output", tensor.detach()


def _gradients(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            yield f"{GRADIENT}{name}", parameter.grad.detach()


def _on_host(found: Named, keep: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    return {name: tensor.to(keep or tensor.dtype).to("cpu", copy=True) for name, tensor in found}
