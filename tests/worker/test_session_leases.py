"""What a process asks of the device, in which order."""

from __future__ import annotations

import re

import pytest
from worker_runs import MEASURE, custom, private_cache  # noqa: F401  # used by its name

from sweeper.core.protocol import ALONE, DEVICE, NOTHING, SHARED, Job, LeaseGrant
from sweeper.worker import process_log, session
from sweeper.worker.lease import Lease

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("private_cache")]


def test_what_is_timed_has_the_device_alone_and_steps_and_checks_share_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU whose NVML knows this process: on a CPU nothing is shared."""
    asked: list[str] = []

    def ask(wants: str) -> LeaseGrant:
        asked.append(wants)
        return LeaseGrant()

    build = session.build

    def build_and_share(job: Job, log: process_log.ProcessLog) -> object:
        subject = build(job, log)
        log.lease.may_share = True
        return subject

    monkeypatch.setattr(session, "build", build_and_share)

    def say(phase: object) -> None:
        asked.append(phase.name)  # type: ignore[attr-defined]

    slot = process_log.ProcessSlot()
    outcome = process_log.run(
        Job(custom("mlp"), MEASURE), slot, say, Lease(ask), session.measure_model
    )
    assert outcome.status == "ok", outcome.message
    held = " ".join(word for word in asked if word in (NOTHING, DEVICE, SHARED, ALONE))
    compiled = "( nothing shared)+"  # without the device; then it goes on
    assert re.fullmatch(f"device nothing shared{compiled} nothing alone nothing shared", held)
    assert asked.index("eager") < asked.index("compiling") < asked.index(SHARED)
    alone = asked[asked.index(ALONE) + 1 :]
    assert alone == ["warming", "measuring", "memory", "profiling", NOTHING, SHARED, "reference"]
