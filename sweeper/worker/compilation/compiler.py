"""What makes the compiled arm: `torch.compile` with the arguments of a trial, or one of torch's older ways.

Torch refuses `mode` together with `options`; which backends take neither is in `sweeper.core.backends`.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable
from typing import Any

import torch

from sweeper.core.backends import WITHOUT_DYNAMO
from sweeper.core.trial import Trial
from sweeper.worker.compilation.blocks import Function, compile_blocks
from sweeper.worker.compilation.counters import CompileCounters
from sweeper.worker.compilation.legacy import LegacyModule


def compile_arguments(trial: Trial) -> dict[str, Any]:
    """Keyword arguments for `torch.compile`. With options, the mode is spelled out as options and they win."""
    chosen = trial.compile
    arguments: dict[str, Any] = {"backend": trial.backend, "dynamic": chosen.dynamic, "fullgraph": chosen.fullgraph}
    if chosen.options:
        arguments["options"] = {**torch._inductor.list_mode_options(trial.mode), **chosen.options}
    elif trial.mode != "default":
        arguments["mode"] = trial.mode
    return arguments


def compile_function(function: Function, trial: Trial, counters: CompileCounters) -> Function:
    """Compile `function` as the trial says, in its first call; give it back as it is with mode=eager."""
    if trial.mode == "eager":
        return function
    if trial.backend in WITHOUT_DYNAMO:
        assert isinstance(function, torch.nn.Module)  # the plan has left out every scope but the model's
        counters.expects_graphs = False
        return LegacyModule(function, trial.backend)
    arguments = compile_arguments(trial) | {"backend": counters.wrap_backend(str(trial.backend))}
    compile_: Callable[[Function], Function] = functools.partial(torch.compile, **arguments)
    if trial.compile.scope != "blocks":
        return compile_(function)
    assert isinstance(function, torch.nn.Module)
    return compile_blocks(function, compile_)


def end_compile_workers() -> None:
    """End the processes in which Inductor compiles; the next compilation, if there is one, starts new ones.

    They are killed first, because one that has not finished importing torch would be waited for.
    """
    from torch._inductor import async_compile

    for pool in async_compile._pool_set:
        if isinstance(sidecar := getattr(pool, "process", None), subprocess.Popen):
            sidecar.kill()
    async_compile.shutdown_compile_workers()


def uses_cuda_graphs(trial: Trial, device: torch.device) -> bool:
    """Whether replays of recorded graphs are asked for, which need each step to be marked."""
    if device.type != "cuda" or trial.mode == "eager":
        return False
    options = {**torch._inductor.list_mode_options(trial.mode), **trial.compile.options}
    return trial.backend == "cudagraphs" or (trial.backend == "inductor" and bool(options.get("triton.cudagraphs")))
