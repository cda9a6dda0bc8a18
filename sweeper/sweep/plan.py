"""The plan of a sweep: which trials of a grid run, in which order, and which are left out and why.

Nothing here touches files or processes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from sweeper.core import ablation
from sweeper.core.backends import WITHOUT_DYNAMO, WITHOUT_MEMORY_BUDGET, WITHOUT_MODE
from sweeper.core.errors import ConfigError
from sweeper.core.ladder import explain_not_by_hand, explain_not_for
from sweeper.core.libraries import LIBRARIES, SCRIPT
from sweeper.core.serialization import drop_defaults
from sweeper.core.trial import AXES, CACHED, Trial, name_variants

# what a training in several processes takes of each of these axes
OF_SEVERAL = {
    "workload": ("train",),
    "optimizer": ("adam", "adamw", "sgd"),
    "compile.scope": ("model",),
    "compile.start": ("local_cache",),
}


@dataclass(frozen=True)
class LeftOut:
    """A trial of the grid that will not run."""

    trial: Trial
    reason: str
    finished: bool = False  # it has a record from an earlier run, which counts


@dataclass(frozen=True)
class Plan:
    """What a sweep does: `trials` in order, and the rest of the grid with reasons."""

    trials: tuple[Trial, ...]
    left_out: tuple[LeftOut, ...] = ()

    def without(self, lacks: Callable[[Trial], bool]) -> "Plan":
        """The plan without trials of which has been said that they cannot run."""
        return replace(self, trials=tuple(trial for trial in self.trials if not lacks(trial)))

    @property
    def has_features(self) -> bool:
        """Whether it is an ablation, of whose features the installed torch may lack some."""
        return any(trial.labels.feature for trial in self.trials)

    @property
    def finished(self) -> list[Trial]:
        """The trials that have a record from an earlier run, which counts."""
        return [item.trial for item in self.left_out if item.finished]


def make_plan(grid: Sequence[Trial], statuses: Mapping[str, str], retry: str = "failed") -> Plan:
    """Decide what to run of `grid`; `statuses` maps a trial's id to the status of its record that
    counts.

    Raises ConfigError when no combination of the grid can run, or a feature would have no default.
    """
    possible: dict[str, Trial] = {}
    left_out = []
    for trial in grid:
        if reason := explain_incompatible(trial):
            left_out.append(LeftOut(trial, reason))
        elif trial.id in possible:
            left_out.append(LeftOut(trial, f"the same experiment as {possible[trial.id].label}"))
        else:
            possible[trial.id] = trial
    if grid and not possible:
        raise ConfigError(left_out[0].reason)
    trials = list(possible.values())
    _check_weights(trials)
    _check_compared(trials, left_out)
    kept = []
    for trial in trials:
        status = statuses.get(trial.id)
        if status is None or retry == "all" or (retry != "none" and status != "ok"):
            kept.append(trial)
        else:
            left_out.append(LeftOut(trial, f"has a record: {status}", finished=True))
    return Plan(tuple(kept), tuple(left_out))


def _check_weights(trials: Sequence[Trial]) -> None:
    """Raise ConfigError where two precisions have one weight in one row of the summary, whose mean
    takes only one.
    """
    first: dict[tuple[str | None, ...], Trial] = {}
    for trial, variant in zip(trials, name_variants(trials), strict=True):
        name, weight = trial.labels.precision, trial.labels.weight
        if weight is None or trial.mode == "eager":
            continue
        row = (trial.device, trial.workload, trial.mode, trial.backend, variant, weight)
        other = first.setdefault(row, trial)
        if (name, trial.precision) == (other.labels.precision, other.precision):
            continue
        which = f"two settings of precision={name}"
        if name != other.labels.precision:
            which = f"precision={other.labels.precision} and precision={name}"
        raise ConfigError(
            f"{which} both carry the weight {weight}, which only one of them can have: make two "
            "sweeps of them and report each alone, or run one with precision.weight=null"
        )


def _check_compared(trials: Sequence[Trial], left_out: Sequence[LeftOut]) -> None:
    """Raise ConfigError where nothing is left of what was to be compared: a feature has no default,
    every feature is left out, or only scripts, which have one way to start, were asked for others.
    """
    ids = {trial.id for trial in trials}
    with_feature = [trial for trial in trials if trial.labels.feature]
    for trial in with_feature:
        if trial.labels.default_id not in ids:
            name = trial.labels.feature
            raise ConfigError(f"feature={name} is compared with feature=null: name both")
    only_scripts = all(trial.workload == SCRIPT for trial in trials)
    for item in left_out:
        lost_feature = not with_feature and item.trial.labels.feature
        lost_start = only_scripts and item.trial.compile.start != "local_cache"
        if lost_feature or lost_start:
            raise ConfigError(item.reason)


def explain_incompatible(trial: Trial) -> str | None:
    """Say why this combination of axes makes no sense; None if it does."""
    if trial.labels.rung and (reason := explain_not_for(trial, trial.labels.rung)):
        return reason
    if reason := ablation.explain_not_for(trial):
        return reason
    library = LIBRARIES[trial.model.library]
    if trial.workload in CACHED and not library.has_decoders:
        allowed = ", ".join(name for name, spec in LIBRARIES.items() if spec.has_decoders)
        return (
            f"workload={trial.workload} is for decoder language models of model.library={allowed}"
        )
    if trial.model.attention and not library.takes_attention:
        allowed = ", ".join(name for name, spec in LIBRARIES.items() if spec.takes_attention)
        return (
            f"model.attention is for model.library={allowed}; models of the others have one "
            "implementation"
        )
    asked, backend = trial.compile, f"backend={trial.backend}"
    scope = f"compile.scope={asked.scope}"
    if trial.workload == SCRIPT and asked.start != "local_cache":
        return (
            f"compile.start={asked.start} is for models: a script starts from torch's caches on "
            "disk, and its report has compile_cold_s and compile_warm_s; leave it out"
        )
    if trial.workload == SCRIPT and asked.scope != "model":
        return f"{scope}: a script's modules are compiled whole; leave compile.scope out"
    if trial.backend in WITHOUT_MODE and trial.mode != "default":
        return f"{backend} takes no mode, only inductor has some: use mode=default"
    if trial.backend in WITHOUT_MODE and asked.options:
        return f"{backend} takes no compile.options; they belong to backend=inductor"
    given = next(asked.list_overrides(), None)
    if trial.backend in WITHOUT_DYNAMO and given:
        return f"{backend} does without torch.compile and converts the model: it takes no {given}"
    if asked.fullgraph and asked.has_optimizer:
        where = "where an optimizer switches gradients off"
        if asked.scope == "step":
            where = "at backward and optimizer"
        return f"compile.fullgraph=true cannot go with {scope}: a step always breaks {where}"
    if trial.parallel != "none" and (reason := _explain_several(trial)):
        return reason
    if asked.wrapper == "outside" and trial.launch is None:
        return (
            "parallel.compile=outside is for parallel=ddp or fsdp2, and for model=script with "
            "model.launch"
        )
    if asked.scope in ("step", "optimizer", "loss") and trial.workload != "train":
        return f"{scope} is for workload=train: a step of {trial.workload} is the model's forward"
    if asked.scope == "optimizer" and trial.optimizer == "none":
        return f"{scope} with optimizer=none leaves nothing to compile; take optimizer=adam"
    for key in ("precision_casts", "start"):
        if trial.backend not in (None, "inductor") and key in drop_defaults(asked):
            return f"{backend} takes no compile.{key}, which is Inductor's: use backend=inductor"
    if asked.start == "aot_compile" and asked.scope != "model":
        return f"compile.start=aot_compile cannot go with {scope}: it compiles a whole model"
    if trial.backend in WITHOUT_DYNAMO and (reason := explain_not_by_hand(trial, trial.backend)):
        return reason
    return _explain_budget(trial) if asked.memory_budget is not None else None


def _explain_several(trial: Trial) -> str | None:
    """Say why a model cannot train in several processes so; None if it may."""
    for path, allowed in OF_SEVERAL.items():
        axis = AXES[path]
        if attrgetter(path)(trial) not in allowed:
            given = f"parallel={trial.parallel} cannot go with {axis.name}={axis.show(trial)}"
            return f"{given}: allowed are {', '.join(allowed)}"
    if trial.parallel == "fsdp2" and trial.model.memory_format != "contiguous":
        given = f"model.memory_format={trial.model.memory_format}"
        return f"parallel=fsdp2 cannot go with {given}: torch shards contiguous parameters alone"
    if trial.vary:
        return f"parallel={trial.parallel} takes batches of one size: leave vary out"
    if trial.labels.rung:
        return f"rung={trial.labels.rung} is for parallel=none: a ladder has one process"
    if trial.backend in WITHOUT_DYNAMO:
        return (
            f"backend={trial.backend} converts a model by hand, which parallel={trial.parallel} "
            "does not: use inductor"
        )
    return None


def _explain_budget(trial: Trial) -> str | None:
    """Say why a memory budget would change nothing; None if it may."""
    if trial.workload not in ("train", SCRIPT):
        return (
            f"compile.memory_budget is for workload=train: {trial.workload} saves nothing for "
            "backward"
        )
    if trial.compile.scope == "optimizer":
        return (
            "compile.memory_budget cannot go with compile.scope=optimizer, which saves nothing "
            "for backward"
        )
    if trial.backend in WITHOUT_MEMORY_BUDGET:
        return f"backend={trial.backend} does not heed compile.memory_budget: use backend=inductor"
    return None


def describe_plan(plan: Plan) -> list[str]:
    """Describe a plan for people: one line per trial, its id first, then what is left out and
    why.
    """
    lines = []
    for trial, variant in zip(plan.trials, name_variants(plan.trials), strict=True):
        shown = f"  [{variant}]" if variant else ""
        lines.append(f"{trial.id}  {trial.label}{shown}")
    if lines and plan.left_out:
        lines.append("")
    if plan.left_out:
        lines.append("left out:")
    for item in plan.left_out:
        lines.append(f"{item.trial.id}  {item.trial.label}: {item.reason}")
    return lines
