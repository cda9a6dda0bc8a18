"""An axis is a field in `core/trial.py`, and is seen everywhere: in a copy of the package that has
one more in each part of a trial.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest
from checkout import ROOT, SUPPORT

FIELD = """    # the colour of everything, in both arms
    colour: str = axis("red", choices=("red", "blue"))
"""
LOOK = """
import json, sys
import format_docs
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from records import make_record
from sweeper.analysis.derive import derive
from sweeper.compare.pairs import COMPARED
from sweeper.config.grid import make_repository, split_off_hydra
from sweeper.config.help import write_help
from sweeper.config.reference import read_keys
from sweeper.config.schema import conf_folder
from sweeper.core.errors import ConfigError
from sweeper.core.serialization import from_json, to_json
from sweeper.core.trial import OF_COMPILING, Trial
from sweeper.sweep.hydra_app import read_point
from sweeper.tracking.runs import build_view

def read(*overrides, model="bert_base"):
    overrides = ["sweep=x", "device=cpu", f"model={model}", *overrides]
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        cfg = compose("config", overrides, return_hydra_config=True)
        files = make_repository(GlobalHydra.instance().config_loader(), cfg.hydra)
        return read_point(split_off_hydra(cfg, overrides), files).trial

def refuse(override, model):
    try:
        read(override, model=model)
    except ConfigError as error:
        return str(error)

def find_eager_step(trial):
    return trial.key_without("batch_size", *OF_COMPILING)

def look(key):
    blue = read(f"{key}=blue")
    record = make_record(trial=blue)
    return {
        "known": (plain.id, read(f"{key}=red").id),
        "id": blue.id,
        "stored": from_json(Trial, to_json(blue)) == blue,
        "variant": blue.variant,
        "params": dict(build_view(record, derive(record), "night", "parent").params),
        "own_eager_step": find_eager_step(plain) != find_eager_step(blue),
        "compared": key in COMPARED,
        "help": write_help([key]),
        "values": read_keys()[key].values,
        "wrong": refuse(f"{key}=green", "bert_base"),
        "of_script": refuse(f"{key}=blue", "script"),
    }

plain = read()
found = {key: look(key) for key in sys.argv[1:]}
found["docs"] = [line for line in format_docs.text().splitlines() if "`colour`" in line]
json.dump(found, sys.stdout)
"""

pytestmark = pytest.mark.xdist_group("one axis")  # which share what takes seconds to make


# keys, and how the line begins below which each is declared
AXES = {
    "colour": "cudnn_benchmark: ",
    "compile.colour": "precision_casts: ",
    "model.colour": "cast: ",
    "precision.colour": "float8: ",
    "text.colour": "labels: bool",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a copy of the package says of each axis."""
    folder = tmp_path_factory.mktemp("copy")
    for part in ("sweeper", "hydra_plugins", "conf"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "sweeper" / "core" / "trial.py"
    text = file.read_text()
    for above in AXES.values():
        text, count = re.subn(rf"(?m)^    {above}.*\n", rf"\g<0>{FIELD}", text)
        assert count == 1
    file.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *AXES],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (folder, SUPPORT)))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("key", AXES)
def test_an_axis_is_declared_once(found: dict[str, Any], key: str) -> None:
    axis = found[key]
    old, unchanged = axis["known"]
    assert (old, axis["id"] == old, axis["stored"]) == (unchanged, False, True)
    assert axis["variant"] == axis["params"]["variant"] == f"{key}=blue"
    assert axis["params"].get(key, "blue") == "blue"
    is_of_compile = key.startswith("compile.")
    assert (axis["own_eager_step"], axis["compared"]) == (not is_of_compile, is_of_compile)
    assert f"{key}=red" in axis["help"] or key == "model.colour"  # each model has its own default
    assert "[red, blue] the colour of everything, in both arms" in " ".join(axis["help"].split())
    assert axis["values"] == ["red", "blue"]
    assert axis["wrong"] == f"{key}=green: allowed are red, blue"
    if not is_of_compile:
        assert f"{key}=blue: with model=script the script decides this" in axis["of_script"]


def test_the_page_of_formats_has_every_axis(found: dict[str, Any]) -> None:
    row = "| `colour` | text | the colour of everything, in both arms |"
    assert found["docs"] == [row] * len(AXES)
