"""The ladder: eager as built, with free one-liners, with a CUDA graph recorded by hand, and
compiled on top of these.

A rung is a trial. It has the one-liners of the rungs before it, as far as they apply to its model.
The compiled rungs do without the graph by hand, since their modes decide about graphs.
"""

from dataclasses import replace
from typing import Any

from .backends import GRAPHED, NO_CUDA_GRAPHS
from .libraries import LIBRARIES
from .trial import BUNDLED_RUNGS, CACHED, Compile, Trial

EAGER = "eager"
# titles, in the order in which they are added, each to those before it; they hold for both arms
ONE_LINERS = {
    "channels_last": "eager + channels_last",
    "fused": "eager + fused optimizer",
    "cudnn_benchmark": "eager + cudnn.benchmark",
}
EAGER_RUNGS = (EAGER, *ONE_LINERS)
COMPILED_RUNGS = tuple(rung for rung in BUNDLED_RUNGS if rung != GRAPHED)  # modes of torch.compile
RUNGS = (*EAGER_RUNGS, *BUNDLED_RUNGS)
TITLES = {
    EAGER: "eager",
    **ONE_LINERS,
    GRAPHED: "eager + CUDA graph by hand",
    **{mode: f"compile {mode}" for mode in COMPILED_RUNGS},
}


def list_eager_variants(plain: Trial) -> list[str]:
    """List the rungs without torch.compile that apply to a trial."""
    return [rung for rung in (*EAGER_RUNGS, GRAPHED) if not explain_not_for(plain, rung)]


def climb(plain: Trial, rung: str) -> Trial:
    """Make the trial of a rung; `plain` has none of the one-liners and mode=default.

    Its compile settings are for torch.compile: the rungs without it leave them out.
    """
    before = RUNGS[: RUNGS.index(rung)]
    # its own one-liner, also where that makes no sense, and those before it that apply
    added = [rung, *(name for name in before if not explain_not_for(plain, name))]
    axes: dict[str, Any] = {"mode": rung, "backend": "inductor"}
    if rung in EAGER_RUNGS:
        axes = {"mode": "eager", "backend": None, "compile": Compile()}
    elif rung == GRAPHED:
        axes = {"mode": "default", "backend": GRAPHED, "compile": Compile()}
    overrides = [plain.labels.overrides]
    if "channels_last" in added:
        axes["model"] = replace(plain.model, memory_format="channels_last")
        if rung not in BUNDLED_RUNGS:
            overrides.append("model.memory_format=channels_last")
    if "fused" in added:
        axes["optimizer_impl"] = "fused"
    if "cudnn_benchmark" in added:
        axes["cudnn_benchmark"] = True
    labels = replace(plain.labels, rung=rung, overrides="; ".join(filter(None, overrides)))
    return replace(plain, labels=labels, **axes)


def explain_not_for(trial: Trial, rung: str) -> str | None:
    """Say why a rung does not apply to a trial; None where it does. Later rungs go without it."""
    if rung == GRAPHED:
        if trial.device == "cpu":
            return f"rung={rung} is for a GPU, {NO_CUDA_GRAPHS}"
        return explain_not_by_hand(trial, GRAPHED)
    needs = ""
    convolutional = ["cnn", "diffusion"]
    if "image_size" in LIBRARIES[trial.model.library].input_sizes:
        convolutional.append("other")  # a family that is not known
    if rung in ("channels_last", "cudnn_benchmark") and trial.labels.family not in convolutional:
        known = f"{trial.labels.model} has model.family={trial.labels.family}"
        needs = f"convolutional networks, and {known}"
    elif rung == "cudnn_benchmark" and trial.device == "cpu":
        needs = "a GPU, with device=cpu no operation runs in cuDNN"
    elif rung == "fused" and trial.optimizer == "none":
        needs = "a step with an optimizer"
    return f"rung={rung} is for {needs}: later rungs go without it" if needs else None


def explain_not_by_hand(trial: Trial, backend: str) -> str | None:
    """Say why a backend without torch.compile cannot convert a trial's model; None where that may
    be tried.
    """
    if trial.vary and backend == GRAPHED:
        return (
            f"backend={GRAPHED} records a graph of one size, and vary.{next(iter(trial.vary))} "
            "gives several"
        )
    if trial.workload in CACHED:
        return (
            f"backend={backend} runs the model to convert it, which moves the cache of "
            f"workload={trial.workload} on"
        )
    return None
