"""`python -m sweeper.worker --check`: trials as JSON on standard input, a JSON list of problems as the last line out.

Only the libraries that the trials need are imported; a custom factory is called once with its batch size.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator

import torch

from sweeper.errors import nearest
from sweeper.trial import Model, Trial

LISTS = {
    "options": "python -c 'import torch; print(*torch._inductor.list_options(), sep=\"\\n\")'",
    "torchvision": "python -c 'import torchvision; print(*torchvision.models.list_models(), sep=\"\\n\")'",
    "timm": "python -c 'import timm; print(*timm.list_models(), sep=\"\\n\")'",
    "transformers": "the model classes of `transformers`, e.g. BertForMaskedLM",
}


def main() -> int:
    trials = [Trial.from_json(data) for data in json.load(sys.stdin)]
    with contextlib.redirect_stdout(sys.stderr):  # a factory may print
        problems = list(dict.fromkeys(_problems(trials)))
    print(json.dumps(problems))
    return 0


def _problems(trials: Iterable[Trial]) -> Iterator[str]:
    """Every distinct thing that is wrong; each model and option is asked for once."""
    trials = list(trials)
    if any(trial.device == "cuda" for trial in trials) and not torch.cuda.is_available():
        yield f"torch {torch.__version__} cannot use the GPU: install torch's CUDA build, or take device=cpu"
        return
    yield from _option_problems({key for trial in trials for key in trial.compile.options})
    seen: list[tuple[Model, int]] = []
    for trial in trials:
        if (trial.model, trial.batch_size) not in seen:
            seen.append((trial.model, trial.batch_size))
            yield from _model_problems(trial)


def _option_problems(keys: set[str]) -> Iterator[str]:
    if not keys:
        return
    known = torch._inductor.list_options()
    for key in sorted(keys - set(known)):
        yield f"compile.options.{key}: no such Inductor option; {nearest(key, known)}\nall options: {LISTS['options']}"


def _model_problems(trial: Trial) -> Iterator[str]:
    from sweeper.worker.models import builder

    model = trial.model
    if model.library == "custom":
        yield from _factory_problems(trial)
        return
    try:
        names = builder(model.library).names()
    except ImportError as error:
        yield f"model.library={model.library}: cannot be imported: {error}"
        return
    if model.name not in names:
        hint = f"{nearest(model.name, names)}\nall models: {LISTS[model.library]}"
        yield f"model.name={model.name}: {model.library} has no such model; {hint}"


def _factory_problems(trial: Trial) -> Iterator[str]:
    from sweeper.worker.models.custom_models import find_factory, parts

    try:
        factory = find_factory(trial.model.name)
    except ValueError as error:
        yield str(error)
        return
    try:
        returned = factory(trial.batch_size, torch.device(trial.device))
    except Exception as error:  # noqa: BLE001  # a user's factory may raise anything, and that is the answer
        yield f"model.factory={trial.model.name}: calling it failed: {type(error).__name__}: {error}"
        return
    try:
        parts(returned, trial.model.name)
    except ValueError as error:
        yield str(error)
