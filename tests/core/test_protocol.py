from __future__ import annotations

import json

import pytest

from sweeper.core.protocol import (
    ALONE,
    Job,
    Known,
    LeaseGrant,
    LeaseNews,
    LeaseRequest,
    Message,
    Outcome,
    Package,
    Phase,
    ProcessSlot,
    ProtocolError,
    Software,
    decode,
    encode,
)
from sweeper.core.record import Diagnostics, Process
from sweeper.core.serialization import from_json, to_json
from sweeper.core.settings import Measure
from sweeper.core.trial import Trial


@pytest.mark.parametrize(
    "message",
    [
        Phase("compiling"),
        LeaseRequest(ALONE),
        Outcome(
            "oom",
            "eager",
            "no room",
            Process(0, 0, True, compile_s=1.5),
            Diagnostics(1),
            {"torch": "2.13"},
        ),
    ],
)
def test_a_message_is_one_line_that_is_read_back(message: Message) -> None:
    line = encode(message)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert decode(line.encode()) == message


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"[]", "unknown message ''"),
        (b"{}", "unknown message 'None'"),
        (b'{"kind": "Job"}', "unknown message 'Job'"),
        (b'{"kind": "Phase", "name": "lunch"}', "name: 'lunch' is not one of"),
        (b'{"kind": "Phase"}', "missing 1 required"),
        (b"no JSON", "Expecting value"),
        (b"\xff", "can't decode byte"),
    ],
)
def test_what_is_no_message_is_refused(line: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=f"the worker's answer cannot be understood: .*{why}"):
        decode(line)


def test_job_and_news_are_read_back(trial: Trial) -> None:
    job = Job(trial, Measure(rounds=3, clock="step"))
    assert f'"trial_id": "{trial.id}"' in job.dumps()
    assert Job.loads(job.dumps()) == job
    known = Known(checked="abc", steps_per_block=8)
    assert known.is_repeated
    for news in (
        LeaseNews(1.5),
        LeaseNews(0.0, LeaseGrant(2.5, (7, 8), known, has_stopped_sharers=True)),
    ):
        assert news.dumps().endswith("}\n")
        assert LeaseNews.loads(news.dumps()) == news


@pytest.mark.parametrize("text", ["[]", "null", '"trial"', "{}", '{"trial_id": "0"}', "no JSON"])
def test_what_is_no_job_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"Job: |Expecting value"):
        Job.loads(text)


def test_what_the_checks_of_a_machine_found_is_read_back() -> None:
    software = Software((Package("torch", "2.13"), Package("g++", None, "install it")), True)
    assert from_json(Software, to_json(software)) == software


def test_a_slot_is_read_as_it_was_given() -> None:
    slot = ProcessSlot(2, 1, cold=False, cores=(0, 3))
    assert from_json(ProcessSlot, json.loads(slot.dumps())) == slot
    assert from_json(ProcessSlot, {}) == ProcessSlot()
