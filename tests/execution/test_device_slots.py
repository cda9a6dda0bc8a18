from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from sweeper.core.errors import ConfigError
from sweeper.core.gpus import Device, Gpu
from sweeper.core.host import physical_cores
from sweeper.execution import device_slots
from sweeper.execution.device_slots import owned, shared_out, shares_of, slots_of

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
    monkeypatch.setattr(device_slots, "cores_near", lambda gpu: near.get(int(gpu.selector), ()))
    assert shared_out(DEVICES, range(8)) == shares


def test_threads_of_a_physical_core_go_to_one_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for number in range(8):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{number}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{number % 4},{number % 4 + 4}\n")
    assert physical_cores(range(1, 8), tmp_path) == [(1, 5), (2, 6), (3, 7), (4,)]
    monkeypatch.setattr(device_slots, "cores_near", lambda _gpu: ())
    monkeypatch.setattr(device_slots, "physical_cores", lambda cores: physical_cores(cores, tmp_path))
    assert shared_out(DEVICES, range(8)) == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_more_devices_than_cores_share_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_slots, "cores_near", lambda _gpu: ())
    assert shared_out(DEVICES, (0, 1)) == [(0, 1)] * 4


@pytest.mark.parametrize(
    ("cores", "gibibytes", "prepare", "in_hand"),
    [(16, 128, None, [8]), (6, 128, None, [3]), (1, 128, None, [1]), (64, 20, None, [2]), (4, 1, 5, [5])],
    ids=["usual", "cores", "one core", "memory", "said"],
)
def test_trials_in_hand_are_those_that_the_host_is_good_for(
    monkeypatch: pytest.MonkeyPatch, cores: int, gibibytes: int, prepare: int | None, in_hand: list[int]
) -> None:
    monkeypatch.setattr(device_slots, "free_memory_bytes", lambda: gibibytes * 2**30)
    assert [share.prepare for share in shares_of(DEVICES[:1], range(cores), 100, prepare)] == in_hand


def test_two_devices_share_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_slots, "free_memory_bytes", lambda: 100 * 2**30)
    monkeypatch.setattr(device_slots, "memory_bytes", lambda _gpu: None)
    monkeypatch.setattr(device_slots, "cores_near", lambda _gpu: ())
    found = slots_of(shares_of(DEVICES[:2], range(12), 100))
    assert [(slot.cores, slot.prepare) for slot in found] == [(tuple(range(6)), 3), (tuple(range(6, 12)), 3)]
    assert found[0].turns is not found[1].turns
    assert found[0].peaks is found[1].peaks


def test_a_cpu_measures_one_trial_after_the_other() -> None:
    assert [share.prepare for share in shares_of([Device("cpu")], range(64), 100)] == [1]


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
