"""How a compiled program starts: `compile.start`.

The first process of a draw finds nothing and keeps what later processes start from, in the draw's
cache folder. With `local_cache` that is torch's own caches in this folder, and nothing is done
here. The others are in https://docs.pytorch.org/docs/stable/torch.compiler.html: what
`torch.compiler.save_cache_artifacts` gives, loaded into an empty folder; `caching_precompile`,
which keeps what Dynamo found as well; and `aot_compile`, a file that does without Dynamo.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from sweeper.worker.failures import UnavailableError, describe_error
from sweeper.worker.source_lines import CACHES


def begin_start(start: str) -> None:
    """Prepare for what is compiled from now on."""
    if start == "caching_precompile":
        torch._dynamo.config.caching_precompile = True
    if start == "aot_compile" and hasattr(torch._dynamo.config, "enable_aot_compile"):
        torch._dynamo.config.enable_aot_compile = True  # off by default in older torch
    kept = _find_kept(start)
    if start == "mega_cache" and kept.exists():
        artifacts = kept.read_bytes()
        for name in CACHES:
            if folder := os.environ.get(name):
                os.environ[name] = f"{folder}-{os.getpid()}"
        torch.compiler.load_cache_artifacts(artifacts)
        _find_kept(start).touch()  # in the new folder, from which no process starts


def keep_start(start: str) -> None:
    """Keep what was compiled so far for later processes, where this is the first one.

    Raises UnavailableError where torch has nothing to keep.
    """
    kept = _find_kept(start)
    if start not in ("mega_cache", "caching_precompile") or kept.exists():
        return
    saved = torch.compiler.save_cache_artifacts()
    if saved is None:
        raise UnavailableError(f"compile.start={start}: torch has no artifacts to save")
    kept.write_bytes(saved[0])


def _find_kept(start: str) -> Path:
    return Path(cache_dir()) / f"kept_{start}"


def compile_ahead(module: torch.nn.Module, arguments: Mapping[str, Any]) -> Callable[..., Any]:
    """Have `aot_compile` compile a module at its first call, with the inputs and in the contexts of
    that call, and save it; a later process loads the file.

    The call raises UnavailableError where torch cannot make one graph of the module and save it.
    """
    kept, compiled = _find_kept("aot_compile"), None
    if kept.exists():
        with kept.open("rb") as file:
            compiled = torch.compiler.load_compiled_function(file)

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal compiled
        if compiled is None:
            forward: Any = torch.compile(module.forward, **arguments)
            try:
                compiled = forward.aot_compile((args, kwargs))
                compiled.save_compiled_function(str(kept))
            except Exception as error:  # Dynamo, Inductor and pickle raise anything
                raise UnavailableError(f"aot_compile: {describe_error(error)}") from error
        return compiled(module, *args, **kwargs)

    return call
