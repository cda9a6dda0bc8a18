from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from sweeper.core.errors import ConfigError
from sweeper.core.gpus import Device, Gpu
from sweeper.execution import placement
from sweeper.execution.placement import DeviceShare, Placement, claim_devices, make_slots

DEVICES = [Device("cuda", Gpu(str(index), f"GPU-{index}", "A GPU")) for index in range(4)]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_claimed_devices_have_leases_of_their_own_and_learn_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "total_memory_bytes", lambda _gpu: None)
    four = Placement("4 GPUs", tuple(DeviceShare(device, (0, 1), 3) for device in DEVICES))
    found = make_slots(four, DEVICES[1:3])
    assert [(slot.device, slot.cores, slot.concurrency) for slot in found] == [
        (DEVICES[1], (0, 1), 3),
        (DEVICES[2], (0, 1), 3),
    ]
    assert found[0].lease is not found[1].lease
    assert found[0].peak_memory is found[1].peak_memory


def test_a_gpu_has_one_owner_and_a_cpu_none() -> None:
    with claim_devices(DEVICES[:2]) as first:
        assert first == tuple(DEVICES[:2])
        with claim_devices(DEVICES) as second:
            assert second == tuple(DEVICES[2:])
        with (
            pytest.raises(ConfigError, match=f"GPU GPU-0 is in use by process {os.getpid()} on"),
            claim_devices(DEVICES[:1]),
        ):
            pass
        with claim_devices([Device("cpu")]), claim_devices([Device("cpu")]):
            pass
    with claim_devices(DEVICES) as later:
        assert later == tuple(DEVICES)
