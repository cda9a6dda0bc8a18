"""A step: what both arms repeat. Training is zero_grad, forward under autocast, loss, backward, optimizer step.

Place in the flow: `session` puts the arms together from here and from `compiler`; `timing` runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from sweeper.core.trial import Trial
from sweeper.worker.models import Built
from sweeper.worker.models.batches import Batch, tensors_of

Step = Callable[[Batch], torch.Tensor]  # gives the loss, or for inference the mean of the output, a scalar
# Of Adam. A step takes as long with any; torch's 1e-3 let MobileBERT diverge within 32 steps on an H200
# (docs/results/h200-pt2-huggingface.md).
LEARNING_RATE = 1e-5
SCALER_GROWTH_INTERVAL = 1 << 30  # the scale only falls, so that no timed step is one of growth


@dataclass(frozen=True)
class Numerics:
    """Number formats as they came out on this device."""

    autocast: torch.dtype | None
    scaler: bool

    def context(self, device: torch.device) -> AbstractContextManager[object]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.autocast)


def resolve(trial: Trial, device: torch.device) -> Numerics:
    """Choose the autocast type that the device has, and set the tf32 switches if the precision asks for it."""
    precision = trial.precision
    if precision.tf32 is not None:
        torch.backends.cuda.matmul.allow_tf32 = precision.tf32
        torch.backends.cudnn.allow_tf32 = precision.tf32
    if precision.autocast is None:
        return Numerics(None, False)
    has_bfloat16 = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    name = ("bfloat16" if has_bfloat16 else "float16") if precision.autocast == "auto" else precision.autocast
    scaler = precision.grad_scaler and name == "float16" and trial.workload == "train"
    return Numerics(getattr(torch, name), scaler)


def make_optimizer(trial: Trial, module: torch.nn.Module, scaler: bool) -> torch.optim.Optimizer | None:
    """An optimizer with torch's defaults, but for Adam's learning rate and SGD's momentum of 0.9.

    The labels are random, so the rate is one that keeps a model near where it was built. By default Adam is fused with
    a gradient scaler, or each step would wait for the GPU.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if trial.optimizer == "none" or not parameters:
        return None
    chosen: dict[str, Any] = {} if trial.optimizer_impl == "default" else {trial.optimizer_impl: True}
    if trial.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, **chosen)
    adam = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[trial.optimizer]
    optimizer: torch.optim.Optimizer = adam(
        parameters, lr=LEARNING_RATE, **(chosen or ({"fused": True} if scaler else {}))
    )
    return optimizer


def make_scaler(numerics: Numerics, device: torch.device) -> torch.amp.GradScaler | None:
    if not numerics.scaler:
        return None
    return torch.amp.GradScaler(device.type, growth_interval=SCALER_GROWTH_INTERVAL)


def training_step(
    built: Built,
    module: Callable[..., object],
    optimizer: torch.optim.Optimizer | None,
    scaler: torch.amp.GradScaler | None,
    context: Callable[[], AbstractContextManager[object]],
) -> Step:
    """One training step; `module` is the built module or its compiled wrapper, which shares the parameters."""
    parameters = list(built.module.parameters())

    def step(batch: Batch) -> torch.Tensor:
        if optimizer is not None:
            optimizer.zero_grad(set_to_none=True)
        else:
            for parameter in parameters:
                parameter.grad = None
        with context():
            loss = built.loss(module(*batch.args, **batch.kwargs), batch)
        if scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            if optimizer is not None:
                optimizer.step()
        else:
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            if optimizer is not None:
                scaler.step(optimizer)
                scaler.update()
        return loss.detach()

    return step


def inference_step(
    module: Callable[..., object], context: Callable[[], AbstractContextManager[object]]
) -> Callable[[Batch], object]:
    """One forward under `inference_mode`; gives the model's output."""

    def step(batch: Batch) -> object:
        with torch.inference_mode(), context():
            return module(*batch.args, **batch.kwargs)

    return step


def is_sound(output: object, workload: str) -> bool:
    """Whether a loss is finite; whether a model's output has no NaN (infinity may be meant there, as in masks)."""
    wrong = (lambda tensor: ~torch.isfinite(tensor)) if workload == "train" else torch.isnan
    return not any(bool(wrong(tensor).any()) for tensor in tensors_of(output))


def optimizer_settings(trial: Trial, optimizer: torch.optim.Optimizer | None) -> dict[str, str | bool | float | None]:
    """What the record says of the optimizer; both arms share it, or have one each when the whole step is compiled."""
    if optimizer is None:
        return {"optimizer": None}
    group = optimizer.param_groups[0]
    return {
        "optimizer": type(optimizer).__name__,
        "optimizer_in_compiled_region": trial.compile.scope == "step",
        **{f"optimizer_{name}": bool(group.get(name)) for name in ("fused", "capturable")},
        "optimizer_foreach": _runs_foreach(group),
        "optimizer_lr": float(group["lr"]),
    }


def _runs_foreach(group: dict[str, Any]) -> bool:
    """Whether the optimizer takes all parameters at once; where the group says None, torch decides as is done here."""
    from torch.optim.optimizer import _default_to_fused_or_foreach

    if group.get("foreach") is not None or group.get("fused"):
        return bool(group.get("foreach"))
    _, foreach = _default_to_fused_or_foreach(group["params"], differentiable=False, use_fused=False)
    return foreach
