from __future__ import annotations

import dataclasses
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweeper.core import record as record_module
from sweeper.core.files import MAX_JSON_BYTES
from sweeper.core.record import (
    SCHEMA_VERSION,
    Accuracy,
    Attempt,
    Diagnostics,
    GpuState,
    GraphBreak,
    HostState,
    PerArm,
    Process,
    Record,
    RecordError,
    Round,
    SchemaError,
    ScriptRun,
    Trajectory,
    of_arm,
)
from sweeper.core.serialization import from_json, to_json
from sweeper.core.trial import Compile, Labels, Model, Precision, Text, Trial

RECORD = record_module.__name__

CONTRACT = [
    "schema_version",
    "trial_id",
    "sweep",
    "label",
    "status",
    "flags",
    "phase",
    "message",
    "log",
    "trial",
    "environment",
    "processes",
    "diagnostics",
]


@pytest.fixture
def record(trial: Trial) -> Record:
    rounds = (Round("AB", 2.0, 1.0), Round("BA", None, None, "recompiled"))
    process = Process(
        0, 0, True,
        compile_s=12.5, compile_parts_s={"dynamo": 1.0}, first_steps_s=(12.0, 1.0),
        code_fingerprint="abc",
        accuracy=Accuracy("float64", True, tensors=3, worst="loss", compiled_error=1e-7,
        eager_error=1e-7, bound=1e-4),
        steps_per_block=4, rounds=rounds, memory_bytes=PerArm(1.0, 2.0),
        gpu=GpuState(PerArm(1980.0, 1965.0), PerArm(), PerArm(40.0, 41.0), ("power_cap",), 1),
        host=HostState(0.1),
    )  # fmt: skip
    diagnostics = Diagnostics(2, (GraphBreak("why", "file.py:3"),), 1, parameters={"float32": 12})
    return Record(
        trial.id, "s", trial.label, "ok", ("single_process",), trial=trial, processes=(process,),
        diagnostics=diagnostics,
        attempts=(Attempt("accuracy_mismatch", "checking", "off", "loss", ("abc-def",)),
        Attempt("crashed")),
    )  # fmt: skip


def test_json_round_trip_keeps_everything(record: Record) -> None:
    assert Record.loads(record.dumps()) == record


def test_keys_are_those_of_the_contract_in_its_order(record: Record) -> None:
    data = json.loads(record.dumps())
    assert list(data)[: len(CONTRACT)] == CONTRACT
    assert {
        "index",
        "draw",
        "cold",
        "compile_s",
        "first_steps_s",
        "rounds",
        "device_time_s",
        "memory_bytes",
    } <= set(data["processes"][0])
    assert list(data["processes"][0]["rounds"][0]) == ["order", "eager_s", "compiled_s", "void"]


def test_an_attempt_has_the_keys_of_the_contract(record: Record) -> None:
    assert list(json.loads(record.dumps())["attempts"][0]) == [
        "status",
        "phase",
        "message",
        "worst",
        "artifacts",
    ]


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        ("interrupted", None, True),
        ("timeout", "still compiling after measure.timeout_s=1800", False),
        ("crashed", "the worker was killed by SIGKILL", True),
        (
            "oom",
            "1 MiB is free. Process 12 has 70 GiB memory in use. Including ..., this process has 8 "
            "GiB in use",
            True,
        ),
        (
            "oom",
            "1 MiB is free. Including non-PyTorch memory, this process has 78 GiB memory in use",
            False,
        ),
        (
            "oom",
            "1 MiB is free. Process 12 has 78 GiB memory in use. Of the allocated memory ...",
            False,
        ),
        ("unavailable", "pip install it", False),
        ("compile_error", "Unsupported", False),
        ("accuracy_mismatch", None, False),
        ("eager_error", None, False),
        ("ok", None, False),
    ],
)
def test_only_what_the_machine_or_the_user_ended_may_end_differently(
    record: Record, status: str, message: str | None, expected: bool
) -> None:
    ended = replace(record, status=status, message=message, processes=())
    assert ended.may_end_differently == expected


def test_out_of_memory_beside_other_processes_may_end_differently(record: Record) -> None:
    """As the fixture's process saw one; without any reading of it nothing speaks for another
    end.
    """
    assert replace(record, status="oom").may_end_differently


def test_artifacts_are_those_of_all_processes_each_once(record: Record) -> None:
    (process,) = record.processes
    others = (
        replace(process, code_fingerprint="a", autotuning_fingerprint="b"),
        Process(2, 0, False),
        process,
    )
    assert replace(record, processes=(process, *others)).artifacts == ("a-b", "abc-None")


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (SCHEMA_VERSION + 1, r"\(schema_version 7 is newer than 6: upgrade sweeper\)$"),
        (
            SCHEMA_VERSION - 1,
            r"\(schema_version 5 is older than 6: .*, or measure the trial again\)$",
        ),
        (1, r"\(schema_version 1 is older than 6: .*, or measure the trial again\)$"),
    ],
)
def test_record_of_another_schema_is_refused_with_what_to_do(
    record: Record, version: int, reason: str
) -> None:
    data = {**json.loads(record.dumps()), "schema_version": version, "unknown": {}}
    with pytest.raises(SchemaError, match=reason):
        Record.loads(json.dumps(data))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema_version": 6}', '"text"'])
def test_text_that_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(RecordError):
        Record.loads(text)


def test_record_read_back_is_built_as_by_its_constructor() -> None:
    """Whole objects go past `__init__`, others through it."""
    figures = {"eager": 1.0, "compiled": 2}
    assert (
        from_json(PerArm, figures)
        == PerArm(1.0, 2)
        == pickle.loads(pickle.dumps(from_json(PerArm, figures)))
    )
    assert from_json(PerArm, {"compiled": 2.0}) == PerArm(None, 2.0)
    with pytest.raises(ValueError, match="PerArm: compiled: 'x' has the wrong type"):
        from_json(PerArm, {"eager": 1.0, "compiled": "x"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        from_json(PerArm, figures).eager = 3.0


def nest(depth: int) -> Any:
    return [nest(depth - 1)] if depth else 0


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("wall_s",), float("nan"), "NaN"),
        (("processes", 0, "rounds", 0, "eager_s"), float("-inf"), "-Infinity"),
        (("processes", 0, "memory_bytes", "eager"), 1e308, "eager: 1e.308 is not between"),
        (("environment",), {"device": {"memory_bytes": 10**400}}, "environment: 1.* is out of "
        "range"),
        (("environment",), {"deep": nest(30)}, "environment: nested too deeply"),
        (("environment",), {"deep": nest(900)}, "nested too deeply"),
        (("processes", 0, "rounds", 0, "compiled_s"), 0.0, "compiled_s: 0.0 is not between"),
        (("processes", 0, "rounds", 0, "compiled_s"), -1, "compiled_s: -1 is not between"),
        (("processes", 0, "steps_per_block"), 0, "steps_per_block: 0 is not between"),
        (("processes", 0, "phases_s"), {"eager": "1"}, "phases_s: '1' has the wrong type"),
        (("processes", 0, "device_step_s"), {"eager": -1.0, "compiled": 1.0},
        "device_step_s.eager: -1.0 is not"),
        (("status",), "fine", "status: 'fine' is not one of: ok"),
        (("attempts",), [{"status": "fine"}], "status: 'fine' is not one of: ok"),
        (("trial", "model", "library"), "x", "library: 'x' is not one of: torchvision"),
        (("trial", "batch_size"), 0, "batch_size: 0 is not between"),
        (("trial", "vary"), {"batch_size": [1, "2"]}, "vary: '2' has the wrong type"),
        (("processes", 0, "gpu", "power_w", "eager"), -0.1, "power_w.eager: -0.1 is not between 0"),
        (("environment",), {"count": -(2**63) - 1}, "environment: -9223372036854775809 is out of "
        "range"),
        (("wall_s",), 1e9 + 1, "wall_s: 1000000001.0 is not between"),
        (("environment",), {"deep": nest(21)}, "environment: nested too deeply"),
        (("environment",), {"count": 2**63}, "environment: 9223372036854775808 is out of range"),
        (("diagnostics", "parameters"), {"float32": None}, "parameters: None has the wrong type"),
        (("schema_version",), True, "schema_version: True has the wrong type"),
    ],
)  # fmt: skip
def test_values_that_make_no_sense_are_refused(
    record: Record, path: tuple[str | int, ...], value: object, reason: str
) -> None:
    data = json.loads(record.dumps())
    found = data
    for key in path[:-1]:
        found = found[key]
    found[path[-1]] = value
    with pytest.raises(RecordError, match=reason):
        Record.loads(json.dumps(data))


def make_larger(path: Path) -> None:
    with path.open("w") as file:
        file.truncate(MAX_JSON_BYTES + 1)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_larger, "bytes, more than"),
        (
            lambda path: path.symlink_to(path.with_name("other.json")),
            "a link, which is not followed",
        ),
        (os.mkfifo, "not a regular file"),
        (Path.mkdir, "not a regular file"),
        (lambda _path: None, "No such file"),
        (lambda path: path.write_bytes(b"\xff"), "not JSON"),
    ],
    ids=["larger", "link", "pipe", "folder", "missing", "no text"],
)
def test_what_is_no_file_of_a_record_is_refused(
    record: Record, tmp_path: Path, make: Callable[[Path], object], reason: str
) -> None:
    (tmp_path / "other.json").write_text(record.dumps())
    assert Record.read(tmp_path / "other.json") == record
    make(tmp_path / "record.json")
    with pytest.raises(RecordError, match=reason):
        Record.read(tmp_path / "record.json")


@pytest.mark.parametrize("processes", [7, [7], [{"script": 7}], [{"script": {"trajectory": []}}]])
def test_trainings_of_several_seeds_are_no_excuse_for_other_faults(
    record: Record, processes: object
) -> None:
    data = {**json.loads(record.dumps()), "processes": processes}
    with pytest.raises(RecordError):
        Record.loads(json.dumps(data))


def test_trainings_of_several_seeds_are_ignored(record: Record) -> None:
    script = ScriptRun(trajectory=Trajectory(300, True, steps=300))
    record = replace(record, processes=(Process(0, 0, True, script=script),))
    data = json.loads(record.dumps())
    trajectory = data["processes"][0]["script"]["trajectory"]
    trajectory["trainings"] = [{"arm": "eager", "shift": 0, "steps": 20, "losses": [1.0, None]}]
    trajectory["trainings_missing"] = "it failed"
    assert Record.loads(json.dumps(data)) == record


def test_text_is_cleaned_where_it_enters(record: Record) -> None:
    """Line feeds and letters of any language stay."""
    dirty = "é\ud800 \x1b[31mred\x1b[0m\x07\r\nnext\tline\u202e"
    clean = "é\ufffd red\ufffd\nnext\tline\ufffd"
    assert replace(record, message=dirty).message == clean
    data = json.loads(record.dumps()) | {"message": dirty, "environment": {"a\x00": {"b": [dirty]}}}
    for text in (
        json.dumps(data),
        json.dumps(data, ensure_ascii=False).replace("\ud800", "\\ud800"),
    ):
        read = Record.loads(text)
        assert (read.message, read.environment) == (clean, {"a\ufffd": {"b": [clean]}})
        assert Record.loads(read.dumps()) == read


def test_times_are_those_of_the_rounds_that_count() -> None:
    rounds = (
        Round("AB", 2.0, 1.0),
        Round("BA", 4.0, None),
        Round("AB", 8.0, 2.0),
        Round("BA", 99.0, 99.0, "void"),
    )
    process = Process(
        0,
        0,
        True,
        steps_per_block=4,
        rounds=rounds,
        phases_s={"eager": 1.0, "compiling": 5.0, "warming": 2.0},
    )
    assert process.blocks_s("eager") == [2.0, 4.0, 8.0]
    assert (process.step_s("eager"), process.step_s("compiled")) == (1.0, 0.375)
    assert Process(0, 0, True, rounds=rounds).step_s("eager") is None
    assert Process(0, 0, True, steps_per_block=4).step_s("eager") is None
    assert process.device_s == 3.0


def test_compiling_is_what_the_first_steps_took_beyond_steady_ones() -> None:
    rounds = (Round("AB", 2.0, 1.0), Round("BA", 2.0, 3.0))
    process = Process(0, 0, True, steps_per_block=4, rounds=rounds, first_steps_s=(6.0, 0.75, 0.5))
    assert process.beyond_steady_s == 7.25 - 3 * 0.5
    # a cache that had all of it
    assert replace(process, first_steps_s=(0.25, 0.5)).beyond_steady_s == 0.0
    assert replace(process, rounds=(), first_steps_s=(6.0,)).beyond_steady_s is None


def test_a_figure_of_an_arm_is_missing_where_the_field_is() -> None:
    process = Process(0, 0, True, energy_j=PerArm(1.0, 2.0))
    assert (of_arm(process.energy_j, "eager"), of_arm(process.energy_j, "compiled")) == (1.0, 2.0)
    assert of_arm(process.memory_bytes, "eager") is None
    assert process.artifact is None


@pytest.mark.parametrize(
    ("figures", "ratio", "largest"),
    [
        (PerArm(1.0, 2.0), 0.5, 2.0),
        (PerArm(0.0, 2.0), None, 2.0),
        (PerArm(2.0, 0.0), None, 2.0),
        (PerArm(0.0, None), None, 0.0),
        (PerArm(), None, None),
    ],
)
def test_a_figure_of_both_arms_has_a_ratio_and_a_larger_arm(
    figures: PerArm, ratio: float | None, largest: float | None
) -> None:
    assert (figures.ratio, figures.largest) == (ratio, largest)


@pytest.mark.parametrize(
    ("status", "phase", "expected"),
    [
        ("ok", None, True),
        ("ok", "eager", True),
        ("oom", "compiling", True),
        ("oom", "eager", False),
        ("timeout", "building", False),
        ("eager_error", "compiling", False),
        ("unavailable", "compiling", False),
        ("interrupted", "measuring", False),
        ("compile_error", None, True),
    ],
)
def test_only_what_comes_after_eager_is_the_compilers(
    record: Record, status: str, phase: str | None, expected: bool
) -> None:
    assert replace(record, status=status, phase=phase).judges_the_compiler is expected


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (None, ""),
        ("no kernel\nat x.py:3", "no kernel"),
        ("backend='x' raised:\n  ValueError: no rule", "backend='x' raised: ValueError: no rule"),
        ("raised:", "raised:"),
    ],
)
def test_first_line_goes_on_after_a_colon(record: Record, message: str | None, line: str) -> None:
    assert replace(record, message=message).first_line == line


def test_batch_size_is_the_one_that_fitted(record: Record) -> None:
    assert (record.batch_size, replace(record, smaller_batch_size=2).batch_size) == (4, 2)


def test_a_text_that_is_too_large_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    monkeypatch.setattr("sweeper.core.record.MAX_JSON_BYTES", len(record.dumps()))
    assert Record.loads(record.dumps()) == record
    with pytest.raises(RecordError, match="larger than 0 MiB"):
        Record.loads(record.dumps() + " ")
    assert MAX_JSON_BYTES == 100 * 2**20, "docs/formats.md says so"
    monkeypatch.setattr("sweeper.core.record.MAX_JSON_BYTES", 2 * 2**20)
    with pytest.raises(RecordError, match="larger than 2 MiB"):
        Record.loads(" " * (2 * 2**20 + 1))


def test_parts_of_a_record_are_read_without_their_constructors() -> None:
    """Reading thousands of records takes half as long where classes have slots. A process keeps its
    step times, which a class with slots cannot.
    """
    parts = [
        value
        for value in vars(record_module).values()
        if isinstance(value, type) and value.__module__ == RECORD
    ]
    parts = [part for part in parts if dataclasses.is_dataclass(part)]
    parts += [Model, Precision, Compile, Text, Labels, Trial]
    assert len(parts) > 10
    assert [part.__name__ for part in parts if "__slots__" not in vars(part)] == ["Process"]


def test_numbers_at_their_limits_are_taken(record: Record) -> None:
    """Nesting of 20 levels below a field, numbers at both ends of their ranges."""
    (process,) = record.processes
    edges = replace(
        process, compile_s=0.0, waited_s=1e9, steps_per_block=1, rounds=(Round("AB", 1e-9, 1e9),)
    )
    edges = replace(edges, energy_j=PerArm(0.0, 1e100), device_step_s=PerArm(1e-12, 1e9))
    at_limits = replace(
        record,
        processes=(edges,),
        environment={"deep": nest(20), "most": 2**63 - 1, "least": -(2**63)},
    )
    assert Record.loads(at_limits.dumps()) == at_limits


def test_what_a_record_lacks_is_missing_and_no_fault() -> None:
    """Also of one GPU that nobody else used: without a reading of others nothing speaks for another
    end.
    """
    data = to_json(
        Process(
            0, 0, True, accuracy=Accuracy(None, None), gpu=GpuState(PerArm(), PerArm(), PerArm())
        )
    )
    given = {"index": 0, "draw": 0, "cold": True}
    assert {name: value for name, value in data.items() if value and name not in given} == {
        "accuracy": to_json(Accuracy(None, None)), "gpu": to_json(GpuState(PerArm(), PerArm(),
        PerArm())),
    }  # fmt: skip
    assert not any(to_json(Accuracy(None, None)).values())
    assert not any(to_json(Diagnostics()).values())
    assert GraphBreak("why").count == 1


def test_out_of_memory_alone_on_a_gpu_ends_the_same_way(record: Record) -> None:
    (process,) = record.processes
    assert process.gpu is not None
    alone = replace(process, gpu=replace(process.gpu, other_processes=0))
    assert not replace(record, status="oom", processes=(alone,)).may_end_differently


def test_each_module_of_a_script_is_called_at_one_place() -> None:
    ScriptRun(modules=("Net",))  # of a record from before there were places
    with pytest.raises(ValueError, match="called_at has 1 places for 2 modules"):
        ScriptRun(modules=("Net", "Net"), called_at=("train.py:7",))
