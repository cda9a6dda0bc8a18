from __future__ import annotations

import pytest

from sweeper.core.errors import ConfigError
from sweeper.core.gpus import Device, Gpu, _select, resolve

GPUS = [Gpu("0", "GPU-aaa", "NVIDIA H200"), Gpu("1", "GPU-bbb", "NVIDIA H200")]


def test_no_device_given_means_the_first_gpu_or_the_cpu() -> None:
    assert resolve(None, GPUS) == resolve("cuda", GPUS) == tuple(Device("cuda", gpu) for gpu in GPUS)
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
