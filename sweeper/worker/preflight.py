"""`python -m sweeper.worker --check trials.json answer.json`: what cannot be built here, and notes
on the rest.

Only the libraries that the trials need are imported.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from sweeper.core.errors import nearest
from sweeper.core.libraries import LIBRARIES
from sweeper.core.protocol import AT, Preflight
from sweeper.core.serialization import to_json
from sweeper.core.trial import Trial

from .models import Examined, builder

ALL_OPTIONS = "python -c 'import torch; print(*torch._inductor.list_options(), sep=\"\\n\")'"


def check(question: Path, answer: Path) -> None:
    """Read trials, and write the problems, and the notes where there is no problem."""
    trials = [Trial.from_json(data) for data in json.loads(question.read_text())]
    problems, notes = (
        tuple(dict.fromkeys(lines)) for lines in _examine(trials, question.with_name(AT))
    )
    found = Preflight(problems, () if problems else notes)
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
    problems, notes = list(_option_problems(trials)), []
    by_model = {
        (trial.model.key, trial.batch_size, trial.workload, trial.text): trial for trial in trials
    }
    for trial in by_model.values():
        at.write_text(f"{trial.model.library} {trial.model.name}")
        found = _examine_model(trial)
        problems += found.problems
        if found.loss:
            notes.append(f"loss of {trial.model.name}: {found.loss}")
    return problems, notes


def _option_problems(trials: Iterable[Trial]) -> Iterator[str]:
    """List Inductor options that do not exist, and values that they cannot have."""
    with_options = [trial for trial in trials if trial.compile.options]
    if not with_options:  # importing the compiler takes as long as importing torch
        return
    from sweeper.worker.compilation.compiler import compile_arguments

    known = set(torch._inductor.list_options())
    for trial in with_options:
        if unknown := sorted(trial.compile.options.keys() - known):
            hint = f"{nearest(unknown[0], known)}\nall options: {ALL_OPTIONS}"
            yield f"compile.options.{unknown[0]}: no such Inductor option; {hint}"
        else:
            try:
                # compiles nothing before it is called
                torch.compile(lambda: None, **compile_arguments(trial))
            except (RuntimeError, TypeError, ValueError) as error:
                yield f"compile.options: {error}"


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
