"""Refuses scripts that start several processes which train, where `model.launch` does not."""

import os
import resource
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch
import torch.multiprocessing

from sweeper.worker.failures import UnavailableError

from .patches import Patches
from .script_runner import EndOfScript

LAUNCH = "model.launch='torchrun --nproc-per-node N'"
MIN_CHILDREN_S = 0.1  # of processor time


def refuse_several(
    patches: Patches, finish: Callable[[BaseException], None], is_launched: bool
) -> None:
    """Call `finish` with a failure, and end the script, where it joins a group of processes that no
    launcher of ours has started, or starts several that train.
    """

    def refuse(reason: str) -> NoReturn:
        finish(UnavailableError(f"{reason}; give what starts them: {LAUNCH}"))
        raise EndOfScript

    for name in ("spawn", "start_processes"):
        start = partial(_start_one, name, getattr(torch.multiprocessing, name), refuse)
        patches.replace(torch.multiprocessing, name, start)
    if is_launched or not torch.distributed.is_available():
        return
    join = torch.distributed.init_process_group

    def join_alone(*arguments: Any, **options: Any) -> Any:
        given = options.get("world_size", arguments[3] if len(arguments) > 3 else -1)
        size = given if given and given > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        if size > 1:
            refuse(f"the script trains in {size} processes (torch.distributed.init_process_group)")
        return join(*arguments, **options)

    patches.replace(torch.distributed, "init_process_group", join_alone)


def _start_one(
    name: str,
    start: Callable[..., Any],
    refuse: Callable[[str], NoReturn],
    /,
    fn: Any,
    args: Any = (),
    nprocs: int = 1,
    *rest: Any,
    **options: Any,
) -> Any:
    if nprocs > 1:
        refuse(f"the script trains in {nprocs} processes (torch.multiprocessing.{name})")
    return start(fn, args, nprocs, *rest, **options)


def describe_children() -> str:
    """Say that processes which the script has started, and which have ended, did the work; empty
    where they did none.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    if seconds < MIN_CHILDREN_S:
        return ""
    return (
        f", but processes that it started used {seconds:.1f} s of processor time; give what starts "
        f"them as {LAUNCH}, or sweeper sees the first alone"
    )
