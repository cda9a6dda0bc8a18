"""Both sides of a lease, with a process that is stopped: their clocks agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from sweeper.core.protocol import ALONE, DEVICE, NOTHING, RESUME, LeaseRequest, decode
from sweeper.execution.device_lease import DeviceLease
from sweeper.execution.worker_channel import send_news

ROOT = Path(__file__).parents[2]
WORKER = """
import json, os, sys, threading, time
from sweeper.core.protocol import RESUME, SHARED, encode
from sweeper.worker.driver_link import DriverLink
requests = os.fdopen(int(sys.argv[1]), "w", buffering=1)
link = DriverLink(os.dup(0), lambda request: requests.write(encode(request)))
lease = link.lease
lease.may_share = True
threading.Thread(target=link.listen, daemon=True).start()
lease.take(SHARED)
begin_s, wall_s, away_s = lease.clock(), time.monotonic(), lease.away_s
lease.take(RESUME)
time.sleep(0.3)
lease.take(SHARED)
time.sleep(0.3)
end_s = lease.clock()
print(json.dumps([end_s - begin_s, time.monotonic() - wall_s, lease.away_s - away_s]), flush=True)
"""


@pytest.mark.parametrize("wants", [RESUME, DEVICE, ALONE])
def test_a_worker_that_is_stopped_after_its_benchmark_loses_no_second_twice(wants: str) -> None:
    """Another asks while it benchmarks, and has the device for 2 s."""
    lease = DeviceLease(max_sharers=2)
    receive, send = os.pipe()
    with (
        os.fdopen(receive, "rb") as requests,
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(send)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[send],
            cwd=ROOT,
            start_new_session=True,
        ) as worker,
        subprocess.Popen(["sleep", "60"], start_new_session=True) as other,
    ):
        os.close(send)
        assert worker.stdin is not None
        assert worker.stdout is not None
        tell = partial(send_news, worker.stdin.fileno())
        with (
            lease.register(worker.pid, tell) as tenant,
            lease.register(other.pid, lambda _news: True) as second,
        ):
            for line in requests:
                request = decode(line)
                assert isinstance(request, LeaseRequest)
                lease.request(tenant, request.wants, request.asked_s)
                if request.wants == RESUME:
                    lease.request(second, wants)
                    threading.Timer(2.0, lease.request, [second, NOTHING]).start()
            own_s, wall_s, away_s = json.loads(worker.stdout.readline())
            idle_s = lease.idle_s(tenant)
            worker.kill()
            other.kill()
    assert own_s + away_s == pytest.approx(wall_s, abs=0.5)
    assert own_s > 0.5
    assert away_s > 1.0
    assert idle_s == pytest.approx(away_s, abs=0.5)
