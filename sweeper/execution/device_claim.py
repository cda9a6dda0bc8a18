"""Device claim: a GPU has one owner, the sweep that holds its lock and whose workers alone compute
on it.
"""

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from sweeper.core.errors import ConfigError
from sweeper.core.system import gpus
from sweeper.core.system.gpus import Device, Gpu

from .lock import GO_ON, hold_lock

# Of the locks of GPUs: the first that fits. Not the temporary folder of the environment, which may
# be private.
LOCK_FOLDERS = (Path("/run/lock"), Path("/tmp"))  # noqa: S108  # both are checked
STICKY_FOR_ALL = stat.S_ISVTX | stat.S_IRWXO
FREE_S = 20.0  # for a worker whose driver was killed to let go of its GPU


@contextmanager
def claim_devices(devices: Sequence[Device], locks: bool = True) -> Iterator[tuple[Device, ...]]:
    """Claim the devices that no other driver of this machine has, as long as the body runs. A CPU
    has no owner.

    Without `locks`, only those are left out on which a worker of another driver is seen. Raises
    ConfigError that says who has them, when none is free.
    """
    taken = []
    with ExitStack() as held:
        free = []
        for device in devices:
            try:
                if device.gpu is not None:
                    if locks:
                        held.enter_context(
                            hold_lock(_lock_file(device.gpu.uuid), f"GPU {device.gpu.uuid}")
                        )
                    _require_no_worker(device.gpu)
                free.append(device)
            except ConfigError as error:
                taken.append(error)
        if not free:
            raise ConfigError("; ".join(map(str, taken)))
        yield tuple(free)


def _lock_file(uuid: str) -> Path:
    """The lock of a GPU, in a folder that is the same for every user, and where no user removes the
    files of others.

    Raises ConfigError where there is no such folder.
    """
    for folder in LOCK_FOLDERS:
        with suppress(FileNotFoundError):
            found = folder.stat()
            # 65534: root as a container without root's rights sees it
            is_trusted = found.st_uid in (0, os.getuid(), 65534)
            if is_trusted and found.st_mode & STICKY_FOR_ALL == STICKY_FOR_ALL:
                return folder / f"sweeper-{uuid}.lock"
    folders = " nor ".join(map(str, LOCK_FOLDERS))
    why = "belongs to root and is open to everybody with its sticky bit set (chmod 1777)"
    raise ConfigError(f"no place for the locks of GPUs: neither {folders} {why}. {GO_ON}")


def _require_no_worker(gpu: Gpu) -> None:
    """Raise ConfigError when NVML lists another driver's worker, whose lock may lie where this
    process cannot see it.

    A worker whose driver was killed needs a moment to free the device.
    """
    deadline = time.monotonic() + FREE_S
    while workers := [pid for pid in gpus.read(gpu).pids or () if _is_worker(pid)]:
        if time.monotonic() > deadline:
            raise ConfigError(
                f"GPU {gpu.uuid} is in use by process {workers[0]}, a worker of another sweep, "
                "whose lock cannot be seen from here"
            )
        time.sleep(0.5)


def _is_worker(pid: int) -> bool:
    with suppress(OSError):  # it has ended, or has another number here than NVML says
        return b"sweeper.worker" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False
