"""Trials as people tell them apart: their axes, their names and their order."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial

from sweeper.core.trial import MODES, Trial
from sweeper.loading.entries import Entry
from sweeper.report.columns import cell
from sweeper.report.columns.cell import Value
from sweeper.report.columns.formats import join

# Shown only where trials differ. What all of them have in common stands above a table.
COMMON_AXES = ("workload", "backend", "batch_size", "variant")
TRIAL_AXES = (*COMMON_AXES, "sweep")
NAMING_AXES = ("precision", "mode", *TRIAL_AXES)


@lru_cache(maxsize=2**16)
def name_sweep(entry: Entry) -> str:
    """Return the name of the folder itself; resolving every path takes ten times as long as asking
    for a link.
    """
    folder = entry.sweep
    if folder.is_symlink() or folder.name in ("", ".."):
        return folder.resolve().name
    return folder.name


AXES: Mapping[str, Callable[[Entry], Value]] = {
    "model": lambda entry: entry.trial.labels.model,
    "suite": lambda entry: entry.trial.labels.suite,
    "workload": lambda entry: entry.trial.workload,
    "mode": lambda entry: entry.trial.mode,
    "backend": lambda entry: entry.trial.backend,
    "precision": lambda entry: entry.trial.labels.precision,
    "batch_size": lambda entry: entry.record.known_batch_size,
    "variant": lambda entry: entry.variant,
    "sweep": name_sweep,
}


@lru_cache(maxsize=2**16)  # figures, tables and legend name each trial again and again
def show_axis(entry: Entry, name: str) -> str:
    """Show the value of a trial on the axis `name`; empty where it has none."""
    return cell.show(AXES[name](entry))


def show_axes(entry: Entry, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(partial(show_axis, entry), names))


def find_varying(entries: Sequence[Entry], names: Iterable[str]) -> list[str]:
    """Return the axes, of those in `names`, in which trials differ."""
    return [name for name in names if len(set(map(AXES[name], entries))) > 1]


def name_by(entry: Entry, axes: Iterable[str]) -> str:
    """Name a trial by its model and its values of `axes`, e.g. `resnet50 amp`."""
    return join(show_axes(entry, ("model", *axes)), " ")


def name_trial(entry: Entry, axes: Iterable[str]) -> str:
    """Name a trial by its model, precision and mode and its values of `axes`, e.g. `resnet50 amp
    default`.
    """
    return name_by(entry, ("precision", "mode", *axes))


def name_common_axes(entries: Sequence[Entry]) -> str:
    """Name the axes that all trials have in common, e.g. `train, inductor, batch 32`; there is one
    trial at least.
    """
    varying = find_varying(entries, COMMON_AXES)
    names = []
    for name in COMMON_AXES:
        value = show_axis(entries[0], name)
        if value and name not in varying:
            names.append(f"batch {value}" if name == "batch_size" else value)
    return ", ".join(names)


def rank_mode(mode: str | None) -> int:
    """Number the modes from mild to aggressive; unknown ones come last."""
    if mode in MODES:
        return MODES.index(mode)
    return len(MODES)


def rank_trial(entry: Entry) -> tuple[str | int, ...]:
    """Put trials of one model together, modes from mild to aggressive."""
    return (
        *show_axes(entry, ("model", "workload")),
        entry.record.known_batch_size or 0,
        *show_axes(entry, ("variant", "precision")),
        rank_mode(entry.trial.mode),
        *show_axes(entry, ("mode", "backend")),
    )


def list_compile_arguments(trial: Trial) -> tuple[list[str], list[str]]:
    """Write what Python needs to compile as a trial does: lines before the call of `torch.compile`
    or `Module.compile`, and the arguments of the call.
    """
    asked, mode = trial.compile, trial.mode
    options, arguments, lines = asked.read_settings("options"), [], []
    if trial.backend != "inductor":
        arguments.append(f"backend={trial.backend!r}")
    if asked.dynamic is not None:
        arguments.append(f"dynamic={asked.dynamic}")
    if asked.fullgraph:
        arguments.append("fullgraph=True")
    if options and mode != "default":  # torch takes one of them
        arguments.append(f"options=torch._inductor.list_mode_options({mode!r}) | {options}")
    elif options:
        arguments.append(f"options={options}")
    elif mode != "default":
        arguments.append(f"mode={mode!r}")
    for place in ("dynamo", "functorch"):
        for key, value in asked.read_settings(place).items():
            lines.append(f"torch._{place}.config.{key} = {value!r}")
    return lines, arguments
