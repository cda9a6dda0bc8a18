"""Which trials are compared with each other, and what else changed between two sweeps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from comparisons import MODELS, compare, measured, on, pair, two_sweeps, upgraded
from records import make_trial, write_sweep

from sweeper.compare.changes import (
    FactChange,
    count_changes,
    count_device_changes,
    describe_versions,
)
from sweeper.compare.pairs import Side, choose_values, make_side, match_sweeps, match_values
from sweeper.core.record import Record
from sweeper.core.trial import Compile


def lines(changes: Sequence[FactChange]) -> list[str]:
    return [change.line for change in changes]


def sides(*records: Record) -> list[Side]:
    return [make_side(record) for record in records]


def test_trials_match_by_content_and_interpreters_do_not_keep_them_apart() -> None:
    old = sides(measured(trial=make_trial(python="/old/bin/python")), measured("vgg16"))
    new = sides(measured(trial=make_trial(python="/new/bin/python")), measured("alexnet"))
    found = [
        (item.base and item.base.trial.python, item.head and item.head.trial.python)
        for item in match_sweeps(old, new)
    ]
    assert found == [("/old/bin/python", "/new/bin/python"), (None, None), (None, None)]
    assert [item.both is None for item in match_sweeps(old, new)] == [False, True, True]


def test_several_interpreters_in_a_sweep_match_by_their_own_names() -> None:
    both = sides(*(measured(trial=make_trial(python=name)) for name in ("/a", "/b")))
    assert [
        item.both and {side.trial.python for side in item.both} for item in match_sweeps(both, both)
    ] == [
        {"/a"},
        {"/b"},
    ]
    new = sides(measured(trial=make_trial(python="/c")))
    # which of the two would it be?
    assert [item.both for item in match_sweeps(both, new)] == [None, None, None]


@pytest.mark.parametrize(
    ("axis", "one", "other"),
    [
        ("worker.python", make_trial(), make_trial(python="/b")),
        ("mode", make_trial(), make_trial(mode="max-autotune")),
        ("backend", make_trial(backend="aot_eager"), make_trial()),
        ("compile.scope", make_trial(compile=Compile(scope="blocks")), make_trial()),
        (
            "compile.dynamic",
            make_trial(compile=Compile(dynamic=True)),
            make_trial(compile=Compile(dynamic=False)),
        ),
        ("compile.fullgraph", make_trial(compile=Compile(fullgraph=True)), make_trial()),
    ],
)
def test_two_values_of_an_axis_are_compared_within_a_sweep(
    axis: str, one: object, other: object
) -> None:
    found = sides(*(measured(trial=trial) for trial in (one, other)), measured("vgg16"))  # type: ignore[arg-type]
    values = choose_values(found[:2], axis, ())
    pairs = match_values(found, axis, *values)
    assert sum(item.both is not None for item in pairs) == 1
    assert {side.trial.labels.model for item in pairs if item.both for side in item.both} == {
        "resnet50"
    }


def test_modes_are_compared_from_mild_to_aggressive() -> None:
    found = sides(*(measured(mode=mode) for mode in ("reduce-overhead", "default")))
    assert choose_values(found, "mode", ()) == ("default", "reduce-overhead")
    assert choose_values(found, "mode", ("reduce-overhead", "default")) == (
        "reduce-overhead",
        "default",
    )


def test_what_changed_is_said_with_the_rows_that_it_is_true_for() -> None:
    base, head = measured(), measured()
    environment = {
        **base.environment,
        "versions": {"torch": "2.14.0", "timm": "1.0"},
        "driver": "x",
    }
    pairs = [pair(base, replace(head, environment=environment)), pair(base, head)]
    assert lines(count_changes(pairs, "versions")) == [
        "timm: none → 1.0 (1 row)",
        "torch: 2.13.0 → 2.14.0 (1 row)",
    ]
    assert count_changes(pairs[1:], "versions") == []
    quiet = replace(head, environment={**base.environment, "variables": {"TORCH_LOGS": "all"}})
    loud = replace(head, environment={**base.environment, "variables": {"TORCH_LOGS": ""}})
    assert lines(count_changes([pair(quiet, loud)], "facts")) == [
        "variable TORCH_LOGS: all → none (1 row)"
    ]


def test_versions_that_differ_are_named_first_and_in_each_row(tmp_path: Path) -> None:
    old = [
        replace(measured(model), environment=upgraded(measured(), driver="580").environment)
        for model in MODELS
    ]
    versions = {"torch": "2.13.0", "triton": "3.8.0", "cuda": "13.2"}
    write_sweep(tmp_path / "runs", old, "old")
    new = [
        replace(record, environment={**record.environment, "versions": versions})
        for record in old[:3]
    ]
    new.append(upgraded(measured("vgg16"), driver="590"))
    write_sweep(tmp_path / "runs", new, "new")
    printed = compare(tmp_path, "old", "new").stdout.splitlines()
    assert printed[2:4] == ["GPU driver: 580 → 590 (1 row)", "torch: 2.14.0 → 2.13.0 (3 rows)"]
    assert "triton" not in "".join(printed)
    found = json.loads(compare(tmp_path, "old", "new", "--format", "json").stdout)
    assert found["versions"] == [
        {"name": "GPU driver", "base": "580", "head": "590", "rows": 1},
        {"name": "torch", "base": "2.14.0", "head": "2.13.0", "rows": 3},
    ]
    of_rows = {row["model"]: row["versions"] for row in found["rows"]}
    assert of_rows == {
        **dict.fromkeys(MODELS, "torch: 2.14.0 → 2.13.0"),
        "vgg16": "GPU driver: 580 → 590",
    }


def test_the_same_versions_are_not_spoken_of(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [])
    assert "torch" not in compare(tmp_path, "old", "new").stdout
    found = json.loads(compare(tmp_path, "old", "new", "--format", "json").stdout)
    assert (found["versions"], {row["versions"] for row in found["rows"]}) == ([], {None})


def test_a_row_names_both_devices() -> None:
    assert (
        describe_versions(pair(measured(), on("NVIDIA A100", measured())))
        == "device: NVIDIA H200 → NVIDIA A100"
    )


def test_other_devices_are_found_where_both_are_known() -> None:
    known, other = measured(), on("NVIDIA A100", measured())
    assert lines(count_device_changes([pair(known, other)])) == [
        "device: NVIDIA H200 → NVIDIA A100 (1 row)"
    ]
    assert count_device_changes([pair(known, replace(other, environment={}))]) == []


def test_devices_of_one_name_and_other_memory_are_others() -> None:
    sizes = [
        {"type": "cuda", "name": "NVIDIA A100", "memory_bytes": gib * 2**30} for gib in (40, 80)
    ]
    small, large = (replace(measured(), environment={"device": device}) for device in sizes)
    assert lines(count_device_changes([pair(small, large)])) == [
        "device: NVIDIA A100 40 GiB → NVIDIA A100 80 GiB (1 row)"
    ]
    assert count_device_changes([pair(small, small)]) == []
    drivers = [
        {"type": "cuda", "name": "NVIDIA H100", "memory_bytes": gib * 2**30}
        for gib in (79.1, 79.65)
    ]
    old, new = (replace(measured(), environment={"device": device}) for device in drivers)
    assert count_device_changes([pair(old, new)]) == []


def test_long_values_end_with_an_ellipsis_after_80_characters() -> None:
    base, head = measured(), measured()
    sides_of = [
        replace(record, environment={**record.environment, "variables": {"X": text}})
        for record, text in ((base, "a" * 80), (head, "b" * 81))
    ]
    assert lines(count_changes([pair(*sides_of)], "facts")) == [
        f"variable X: {'a' * 80} → {'b' * 79}… (1 row)"
    ]


def test_variables_that_differ_from_trial_to_trial_are_no_change() -> None:
    varying = ("TRITON_CACHE_DIR", "CUDA_VISIBLE_DEVICES", "TORCHELASTIC_RUN_ID")
    base, head = (
        replace(
            measured(),
            environment={"variables": dict.fromkeys(varying, name)},
        )
        for name in ("a", "b")
    )
    assert count_changes([pair(base, head)], "facts") == []


def test_facts_of_gpu_cpu_settings_and_program_are_named_by_their_group() -> None:
    def record(limit_w: float, cpu: str, commit: str | None, tf32: bool) -> Record:
        found = measured()
        environment = {
            "device": {"type": "cuda", "name": "NVIDIA H200", "power_limit_w": limit_w},
            "cpu": {"name": cpu},
            "commit": commit,
        }  # fmt: skip
        assert found.diagnostics is not None
        diagnostics = replace(found.diagnostics, settings={"matmul_allow_tf32": tf32})
        return replace(found, environment=environment, diagnostics=diagnostics)

    changed = count_changes(
        [pair(record(700, "a", "abc", False), record(600, "b", None, True))], "facts"
    )
    assert lines(changed) == [
        "CPU name: a → b (1 row)",
        "GPU power_limit_w: 700 → 600 (1 row)",
        "record commit: abc → null (1 row)",
        "setting matmul_allow_tf32: false → true (1 row)",
    ]
