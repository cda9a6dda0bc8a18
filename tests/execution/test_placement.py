from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from sweeper.core.settings import Scheduler, Settings
from sweeper.core.system import host
from sweeper.core.system.gpus import Device, Gpu
from sweeper.core.system.host import physical_cores
from sweeper.execution import placement
from sweeper.execution.placement import divide_cores, share_host

DEVICES = [Device("cuda", Gpu(str(index), f"GPU-{index}", "A GPU")) for index in range(4)]


def test_one_device_has_the_whole_host() -> None:
    assert divide_cores(DEVICES[:1], range(8)) == [None]


@pytest.mark.parametrize(
    ("near", "shares"),
    [
        ({}, [(0, 1), (2, 3), (4, 5), (6, 7)]),
        (
            {0: (4, 5, 6, 7), 1: (4, 5, 6, 7), 2: (0, 1, 2, 3), 3: (0, 1, 2, 3)},
            [(4, 5), (6, 7), (0, 1), (2, 3)],
        ),
        ({0: (90, 91), 1: (90, 91), 2: (90, 91), 3: (90, 91)}, [(0, 1), (2, 3), (4, 5), (6, 7)]),
    ],
    ids=["unknown", "two sides", "sides that are not ours"],
)
def test_cores_are_divide_cores(
    monkeypatch: pytest.MonkeyPatch, near: dict[int, tuple[int, ...]], shares: list[tuple[int, ...]]
) -> None:
    monkeypatch.setattr(placement, "cores_near", lambda gpu: near.get(int(gpu.selector), ()))
    assert divide_cores(DEVICES, range(8)) == shares


def test_threads_of_a_physical_core_go_to_one_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number in range(8):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{number}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{number % 4},{number % 4 + 4}\n")
    monkeypatch.setattr(host, "ROOT", tmp_path)
    assert physical_cores(range(1, 8)) == [(1, 5), (2, 6), (3, 7), (4,)]
    monkeypatch.setattr(placement, "cores_near", lambda _gpu: ())
    assert divide_cores(DEVICES, range(8)) == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_more_devices_than_cores_share_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "cores_near", lambda _gpu: ())
    assert divide_cores(DEVICES, (0, 1)) == [(0, 1)] * 4


@pytest.mark.parametrize(
    ("cores", "gibibytes", "said", "expected"),
    [
        (16, 128, None, [8]),
        (6, 128, None, [3]),
        (1, 128, None, [1]),
        (64, 16, None, [2]),
        (64, 23, None, [2]),
        (4, 1, 5, [5]),
    ],
    ids=["usual", "cores", "one core", "memory", "almost three", "said"],
)
def test_trials_in_flight_are_those_that_the_host_is_good_for(
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    gibibytes: int,
    said: int | None,
    expected: list[int],
) -> None:
    monkeypatch.setattr(placement, "free_memory_bytes", lambda: gibibytes * 2**30)
    assert [
        share.concurrency for share in share_host(DEVICES[:1], range(cores), 100, said)
    ] == expected


def test_two_devices_share_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "free_memory_bytes", lambda: 100 * 2**30)
    monkeypatch.setattr(placement, "cores_near", lambda _gpu: ())
    found = share_host(DEVICES[:2], range(12), 100)
    assert [(share.cores, share.concurrency) for share in found] == [
        (tuple(range(6)), 3),
        (tuple(range(6, 12)), 3),
    ]


def test_a_cpu_measures_one_trial_after_the_other() -> None:
    assert [share.concurrency for share in share_host([Device("cpu")], range(64), 100)] == [1]


def test_no_more_trials_are_in_flight_than_there_are_or_than_the_quota_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement, "free_memory_bytes", lambda: math.inf)
    monkeypatch.setattr(placement, "cores_near", lambda _gpu: ())
    assert [share.concurrency for share in share_host(DEVICES[:1], range(64), 3)] == [3]
    assert [share.concurrency for share in share_host(DEVICES[:1], range(64), 0)] == [1]
    monkeypatch.setattr(placement, "read", lambda: SimpleNamespace(quota_cores=12.0))
    assert [share.concurrency for share in share_host(DEVICES[:1], range(64), 100)] == [6]
    assert [share.concurrency for share in share_host(DEVICES[:2], range(64), 100)] == [3, 3]


@pytest.mark.parametrize(
    ("names", "name"),
    [
        ([], "the CPU"),
        (["NVIDIA H200"], "NVIDIA H200"),
        (["NVIDIA H200", "NVIDIA H200"], "2 GPUs (NVIDIA H200)"),
        (["NVIDIA H200", "NVIDIA A100"], "2 GPUs (NVIDIA H200, NVIDIA A100)"),
    ],
)
def test_placement_is_named_after_its_devices(
    monkeypatch: pytest.MonkeyPatch, names: list[str], name: str
) -> None:
    gpus = tuple(Gpu(str(index), f"GPU-{index}", one) for index, one in enumerate(names))
    monkeypatch.setattr(placement, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(placement, "cores_near", lambda _gpu: ())
    found = placement.place_trials(Settings("s", scheduler=Scheduler(prepare=2)), 9)
    assert (found.name, found.concurrency) == (name, 2 * max(1, len(names)))
    assert [device.gpu for device in found.devices] == (list(gpus) or [None])
