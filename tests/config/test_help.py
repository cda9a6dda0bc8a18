"""`--help`: every group and key, with what it takes and a line about it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sweeper.config.help import describe_versions, write_help
from sweeper.config.reference import (
    PURPOSES,
    list_default_options,
    list_options,
    read_keys,
)
from sweeper.config.schema import conf_folder
from sweeper.core.errors import ConfigError

CONF = [conf_folder()]


def test_every_key_of_the_schema_is_there_with_a_line_about_it() -> None:
    found = read_keys()
    assert not any(f"{group}.name" in found for group in PURPOSES if group != "model")
    assert [key.name for key in found.values() if not (key.comment or key.has_keys)] == []


@pytest.mark.parametrize("group", [group for group in PURPOSES if group != "model"])
def test_every_option_has_a_line_about_it(group: str) -> None:
    options = list_options(group, CONF)
    assert options
    assert [option for option, about in options.items() if not about] == []


def test_every_group_of_files_is_there() -> None:
    folders = {path.relative_to(CONF[0]).parts[0] for path in CONF[0].glob("*/*.yaml")}
    assert folders | {"hydra/launcher"} == set(PURPOSES)
    assert set(list_default_options()) & set(PURPOSES) <= set(PURPOSES)


def test_a_key_shows_its_default_and_what_is_allowed() -> None:
    found = read_keys()
    assert found["compile.scope"].values == ("model", "step", "blocks", "optimizer", "loss")
    assert (found["compile.scope"].default, found["dry_run"].values) == ("model", ("true", "false"))
    assert found["measure.rounds_s"].default == "3"  # of measure=trusted, not of the schema
    assert found["batch_size"].takes == "a whole number or null"
    assert found["vary.batch_size"].takes.startswith("a list of whole numbers")


def test_models_of_suites_are_behind_a_topic_of_their_own() -> None:
    assert "timm/lcnet_050" not in write_help([])
    assert "timm/lcnet_050" in write_help(["models"])
    assert "sweeper --help models" in write_help([])


def test_topics_are_groups_and_keys() -> None:
    assert "CUDA graphs: for steps" in write_help(["mode"])
    assert "compile.dynamic" in write_help(["compile"])
    assert "model.image_size" in write_help(["model.image_size"])
    with pytest.raises(ConfigError, match="nearest: backend"):
        write_help(["bakend"])


def test_models_of_the_user_are_listed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(
        "# python -m sweeper model=mine   (what I train)\nlibrary: custom\n"
    )
    (tmp_path / "model" / "bare.yaml").write_text("library: timm\nname: x\nbatch_size: 4\n")
    text = write_help(["models"], str(tmp_path))
    assert "what I train" in text
    assert "timm, x, batch 4" in text


def test_lines_are_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    keys_shown = write_help([]).partition("\nKeys:")[2].partition("\nFlags:")[0]
    assert max(len(line) for line in keys_shown.splitlines()[1:]) <= 80


def test_versions_are_those_of_the_packages() -> None:
    import torch

    assert re.match(r"sweeper \d+\.\d+\.\d+, Python 3\.", describe_versions())
    assert f"torch {torch.__version__}" in describe_versions()
