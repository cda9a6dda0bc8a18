"""Ablations: a trial, and trials of the same model that differ from it in one feature of the
compiler alone.

A feature is a name and settings of torch, relative to torch's defaults: they turn off what is on,
or turn on what is off. What the settings do is said in torch/_inductor/config.py and
torch/_functorch/config.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .serialization import Json
from .trial import Trial

GRAPHS = "triton.cudagraphs"


@dataclass(frozen=True)
class Feature:
    """A part of the compiler that can be left out, or added."""

    title: str
    settings: Mapping[str, Json]  # by their keys below `compile`
    adds: bool = False  # off by default, and the settings turn it on
    device: str | None = None  # the only type of device that has it
    in_code: bool = True  # whether generated code that is the same means that it has no effect


def _without(title: str, key: str, value: Json = False, device: str | None = None) -> Feature:
    return Feature(title, {f"options.{key}": value}, device=device)


def _with(title: str, key: str, value: Json = True, device: str | None = None) -> Feature:
    return Feature(title, {f"options.{key}": value}, adds=True, device=device)


FEATURES = {
    "pattern_matcher": _without("pattern matcher", "pattern_matcher"),
    "epilogue_fusion": _without("epilogue fusion", "epilogue_fusion"),
    "prologue_fusion": _without("prologue fusion", "prologue_fusion"),
    "mix_order_reduction": _without(
        "mix-order reduction", "triton.mix_order_reduction", device="cuda"
    ),
    "combo_kernels": _with("combo kernels", "combo_kernels"),
    "comprehensive_padding": _without("comprehensive padding", "comprehensive_padding"),
    "layout_optimization": _without("layout optimization", "layout_optimization"),
    "coordinate_descent": _with(
        "coordinate descent tuning", "coordinate_descent_tuning", device="cuda"
    ),
    "autotuned_gemm": _with("max-autotune of GEMM", "max_autotune_gemm"),
    "autotuned_pointwise": _with(
        "max-autotune of pointwise", "max_autotune_pointwise", device="cuda"
    ),
    "cuda_graphs": Feature(
        "CUDA graphs", {f"options.{GRAPHS}": True}, adds=True, device="cuda", in_code=False
    ),
    "undivided_cuda_graphs": Feature(
        "CUDA graphs without partitions",
        {f"options.{GRAPHS}": True, "options.graph_partition": False},
        adds=True,
        device="cuda",
        in_code=False,
    ),
    "own_random_numbers": _without("random numbers of its own", "fallback_random", True),
    "lowerings": _without("lowerings", "fallback_by_default", True),
    "decompositions": _without("decompositions", "selective_decompose", True),
    "precision_casts": Feature("eager's precision casts", {"precision_casts": True}, adds=True),
    "strict_numerics": _with("numerics=strict", "numerics", "strict"),
    "memory_budget": Feature("memory budget of 0.5", {"memory_budget": 0.5}, adds=True),
    "dynamic": Feature("dynamic shapes", {"dynamic": True}, adds=True),
}


def change(trial: Trial, name: str) -> Trial:
    """Make the trial of a feature, to be compared with this one."""
    compiling = trial.compile
    for key, value in FEATURES[name].settings.items():
        place, _, setting = key.partition(".")
        changed: Any = value
        if setting:
            changed = {**getattr(compiling, place), setting: value}
        compiling = replace(compiling, **{place: changed})
    labels = replace(trial.labels, feature=name, default_id=trial.id)
    return replace(trial, labels=labels, compile=compiling)


def explain_not_for(trial: Trial) -> str | None:
    """Say why the feature of a trial cannot be left out or added; None where it can."""
    name = trial.labels.feature
    if name is None:
        return None
    if trial.mode == "eager":
        return f"feature={name} is for what torch.compile makes: take mode=default"
    if trial.backend != "inductor":
        return f"feature={name} is for backend=inductor, which has the features"
    needed = FEATURES[name].device
    if needed not in (None, trial.device):
        return f"feature={name} is for device={needed}"
    return None
