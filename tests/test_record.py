from __future__ import annotations

import json

import pytest

from sweeper.record import SCHEMA_VERSION, Diagnostics, GraphBreak, PerArm, Process, Record, Round
from sweeper.trial import Trial

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
    process = Process(0, 0, True, 12.5, (12.0, 1.0), 4, rounds, memory_bytes=PerArm(1.0, 2.0))
    diagnostics = Diagnostics(2, (GraphBreak("why", "file.py:3"),), 1)
    return Record(
        trial.id, "s", trial.label, "ok", trial, ("single_process",), processes=(process,), diagnostics=diagnostics
    )


def test_json_round_trip_keeps_everything(record: Record) -> None:
    assert Record.loads(record.dumps()) == record


def test_keys_are_those_of_the_contract_in_its_order(record: Record) -> None:
    data = json.loads(record.dumps())
    assert list(data) == CONTRACT
    assert {"index", "draw", "cold", "compile_s", "first_steps_s", "rounds", "device_time_s", "memory_bytes"} <= set(
        data["processes"][0]
    )
    assert list(data["processes"][0]["rounds"][0]) == ["order", "eager_s", "compiled_s", "void"]


def test_newer_schema_is_refused(record: Record) -> None:
    newer = {**json.loads(record.dumps()), "schema_version": SCHEMA_VERSION + 1}
    with pytest.raises(ValueError, match="newer than"):
        Record.loads(json.dumps(newer))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema_version": 1}', '"text"'])
def test_text_that_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Record.loads(text)


def test_unknown_status_is_refused(trial: Trial) -> None:
    with pytest.raises(ValueError, match="is not one of"):
        Record(trial.id, "s", trial.label, "fine", trial)
