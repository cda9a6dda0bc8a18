from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from clock import Clock

from sweeper.core.errors import ConfigError
from sweeper.core.protocol import SHARED, LeaseNews
from sweeper.core.system import gpus
from sweeper.core.system.gpus import Device, Gpu, GpuReading
from sweeper.execution import device_claim
from sweeper.execution.device_claim import claim_devices
from sweeper.execution.memory_budget import KnownNeeds
from sweeper.execution.placement import DeviceShare, Placement, join_slots, make_slots

NO_GROUP = 10**9
DEVICES = [Device("cuda", Gpu(str(index), f"GPU-{index}", "A GPU")) for index in range(4)]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o1777)
    monkeypatch.setattr(device_claim, "LOCK_FOLDERS", (tmp_path,))


def test_claimed_devices_have_leases_of_their_own_and_learn_from_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpus, "read", lambda _gpu: GpuReading())
    four = Placement("4 GPUs", tuple(DeviceShare(device, (0, 1), 3) for device in DEVICES))
    found = make_slots(four, DEVICES[1:3], None, KnownNeeds())
    assert [(slot.device, slot.cores, slot.concurrency) for slot in found] == [
        (DEVICES[1], (0, 1), 3),
        (DEVICES[2], (0, 1), 3),
    ]
    assert found[0].lease is not found[1].lease
    assert found[0].known_needs is found[1].known_needs


@pytest.mark.parametrize(("total_bytes", "most"), [(None, 1), (24e9, 1), (85e9, 2), (150e9, 3)])
def test_as_many_workers_share_a_device_as_its_memory_is_good_for(
    monkeypatch: pytest.MonkeyPatch, total_bytes: float | None, most: int
) -> None:
    monkeypatch.setattr(gpus, "read", lambda _gpu: GpuReading(memory_total_bytes=total_bytes))
    here = Placement("a GPU", (DeviceShare(DEVICES[0]),))
    (slot,) = make_slots(here, DEVICES, None, KnownNeeds())
    assert slot.lease._memory is slot.memory
    granted: list[LeaseNews] = []

    def hear(news: LeaseNews) -> bool:
        granted.append(news)
        return True

    with ExitStack() as tenants:
        for _ in range(4):
            tenant = tenants.enter_context(slot.lease.register(NO_GROUP, hear))
            slot.lease.request(tenant, SHARED)
        assert len(granted) == most


def test_a_training_in_several_processes_has_a_slot_of_several_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpus, "read", lambda _gpu: GpuReading())
    shares = (DeviceShare(device, (2 * number,), 3) for number, device in enumerate(DEVICES))
    slots = make_slots(Placement("4 GPUs", tuple(shares)), DEVICES, None, KnownNeeds())
    slot = join_slots(slots, 3)
    assert slot.device.environment()["CUDA_VISIBLE_DEVICES"] == "0,1,2"
    assert (slot.cores, slot.concurrency) == ((0, 2, 4), 1)
    with pytest.raises(ConfigError, match="starts 5 processes, each with a GPU, and 4 can be had"):
        join_slots(slots, 5)


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


def test_temporary_folder_of_the_environment_changes_no_lock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "private").mkdir()
    with claim_devices(DEVICES[:1]):
        monkeypatch.setenv("TMPDIR", str(tmp_path / "private"))
        monkeypatch.setattr(tempfile, "tempdir", None)
        with pytest.raises(ConfigError, match="GPU GPU-0 is in use"), claim_devices(DEVICES[:1]):
            pass


@pytest.mark.parametrize("mode", [0o777, 0o755], ids=["not sticky", "not for all"])
def test_folder_in_which_others_could_take_locks_away_is_not_used(
    tmp_path: Path, mode: int
) -> None:
    tmp_path.chmod(mode)
    refused = pytest.raises(
        ConfigError, match=r"no place for the locks of GPUs.*scheduler\.locks=false"
    )
    with refused, claim_devices(DEVICES[:1]):
        pass
    with claim_devices(DEVICES[:1], locks=False) as claimed:
        assert claimed == tuple(DEVICES[:1])


@pytest.mark.parametrize(("program", "taken"), [("sweeper.worker", True), ("another", False)])
def test_worker_that_computes_on_a_gpu_is_seen_without_its_lock(
    monkeypatch: pytest.MonkeyPatch, program: str, taken: bool
) -> None:
    monkeypatch.setattr(device_claim, "FREE_S", 0.0)
    command = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other, ExitStack() as ended:
        ended.callback(other.kill)
        assert other.stdout is not None
        other.stdout.readline()
        pids = {"GPU-0": frozenset({other.pid})}
        monkeypatch.setattr(gpus, "read", lambda gpu: GpuReading(pids=pids.get(gpu.uuid)))
        with claim_devices(DEVICES[:2]) as claimed:
            assert claimed == tuple(DEVICES[1 if taken else 0 : 2])
        if taken:
            refused = pytest.raises(
                ConfigError, match=f"by process {other.pid}, a worker of another sweep"
            )
            with refused, claim_devices(DEVICES[:1]):
                pass


def test_worker_whose_driver_was_killed_has_twenty_seconds_to_free_its_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, frees_after_s = Clock(), 20.0
    monkeypatch.setattr(device_claim, "time", clock)
    monkeypatch.setattr(device_claim, "_is_worker", lambda pid: pid in (7, 8))

    def read(_gpu: Gpu) -> GpuReading:
        return GpuReading(pids=frozenset({6, 7, 8} if clock.now < frees_after_s else {6}))

    monkeypatch.setattr(gpus, "read", read)
    with claim_devices(DEVICES[:1]) as claimed:
        assert claimed == tuple(DEVICES[:1])
    assert clock.pauses == [0.5] * 40
    clock.now, frees_after_s = 0.0, 21.0
    clock.pauses.clear()
    refused = pytest.raises(
        ConfigError, match=r"is in use by process [78], a worker of another sweep, whose lock"
    )
    with refused, claim_devices(DEVICES[:1]):
        pass
    assert clock.pauses == [0.5] * 41


def test_process_that_has_ended_is_no_worker() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not device_claim._is_worker(gone.pid)
    assert not device_claim._is_worker(os.getpid())


@dataclasses.dataclass
class Folder:
    """A folder of locks with another owner."""

    path: Path
    owner: int
    mode: int = 0o41777

    def stat(self) -> os.stat_result:
        if not self.path.exists():
            raise FileNotFoundError
        return SimpleNamespace(st_uid=self.owner, st_mode=self.mode)  # type: ignore[return-value]

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def __str__(self) -> str:
        return str(self.path)


@pytest.mark.parametrize(
    ("owner", "fits"),
    [(0, True), (1000, True), (65534, True), (1, False), (999, False), (65533, False)],
)
def test_folder_of_locks_belongs_to_root_or_to_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, owner: int, fits: bool
) -> None:
    """The user is number 1000; root may be seen as 65534."""
    missing, own = Folder(tmp_path / "missing", 0), Folder(tmp_path, owner)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(device_claim, "LOCK_FOLDERS", (missing, own))
    if fits:
        assert device_claim._lock_file("GPU-0") == tmp_path / "sweeper-GPU-0.lock"
        return
    with pytest.raises(
        ConfigError, match=f"neither {tmp_path}/missing nor {tmp_path} belongs to root"
    ):
        device_claim._lock_file("GPU-0")


def test_without_locks_a_gpu_has_no_lock_file(tmp_path: Path) -> None:
    with claim_devices(DEVICES[:1], locks=False):
        assert list(tmp_path.iterdir()) == []
    with claim_devices(DEVICES[:1]):
        assert [path.name for path in tmp_path.iterdir()] == ["sweeper-GPU-0.lock"]


def test_device_slots_are_equal_by_their_devices() -> None:
    share = DeviceShare(DEVICES[0], (0, 1), 3)
    where = Placement("a GPU", (share,))
    one, other = (make_slots(where, DEVICES, None, KnownNeeds())[0] for _ in range(2))
    assert one == other
    assert one.lease is not other.lease
