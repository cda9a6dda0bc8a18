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
from sweeper.worker.compilation.blocks import compiled_blocks
from sweeper.worker.compilation.counters import Watch
from sweeper.worker.compilation.legacy import Converted
from sweeper.worker.failures import NotCompiledError


def compile_arguments(trial: Trial) -> dict[str, Any]:
    """Keyword arguments for `torch.compile`. With options, the mode is spelled out as options and they win."""
    arguments: dict[str, Any] = {
        "backend": trial.backend,
        "dynamic": trial.compile.dynamic,
        "fullgraph": trial.compile.fullgraph,
    }
    if trial.compile.options:
        arguments["options"] = {**torch._inductor.list_mode_options(trial.mode), **trial.compile.options}
    elif trial.mode != "default":
        arguments["mode"] = trial.mode
    return arguments


def compiled(function: Callable[..., Any], trial: Trial, watch: Watch) -> Callable[..., Any]:
    """`function` compiled as the trial says; nothing is compiled before the first call. mode=eager gives it back."""
    if trial.mode == "eager":
        return function
    if trial.backend in WITHOUT_DYNAMO:
        assert isinstance(function, torch.nn.Module)  # the plan has left out every scope but the model's
        watch.expects_graphs = False
        return Converted(function, trial.backend)
    arguments = compile_arguments(trial)
    arguments["backend"] = watch.backend(str(trial.backend))
    compile_: Callable[..., Any] = functools.partial(torch.compile, **arguments)
    if trial.compile.scope != "blocks":
        wrapped: Callable[..., Any] = compile_(function)
        return wrapped
    assert isinstance(function, torch.nn.Module)
    by_blocks = compiled_blocks(function, compile_)
    if by_blocks is None:
        raise NotCompiledError("the model has no repeated blocks; use compile.scope=model")
    return by_blocks


def end_compile_workers() -> None:
    """End the processes in which Inductor compiles; the next compilation, if there is one, starts new ones.

    They are killed first: one that has not finished importing torch would be waited for.
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
