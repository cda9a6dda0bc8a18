"""GPUs and devices: which exist, by NVML so that the parent needs no torch, and which ones a sweep
uses.
"""

import functools
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sweeper.core.errors import ConfigError

# nvml.h, nvmlClocksEventReason*
CLOCK_REASONS = {
    0x01: "idle", 0x02: "application_clocks", 0x04: "power_cap", 0x08: "hardware",
    0x10: "sync_boost",
    0x20: "thermal", 0x40: "hardware_thermal", 0x80: "power_brake", 0x100: "display",
}  # fmt: skip
# nvml.h, nvmlComputeMode_t
COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")


@dataclass(frozen=True)
class Gpu:
    """A visible GPU; `selector` is its name in CUDA_VISIBLE_DEVICES."""

    selector: str
    uuid: str
    name: str


@dataclass(frozen=True)
class Device:
    """Where trials run. `gpu` is None on the CPU."""

    type: str
    gpu: Gpu | None = None
    others: tuple[Gpu, ...] = ()  # that a trial of several processes has beside it

    def environment(self) -> dict[str, str]:
        """The environment variables with which a worker sees this device alone."""
        gpus = (self.gpu, *self.others) if self.gpu else ()
        # NVML counts GPUs in PCI order, CUDA by default the fastest first.
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(gpu.selector for gpu in gpus),
        }


@dataclass(frozen=True)
class GpuReading:
    """What NVML says about a GPU at one moment; None where the GPU, the driver or the container
    hides it.
    """

    driver: str | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    # of processes that compute on it; a container may see other numbers, or none
    pids: frozenset[int] | None = None
    compute_mode: str | None = None
    persistence_mode: bool | None = None
    clock_mhz: int | None = None  # of the multiprocessors
    max_clock_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    lowered_clocks: tuple[str, ...] | None = None  # why the clock is not at its maximum


@functools.cache
def visible_gpus() -> tuple[Gpu, ...]:
    """List the GPUs that CUDA would show, in its order; empty without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver, no library: a machine without an NVIDIA GPU
        return ()
    gpus = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        gpus.append(Gpu(str(index), uuid, pynvml.nvmlDeviceGetName(handle)))
    pynvml.nvmlShutdown()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(gpus if chosen is None else _select(gpus, chosen))


def _select(gpus: Sequence[Gpu], chosen: str) -> list[Gpu]:
    """Select the GPUs that CUDA_VISIBLE_DEVICES names by index or the beginning of a UUID, up to an
    unknown name.

    Raises ConfigError when it names something but none of the GPUs: measuring the CPU instead would
    surprise.
    """
    selected = []
    for name in map(str.strip, chosen.split(",")):
        found = [gpu for gpu in gpus if name == gpu.selector or gpu.uuid.startswith(name)]
        if not name or not found:
            break
        selected.append(found[0])
    if selected or not gpus or chosen.strip() in ("", "-1"):
        return selected
    known = ", ".join(f"{gpu.selector} ({gpu.uuid})" for gpu in gpus)
    raise ConfigError(
        f"CUDA_VISIBLE_DEVICES={chosen} names none of the GPUs {known}; parts of a GPU are not "
        "supported"
    )


def resolve(device: str | None, gpus: Sequence[Gpu]) -> tuple[Device, ...]:
    """Return the devices for `device=cpu|cuda|cuda:N|null`: one, or every visible GPU.

    Raises ConfigError when there is no such GPU.
    """
    if device == "cpu" or (device is None and not gpus):
        return (Device("cpu"),)
    if not gpus:
        raise ConfigError(
            f"device={device}: no NVIDIA GPU is visible on this machine; use device=cpu"
        )
    if device in (None, "cuda"):
        return tuple(Device("cuda", gpu) for gpu in gpus)
    index = int(str(device).partition(":")[2])
    if index >= len(gpus):
        names = ", ".join(f"cuda:{i} ({gpu.name})" for i, gpu in enumerate(gpus))
        raise ConfigError(f"device={device}: no such GPU; visible are {names}")
    return (Device("cuda", gpus[index]),)


def read(gpu: Gpu) -> GpuReading:
    """Ask NVML for the state of a GPU; nothing is known where NVML does not tell."""
    import pynvml

    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            return read_handle(pynvml, pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
        finally:
            pynvml.nvmlShutdown()
    return GpuReading()


def cores_near(gpu: Gpu) -> tuple[int, ...]:
    """Numbers of the cores on the GPU's side of the machine; empty where NVML does not tell."""
    import pynvml

    words = -(-(os.cpu_count() or 1) // 64)
    try:
        pynvml.nvmlInit()
        masks = pynvml.nvmlDeviceGetCpuAffinity(pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid), words)
    except pynvml.NVMLError:
        return ()
    bits = sum(int(mask) << 64 * word for word, mask in enumerate(masks))
    return tuple(core for core in range(64 * words) if bits >> core & 1)


def read_handle(nvml: Any, handle: Any) -> GpuReading:
    """Ask NVML for the state of a GPU whose handle is known."""

    def ask(
        name: str, *arguments: object, convert: Callable[[Any], Any] = lambda answer: answer
    ) -> Any:
        with suppress(nvml.NVMLError):  # not every GPU and driver answers every question
            return convert(getattr(nvml, name)(handle, *arguments))
        return None

    memory = ask("nvmlDeviceGetMemoryInfo")
    lowered = ask("nvmlDeviceGetCurrentClocksEventReasons", convert=_name_clock_reasons)
    if lowered is None:  # its name before driver 535
        lowered = ask("nvmlDeviceGetCurrentClocksThrottleReasons", convert=_name_clock_reasons)
    return GpuReading(
        driver=nvml.nvmlSystemGetDriverVersion(),
        memory_used_bytes=getattr(memory, "used", None),
        memory_total_bytes=getattr(memory, "total", None),
        pids=ask(
            "nvmlDeviceGetComputeRunningProcesses",
            convert=lambda found: frozenset(one.pid for one in found),
        ),
        compute_mode=ask("nvmlDeviceGetComputeMode", convert=lambda mode: COMPUTE_MODES[mode]),
        persistence_mode=ask("nvmlDeviceGetPersistenceMode", convert=bool),
        clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        max_clock_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        power_w=ask("nvmlDeviceGetPowerUsage", convert=_to_watts),
        power_limit_w=ask("nvmlDeviceGetPowerManagementLimit", convert=_to_watts),
        temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        lowered_clocks=lowered,
    )


def _name_clock_reasons(bits: int) -> tuple[str, ...]:
    return tuple(name for bit, name in CLOCK_REASONS.items() if bits & bit)


def _to_watts(milliwatts: int) -> float:
    return milliwatts / 1e3
