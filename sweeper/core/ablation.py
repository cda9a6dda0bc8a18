"""Ablations: a trial, and trials of the same model that differ from it in one feature of the
compiler alone.

A feature is a name and a setting of torch, relative to torch's default: it turns off what is on, or
turns on what is off. What the settings do is said in torch/_inductor/config.py and
torch/_functorch/config.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from .serialization import Json
from .trial import Trial


@dataclass(frozen=True)
class Feature:
    """A part of the compiler that can be left out, or added."""

    title: str
    usual: str  # whether torch has it `on` or `off` by default
    key: str  # of the setting that turns it off or on, below `compile`
    value: Json
    device: str | None = None  # the only type of device that has it
    in_code: bool = True  # whether generated code that is the same means that it has no effect


FEATURES = {  # those that compile longest first
    "coordinate_descent": Feature(
        "coordinate descent tuning", "off", "options.coordinate_descent_tuning", True, "cuda"
    ),
    "dynamic": Feature("dynamic shapes", "off", "dynamic", True),
    "autotuned_gemm": Feature("max-autotune of GEMM", "off", "options.max_autotune_gemm", True),
    "autotuned_pointwise": Feature(
        "max-autotune of pointwise", "off", "options.max_autotune_pointwise", True, "cuda"
    ),
    "memory_budget": Feature("memory budget of 0.5", "off", "memory_budget", 0.5),
    "cuda_graphs": Feature(
        "CUDA graphs", "off", "options.triton.cudagraphs", True, "cuda", in_code=False
    ),
    "lowerings": Feature("lowerings", "on", "options.fallback_by_default", True),
    "layout_optimization": Feature(
        "layout optimization", "on", "options.layout_optimization", False
    ),
    "pattern_matcher": Feature("pattern matcher", "on", "options.pattern_matcher", False),
    "epilogue_fusion": Feature("epilogue fusion", "on", "options.epilogue_fusion", False),
    "prologue_fusion": Feature("prologue fusion", "on", "options.prologue_fusion", False),
    "mix_order_reduction": Feature(
        "mix-order reduction", "on", "options.triton.mix_order_reduction", False, "cuda"
    ),
    "combo_kernels": Feature("combo kernels", "off", "options.combo_kernels", True),
    "comprehensive_padding": Feature(
        "comprehensive padding", "on", "options.comprehensive_padding", False
    ),
    "own_random_numbers": Feature(
        "random numbers of its own", "on", "options.fallback_random", True
    ),
    "decompositions": Feature("decompositions", "on", "options.selective_decompose", True),
    "precision_casts": Feature("eager's precision casts", "off", "precision_casts", True),
    "strict_numerics": Feature("numerics=strict", "off", "options.numerics", "strict"),
}


def change(trial: Trial, name: str) -> Trial:
    """Make the trial of a feature, to be compared with this one."""
    feature = FEATURES[name]
    place, _, setting = feature.key.partition(".")
    changed: Any = feature.value
    if setting:
        changed = {**getattr(trial.compile, place), setting: changed}
    compiling = replace(trial.compile, **{place: changed})
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


def group_by_default(trials: Iterable[Trial]) -> dict[str, set[str]]:
    """Group the features of trials by the id of the default that they are compared with."""
    features: dict[str, set[str]] = {}
    for trial in trials:
        if trial.labels.feature and trial.labels.default_id:
            features.setdefault(trial.labels.default_id, set()).add(trial.labels.feature)
    return features
