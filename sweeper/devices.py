"""Which devices there are, asked of NVML so that the parent needs no torch, and which one a sweep uses."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.errors import ConfigError


@dataclass(frozen=True)
class Gpu:
    """A visible GPU; `selector` is what CUDA_VISIBLE_DEVICES calls it."""

    selector: str
    uuid: str
    name: str


@dataclass(frozen=True)
class Device:
    """Where trials run. `gpu` is None on the CPU."""

    type: str
    gpu: Gpu | None = None

    def environment(self) -> dict[str, str]:
        """What a worker's environment must say so that it sees this device alone."""
        # NVML counts GPUs in PCI order, CUDA by default the fastest first.
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": self.gpu.selector if self.gpu else ""}


@functools.cache
def visible_gpus() -> tuple[Gpu, ...]:
    """The GPUs that CUDA would show, in its order; empty without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver, no library: a machine without an NVIDIA GPU
        return ()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    gpus = [
        Gpu(str(index), pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle))
        for index, handle in enumerate(handles)
    ]
    pynvml.nvmlShutdown()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(gpus if chosen is None else _select(gpus, chosen))


def _select(gpus: Sequence[Gpu], chosen: str) -> list[Gpu]:
    """Those named by CUDA_VISIBLE_DEVICES, by index or the beginning of a UUID; the list ends at an unknown name.

    Raises ConfigError when it names something but none of the GPUs: measuring the CPU instead would surprise.
    """
    selected = []
    for name in (part.strip() for part in chosen.split(",")):
        match = next((gpu for gpu in gpus if name and (name == gpu.selector or gpu.uuid.startswith(name))), None)
        if match is None:
            break
        selected.append(match)
    if gpus and not selected and chosen.strip() not in ("", "-1"):
        known = ", ".join(f"{gpu.selector} ({gpu.uuid})" for gpu in gpus)
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES={chosen} names none of the GPUs {known}; parts of a GPU are not supported"
        )
    return selected


def resolve(device: str | None, gpus: Sequence[Gpu]) -> Device:
    """The device for `device=cpu|cuda|cuda:N|null`. Raises ConfigError when there is no such GPU."""
    if device == "cpu" or (device is None and not gpus):
        return Device("cpu")
    if not gpus:
        raise ConfigError(f"device={device}: no NVIDIA GPU is visible on this machine; use device=cpu")
    index = int(device.partition(":")[2] or 0) if device else 0
    if index >= len(gpus):
        names = ", ".join(f"cuda:{i} ({gpu.name})" for i, gpu in enumerate(gpus))
        raise ConfigError(f"device={device}: no such GPU; visible are {names}")
    return Device("cuda", gpus[index])
