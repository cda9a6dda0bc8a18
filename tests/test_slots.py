from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from sweeper import slots
from sweeper.devices import Device, Gpu
from sweeper.errors import ConfigError
from sweeper.slots import owned, shared_out

DEVICES = [Device("cuda", Gpu(str(index), f"GPU-{index}", "A GPU")) for index in range(4)]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_one_device_has_the_whole_host() -> None:
    assert shared_out(DEVICES[:1], range(8)) == [None]


@pytest.mark.parametrize(
    ("near", "shares"),
    [
        ({}, [(0, 1), (2, 3), (4, 5), (6, 7)]),
        ({0: (4, 5, 6, 7), 1: (4, 5, 6, 7), 2: (0, 1, 2, 3), 3: (0, 1, 2, 3)}, [(4, 5), (6, 7), (0, 1), (2, 3)]),
        ({0: (90, 91), 1: (90, 91), 2: (90, 91), 3: (90, 91)}, [(0, 1), (2, 3), (4, 5), (6, 7)]),
    ],
    ids=["unknown", "two sides", "sides that are not ours"],
)
def test_cores_are_shared_out(
    monkeypatch: pytest.MonkeyPatch, near: dict[int, tuple[int, ...]], shares: list[tuple[int, ...]]
) -> None:
    monkeypatch.setattr(slots, "cores_near", lambda gpu: near.get(int(gpu.selector), ()))
    assert shared_out(DEVICES, range(8)) == shares


def test_more_devices_than_cores_share_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "cores_near", lambda _gpu: ())
    assert shared_out(DEVICES, (0, 1)) == [(0, 1)] * 4


def test_a_gpu_has_one_owner_and_a_cpu_none() -> None:
    with owned(DEVICES[:2]) as first:
        assert first == tuple(DEVICES[:2])
        with owned(DEVICES) as second:
            assert second == tuple(DEVICES[2:])
        with pytest.raises(ConfigError, match=f"GPU GPU-0 is in use by process {os.getpid()} on"), owned(DEVICES[:1]):
            pass
        with owned([Device("cpu")]), owned([Device("cpu")]):
            pass
    with owned(DEVICES) as later:
        assert later == tuple(DEVICES)
