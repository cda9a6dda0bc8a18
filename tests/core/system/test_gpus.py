from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sweeper.core.errors import ConfigError
from sweeper.core.serialization import to_json
from sweeper.core.system import gpus
from sweeper.core.system.gpus import Device, Gpu, GpuReading, _select, resolve

GPUS = [Gpu("0", "GPU-aaa", "NVIDIA H200"), Gpu("1", "GPU-bbb", "NVIDIA H200")]


def test_no_device_given_means_the_first_gpu_or_the_cpu() -> None:
    assert (
        resolve(None, GPUS) == resolve("cuda", GPUS) == tuple(Device("cuda", gpu) for gpu in GPUS)
    )
    assert resolve(None, []) == (Device("cpu"),)


def test_index_counts_visible_gpus() -> None:
    assert resolve("cuda:1", GPUS) == (Device("cuda", GPUS[1]),)
    assert resolve("cuda:0", _select(GPUS, "1")) == (Device("cuda", GPUS[1]),)
    assert resolve("cuda", _select(GPUS, "GPU-b")) == (Device("cuda", GPUS[1]),)


def test_visible_devices_end_at_the_first_unknown_name() -> None:
    assert _select(GPUS, "1,7,0") == [GPUS[1]]
    assert _select(GPUS, "") == []


@pytest.mark.parametrize(("device", "gpus"), [("cuda", []), ("cuda:2", GPUS)])
def test_missing_gpu_is_refused_with_what_there_is(device: str, gpus: list[Gpu]) -> None:
    with pytest.raises(ConfigError, match=r"device=cuda.*(use device=cpu|visible are cuda:0)"):
        resolve(device, gpus)


def test_worker_on_the_cpu_sees_no_gpu() -> None:
    assert Device("cpu").environment()["CUDA_VISIBLE_DEVICES"] == ""
    assert Device("cuda", GPUS[1]).environment()["CUDA_VISIBLE_DEVICES"] == "1"


def test_names_that_are_none_of_the_gpus_are_refused_and_an_empty_one_means_none() -> None:
    with pytest.raises(
        ConfigError,
        match=r"CUDA_VISIBLE_DEVICES=MIG-1 names none of the GPUs 0 \(GPU-aaa\), 1 \(GPU-b",
    ):
        _select(GPUS, "MIG-1")
    assert _select(GPUS, "-1") == _select(GPUS, " ") == _select([], "7") == []


class Nvml(SimpleNamespace):
    """What the module asks of NVML, of a GPU that knows little."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    def __getattr__(self, name: str):
        def unsupported(*_arguments: object) -> None:
            raise self.NVMLError(name)

        return unsupported


def make_nvml(monkeypatch: pytest.MonkeyPatch, **answers: Callable[..., Any]) -> Nvml:
    """Two GPUs, whose handles are their UUIDs."""
    uuids = [gpu.uuid for gpu in GPUS]
    known: dict[str, Callable[..., Any]] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.1",
        "nvmlDeviceGetCount": lambda: len(uuids),
        "nvmlDeviceGetHandleByIndex": lambda index: uuids[index],
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetUUID": lambda handle: handle,
        "nvmlDeviceGetName": lambda _: "NVIDIA H200",
    }
    nvml = Nvml(**{**known, **answers})
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def test_visible_gpus_are_all_unless_the_environment_chooses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_nvml(monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert list(gpus.visible_gpus.__wrapped__()) == GPUS
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert list(gpus.visible_gpus.__wrapped__()) == GPUS[1:]


def test_without_a_driver_there_is_no_gpu_and_nothing_is_known_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = make_nvml(monkeypatch)
    vars(nvml).pop("nvmlInit")  # raises NVMLError then
    assert gpus.visible_gpus.__wrapped__() == gpus.cores_near(GPUS[0]) == ()
    assert gpus.read(GPUS[0]) == GpuReading()


def test_everything_that_a_gpu_tells_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    make_nvml(
        monkeypatch,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=5, total=9),
        nvmlDeviceGetComputeRunningProcesses=lambda _: [
            SimpleNamespace(pid=7),
            SimpleNamespace(pid=8),
        ],
        nvmlDeviceGetComputeMode=lambda _: 3,
        nvmlDeviceGetPersistenceMode=lambda _: 1,
        nvmlDeviceGetClockInfo=lambda _, clock: {Nvml.NVML_CLOCK_SM: 1900}[clock],
        nvmlDeviceGetMaxClockInfo=lambda _, clock: {Nvml.NVML_CLOCK_SM: 1980}[clock],
        nvmlDeviceGetPowerUsage=lambda _: 71_500,
        nvmlDeviceGetPowerManagementLimit=lambda _: 700_000,
        nvmlDeviceGetTemperature=lambda _, sensor: {Nvml.NVML_TEMPERATURE_GPU: 41}[sensor],
        nvmlDeviceGetCurrentClocksEventReasons=lambda _: 0x04 | 0x100,
    )
    assert gpus.read(GPUS[1]) == GpuReading(
        "580.1",
        5,
        9,
        frozenset({7, 8}),
        "exclusive process",
        True,
        1900,
        1980,
        71.5,
        700.0,
        41,
        ("power_cap", "display"),
    )
    assert json.loads(json.dumps(to_json(gpus.read(GPUS[1]))))["memory_used_bytes"] == 5


def test_what_a_gpu_does_not_tell_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = make_nvml(monkeypatch, nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x01 | 0x40)
    assert gpus.read_handle(nvml, "GPU-aaa") == GpuReading(
        driver="580.1", lowered_clocks=("idle", "hardware_thermal")
    )


def test_cores_near_a_gpu_are_the_bits_of_its_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 65)
    make_nvml(monkeypatch, nvmlDeviceGetCpuAffinity=lambda _, words: [0b1010, 1][:words])
    assert gpus.cores_near(GPUS[0]) == (1, 3, 64)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert gpus.cores_near(GPUS[0]) == (1, 3)
