"""A step, which both arms repeat. Training: zero_grad, forward under autocast, loss, backward,
optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import Optimizer, _default_to_fused_or_foreach

from sweeper.core.serialization import Json
from sweeper.core.trial import CACHED, Trial
from sweeper.worker.models import Built, read_attention, read_memory_format
from sweeper.worker.models.batches import Batch, name_format

# Of Adam. A step takes as long with any; torch's 1e-3 let MobileBERT diverge within 32 steps.
LEARNING_RATE = 1e-5
SCALE = 2.0**16  # with which torch's scaler begins
SCALER_GROWTH_INTERVAL = 1 << 30  # the scale only falls, so that no timed step is one of growth
Module = Callable[..., object]  # the built module, or its compiled form
Context = Callable[[], AbstractContextManager[object]]


class Numerics(NamedTuple):
    """Number formats of a trial on its device."""

    device: torch.device
    autocast: torch.dtype | None
    scaler: bool

    @staticmethod
    def choose(trial: Trial, device: torch.device) -> Numerics:
        """Choose the autocast type that the device has, and set torch's flags for TF32 and cuDNN as
        the trial asks.
        """
        precision = trial.precision
        if precision.tf32 is not None:
            torch.backends.cuda.matmul.allow_tf32 = precision.tf32
            torch.backends.cudnn.allow_tf32 = precision.tf32
        if trial.cudnn_benchmark:
            torch.backends.cudnn.benchmark = True
        if precision.autocast is None:
            return Numerics(device, None, False)
        has_bfloat16 = device.type != "cuda" or torch.cuda.is_bf16_supported(
            including_emulation=False
        )
        name = precision.autocast
        if name == "auto":
            name = "bfloat16" if has_bfloat16 else "float16"
        scaler = precision.grad_scaler and name == "float16" and trial.workload == "train"
        return Numerics(device, getattr(torch, name), scaler)

    def context(self) -> AbstractContextManager[object]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast)

    def make_scaler(self) -> torch.amp.GradScaler | None:
        if not self.scaler:
            return None
        return torch.amp.GradScaler(self.device.type, growth_interval=SCALER_GROWTH_INTERVAL)


def make_optimizer(trial: Trial, module: torch.nn.Module, scaler: bool) -> Optimizer | None:
    """An optimizer with torch's defaults, except for Adam's learning rate and SGD's momentum of
    0.9.

    The labels are random, so the rate is one that keeps a model near where it was built. By default
    Adam is fused with a gradient scaler; without that each step would wait for the GPU.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if trial.optimizer == "none" or not parameters:
        return None
    implementation = trial.optimizer_impl
    if implementation == "default" and scaler and trial.optimizer != "sgd":
        implementation = "fused"
    chosen: dict[str, Any] = {} if implementation == "default" else {implementation: True}
    if trial.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, **chosen)
    adam = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[trial.optimizer]
    return adam(parameters, lr=LEARNING_RATE, **chosen)  # type: ignore[no-any-return]


def make_step(
    trial: Trial,
    built: Built,
    module: Module,
    optimizer: Optimizer | None,
    scaler: torch.amp.GradScaler | None = None,
    context: Context = nullcontext,
) -> Callable[[Batch], object]:
    """A step of the trial's workload."""
    if trial.workload in CACHED:
        return make_cached_step(built, module, context)
    if trial.workload != "train":
        return make_inference_step(module, context)
    return make_training_step(built, module, optimizer, scaler, context)


def make_training_step(
    built: Built,
    module: Module,
    optimizer: Optimizer | None,
    scaler: torch.amp.GradScaler | None,
    context: Context,
) -> Callable[[Batch], torch.Tensor]:
    """One training step, which gives the loss."""
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


def make_inference_step(module: Module, context: Context) -> Callable[[Batch], object]:
    """One forward under `inference_mode`, which gives the model's output."""

    def step(batch: Batch) -> object:
        with torch.inference_mode(), context():
            return module(*batch.args, **batch.kwargs)

    return step


def make_cached_step(built: Built, module: Module, context: Context) -> Callable[[Batch], object]:
    """One forward from the fill level of the model's cache on, under `no_grad` as `generate` has
    it; gives logits.
    """

    def step(batch: Batch) -> object:
        built.set_back()
        with torch.no_grad(), context():
            return module(*batch.args, **batch.kwargs)

    return step


def describe_step(trial: Trial, built: Built, numerics: Numerics) -> dict[str, Json]:
    """What the record says of a step beside its optimizer."""
    autocast = numerics.autocast
    return {
        "autocast": name_format(autocast) if autocast else None,
        "grad_scaler": numerics.scaler,
        "dropout": trial.model.dropout,
        "text": built.text,
        "memory_format": read_memory_format(built.module),
        "attention": read_attention(built.module),
    }


def describe_optimizer(trial: Trial, optimizer: Optimizer | None) -> dict[str, Json]:
    """What the record says of the optimizer; where it is compiled each arm has one of its own, with
    equal settings.
    """
    if optimizer is None:
        return {"optimizer": None}
    group = optimizer.param_groups[0]
    foreach = group.get("foreach")
    if foreach is None and not group.get("fused"):  # torch decides, as here
        _, foreach = _default_to_fused_or_foreach(
            group["params"], differentiable=False, use_fused=False
        )
    return {
        "optimizer": type(optimizer).__name__,
        "optimizer_in_compiled_region": trial.compile.has_optimizer,
        "optimizer_fused": bool(group.get("fused")),
        "optimizer_capturable": bool(group.get("capturable")),
        "optimizer_foreach": bool(foreach),
        "optimizer_lr": float(group["lr"]),
    }
