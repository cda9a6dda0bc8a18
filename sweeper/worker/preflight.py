"""`python -m sweeper.worker --check trials.jsonl answer.json`: what cannot be built here, and notes
on the rest.

Only the libraries that the trials need are imported.
"""

import importlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from sweeper.core import ablation
from sweeper.core.backends import AUTOTUNE, WITHOUT_MODE
from sweeper.core.errors import nearest
from sweeper.core.libraries import LIBRARIES, SCRIPT
from sweeper.core.protocol import AT, Preflight
from sweeper.core.serialization import Json, from_json, show_value, to_json
from sweeper.core.system.pipes import lend_streams
from sweeper.core.trial import OPEN_SETTINGS, Trial

from .compilation.ptxas import explain_second_ptxas
from .failures import UnavailableError
from .models import Examined, builder

CONFIGS = {  # torch's modules with the settings of each part of `OPEN_SETTINGS`
    "options": "torch._inductor.config",
    "dynamo": "torch._dynamo.config",
    "functorch": "torch._functorch.config",
}
ALL_SETTINGS = "python -c 'import {0}; print(*{0}.get_config_copy(), sep=\"\\n\")'"


def check(question: Path, answer: Path) -> None:
    """Read trials, a line each, and write the problems and the notes."""
    trials = [from_json(Trial, json.loads(line)) for line in question.read_text().splitlines()]
    lacking = _find_lacking(trials)
    trials = [trial for trial in trials if (trial.mode, trial.labels.feature) not in lacking]
    problems, notes = _examine(trials, question.with_name(AT))
    found = Preflight(tuple(dict.fromkeys(problems)), (*lacking.values(), *notes), tuple(lacking))
    answer.write_text(json.dumps(to_json(found)))


def _examine(trials: list[Trial], at: Path) -> tuple[list[str], list[str]]:
    """List everything that is wrong, and on which losses models train where a builder tells.

    Each model is looked at once, after the file `at` has named it.
    """
    if any(trial.device == "cuda" for trial in trials) and not torch.cuda.is_available():
        return [
            f"torch {torch.__version__} cannot use the GPU: install torch's CUDA build, or take "
            "device=cpu"
        ], []
    problems, notes = list(_setting_problems(trials)), []
    if any(map(_autotunes_templates, trials)) and (advice := explain_second_ptxas()):
        notes.append(advice)
    by_model = {
        (trial.model.key, trial.batch_size, trial.workload, trial.text): trial for trial in trials
    }
    for trial in by_model.values():
        at.write_text(f"{trial.model.library} {trial.model.name}")
        with lend_streams():
            found = _examine_model(trial)
        problems += found.problems
        if found.loss:
            notes.append(f"loss of {trial.model.name}: {found.loss}")
    # after the models, whose modules may register some
    return [*problems, *_backend_problems(trials)], notes


def _autotunes_templates(trial: Trial) -> bool:
    """Whether Inductor tries kernels of its own against those of libraries on a GPU."""
    if trial.device != "cuda" or trial.backend != "inductor":
        return False
    options = trial.compile.options
    return trial.mode.startswith("max-autotune") or any(map(options.get, AUTOTUNE))


def _backend_problems(trials: Iterable[Trial]) -> Iterator[str]:
    """List backends that are not known. A known one that is missing here makes its trials
    `unavailable`, and a script may register its own.
    """
    asked = {trial.backend: trial for trial in trials if trial.workload != SCRIPT}
    for name, trial in asked.items():
        if name is None or name == "inductor" or name in WITHOUT_MODE:
            continue
        from .compilation import backends  # takes as long as torch

        try:
            backends.require(name, trial.workload, trial.device)
        except UnavailableError as error:
            yield f"backend.name={name}: {error}"


def _find_lacking(trials: Iterable[Trial]) -> dict[tuple[str, str], str]:
    """Find the features of an ablation that the installed torch has no setting for, or has as they
    would make it in a mode, with a note about each.
    """
    lacking = {}
    for trial in trials:
        name, mode = trial.labels.feature, trial.mode
        if name and (problem := _explain_lacking(ablation.FEATURES[name], mode)):
            lacking[mode, name] = f"feature={name} is left out: {problem}"
    return lacking


def _explain_lacking(feature: ablation.Feature, mode: str) -> str | None:
    """Say why a feature changes nothing of the installed torch; None where it may."""
    place, _, setting = feature.key.partition(".")
    if place not in CONFIGS:
        return None
    for reason in _explain_setting(place, setting, feature.value):
        return f"compile.{feature.key}{reason}"
    usual = _import_config(place).get_config_copy()
    usual |= torch._inductor.list_mode_options().get(mode, {})
    if usual[setting] == feature.value:
        return f"torch {torch.__version__} already does so by default in mode={mode}"
    return None


def _setting_problems(trials: Iterable[Trial]) -> Iterator[str]:
    """List settings of the compiler that do not exist, and values that they cannot have."""
    for trial in trials:
        for place in OPEN_SETTINGS:
            for key, value in trial.compile.read_settings(place).items():
                if problem := "; ".join(_explain_setting(place, key, value)):
                    yield f"compile.{place}.{key}{problem}"


def _explain_setting(place: str, key: str, value: Json) -> Iterator[str]:
    """Say why the installed torch cannot have a setting, and then what to take; nothing where it
    can.
    """
    config = _import_config(place)
    known = config.get_config_copy()
    if key not in known:
        yield f": torch {torch.__version__} has no such setting"
        yield f"{nearest(key, known)}\nall settings: {ALL_SETTINGS.format(CONFIGS[place])}"
        return
    kind = config.get_type(key)
    if type(kind) is type and not isinstance(value, kind):
        yield f"={show_value(value)}: it must be a {kind.__name__}, torch has {known[key]!r}"


def _import_config(place: str) -> Any:
    """Import the module with the settings: with the compiler it takes as long as torch."""
    return importlib.import_module(CONFIGS[place])


def _examine_model(trial: Trial) -> Examined:
    model = trial.model
    try:
        library = builder(model.library)
    except ImportError as error:
        return Examined([f"model.library={model.library}: cannot be imported: {error}"])
    if (names := library.names()) is None or model.name in names:
        return library.examine(trial)
    hint = f"{nearest(model.name, names)}\nall models: {LIBRARIES[model.library].all_models}"
    return Examined([f"model.name={model.name}: {model.library} has no such model; {hint}"])
