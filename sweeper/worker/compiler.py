"""`torch.compile` as a trial asks for it: its arguments, whether the backend exists, and stances.

Torch refuses `mode` together with `options`, ignores `mode` for all backends but Inductor, and only warns about
`cudagraphs` on a CPU; here each of these is said.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable
from typing import Any

import torch

from sweeper.trial import Trial
from sweeper.worker.blocks import compiled_blocks
from sweeper.worker.diagnostics import Watch
from sweeper.worker.failures import NotCompiledError, UnavailableError

FOR_DEBUGGING = ("_TESTING_ONLY", "_minifier_backend")


def known_backends() -> list[str]:
    """Names of the backends that torch lists, without its own tools for debugging."""
    return [name for name in torch._dynamo.list_backends(None) if not name.endswith(FOR_DEBUGGING)]


def require_available(trial: Trial, device: torch.device) -> None:
    """Raises UnavailableError when the backend is missing or does not work on the device."""
    if trial.backend is None:
        return
    known = known_backends()
    if trial.backend not in torch._dynamo.list_backends(None):
        raise UnavailableError(f"backend {trial.backend} is not installed; torch knows {', '.join(sorted(known))}")
    if trial.backend == "cudagraphs" and device.type != "cuda":
        raise UnavailableError(f"backend cudagraphs needs a CUDA device, this trial runs on {device.type}")


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
