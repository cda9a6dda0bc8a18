"""What it takes to add a library of models: a builder module and an entry of `LIBRARIES`, and no
other change.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir

import sweeper
from sweeper.config.reader import read
from sweeper.config.schema import conf_folder
from sweeper.core.errors import ConfigError
from sweeper.core.libraries import LIBRARIES, LibrarySpec
from sweeper.core.serialization import _reader_of, to_json
from sweeper.core.trial import Trial
from sweeper.worker import models
from sweeper.worker.monitoring import environment
from sweeper.worker.preflight import check
from sweeper.worker.probe import list_software

BUILDER = """
import torch

from sweeper.worker.models import Examined, build_classifier


def names():
    return ["vase", "bowl"]


def examine(trial):
    unlucky = trial.model.num_classes == 13
    problems = ["model.num_classes=13: no pottery has so many"] if unlucky else []
    return Examined(problems, loss="weight of the clay")


def load(model):
    pass


def build(trial, device):
    side = trial.model.image_size or 8
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * side * side, 5)).to(device)
    return build_classifier(module, trial, 8, 5, device)
"""
# Suites of other people's benchmarks that are called like libraries.
NAMES_OF_SUITES = "report/published.py"


@pytest.fixture(autouse=True)
def pottery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "pottery_builder.py").write_text(BUILDER)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = LibrarySpec(
        builder="pottery_builder",
        example="model.name=vase",
        all_models="the potter's shelf",
        packages=("pytest",),  # any that is installed
        input_sizes=("image_size",),
    )
    monkeypatch.setitem(LIBRARIES, "pottery", spec)
    _reader_of.cache_clear()  # as in a program that begins with this entry
    yield
    _reader_of.cache_clear()
    sys.modules.pop("pottery_builder", None)


def trial_of(*overrides: str) -> Trial:
    """What the configuration is read as."""
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        given = ["sweep=test", "device=cpu", "model=timm", "model.library=pottery", *overrides]
        cfg = compose("config", given)
    choices = {"model": "pottery", "precision": "fp32"}
    return read(cfg, choices, {"model": {}, "precision": {}}, gpu=False).trial


def checked(folder: Path, trial: Trial) -> dict[str, list[str]]:
    (folder / "trials.jsonl").write_text(json.dumps(to_json(trial)))
    check(folder / "trials.jsonl", folder / "answer.json")
    found: dict[str, list[str]] = json.loads((folder / "answer.json").read_text())
    return found


def test_configuration_knows_the_library_and_its_settings() -> None:
    model = trial_of("model.name=vase", "model.image_size=16", "model.sequence_length=64").model
    assert (model.library, model.name, model.image_size, model.sequence_length) == (
        "pottery",
        "vase",
        16,
        None,
    )


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ([], "e.g. model.name=vase"),
        (["model.name=vase", "vary.sequence_length=[8,4]"], "model.library=pottery has none"),
        (["model.name=vase", "model.checkpoint=x"], "model.checkpoint is for"),
        (["model.library=glass", "model.name=vase"], "pottery"),
    ],
    ids=["no name", "no such size", "no checkpoints", "among what is allowed"],
)
def test_configuration_says_what_the_library_takes(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        trial_of(*overrides)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["model.name=vaze"], "nearest: vase\nall models: the potter's shelf"),
        (["model.name=vase", "model.num_classes=13"], "no pottery has so many"),
    ],
)
def test_check_before_a_sweep_asks_the_builder(
    tmp_path: Path, overrides: list[str], says: str
) -> None:
    right = checked(tmp_path, trial_of("model.name=bowl"))
    assert right["problems"] == []
    assert right["notes"] == ["loss of bowl: weight of the clay"]
    found = checked(tmp_path, trial_of(*overrides))
    (problem,) = found["problems"]
    assert says in problem


def test_model_is_built_with_batches_whose_sizes_vary() -> None:
    built = models.build(
        trial_of("model.name=vase", "vary.batch_size=[4,2]"), 0, torch.device("cpu")
    )
    assert [batch.args[0].shape[0] for batch in built.batches] == [4, 2, 4, 2]
    batch = built.batches[0]
    assert torch.isfinite(built.loss(built.module(*batch.args), batch))


def test_version_of_its_package_is_in_records_and_told_by_doctor() -> None:
    version = importlib.metadata.version("pytest")
    assert environment.describe()["versions"]["pytest"] == version
    assert {part.name: part.version for part in list_software("cpu").parts}["pytest"] == version


def test_no_other_module_names_a_library() -> None:
    folder = Path(sweeper.__file__).parent
    files = {file.relative_to(folder).as_posix(): file for file in folder.glob("**/*.py")}
    naming = {
        name
        for name, file in files.items()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in LIBRARIES
    }
    builders = {name for name in files if name.startswith("worker/models/")}
    assert naming - builders == {"core/libraries.py", NAMES_OF_SUITES}
