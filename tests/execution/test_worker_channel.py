"""What the driver writes to a worker; what it reads is in test_trial_runner.py, with real workers."""

from __future__ import annotations

import os

from sweeper.core.protocol import LeaseGrant
from sweeper.execution.worker_channel import send_grant


def test_a_grant_is_one_line_and_waits_for_nobody() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    grant = LeaseGrant(1.5, (7,))
    assert send_grant(write, grant)
    assert LeaseGrant.loads(os.read(read, 1000).decode()) == grant
    assert not all(send_grant(write, grant) for _ in range(100_000)), "a full pipe is told"
    os.close(read)
    assert send_grant(write, grant), "a worker that has ended is for the reader of its channel to notice"
    os.close(write)
