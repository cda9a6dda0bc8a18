"""What the compiler left behind: fingerprints of code and autotuning, where the time went, what the
cache gave.

Two processes with the same fingerprints ran the same kernels; Inductor autotunes kernels while it
compiles, so two caches may end with different ones.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch._dynamo.utils import compilation_time_metrics, counters

DIGITS = 12
# in a generated module
KERNEL_DEFINITION = re.compile(r"^(\w+) = async_compile\.(\w+)\(", re.MULTILINE)
# Keys of torch._dynamo.utils.compilation_time_metrics, seconds of each call. Dynamo's frames hold
# the backend's time, AOTAutograd's that of Inductor, Inductor's the autotuning of templates; that
# of kernels comes at their first launch.
FRAMES, BACKEND, BACKWARD = (
    "_compile.compile_inner",
    "OutputGraph.call_user_compiler",
    "backward._backward_impl",
)
INDUCTOR = "compile_fx_inner"
TEMPLATES = "_template_autotuning"  # the end of a key, `mm_template_autotuning`
KERNELS = ("CachingAutotuner.benchmark_all_configs", "CachingAutotuner.coordinate_descent_tuning")
NOT_A_CHOICE = ("time_taken_ms", "triton_cache_hash")  # of a kernel's winner
CACHE = {
    "hits": "fxgraph_cache_hit",
    "misses": "fxgraph_cache_miss",
    "bypassed": "fxgraph_cache_bypass",
}


def read_fingerprints() -> dict[str, Any]:
    """Read the fingerprints, and what the cache gave so far, as fields of a `Process`."""
    cache = {name: int(counters["inductor"][key]) for name, key in CACHE.items()}
    fingerprints = {
        "code_fingerprint": code_fingerprint(),
        "autotuning_fingerprint": autotuning_fingerprint(),
    }
    return {"compile_cache": cache if any(cache.values()) else {}, **fingerprints}


def read_parts_s() -> dict[str, float]:
    """Read the seconds of each part of this process's compilations; the parts do not overlap."""
    spent = {name: sum(times) for name, times in compilation_time_metrics.items()}
    templates = sum(seconds for name, seconds in spent.items() if name.endswith(TEMPLATES))
    frames, backend, backward, inductor = (
        spent.get(name, 0.0) for name in (FRAMES, BACKEND, BACKWARD, INDUCTOR)
    )
    if not frames:
        return {}
    return {
        "dynamo": max(frames - backend, 0.0),
        "aot_autograd": max(backend + backward - inductor, 0.0),
        "inductor": max(inductor - templates, 0.0),
        "autotuning": templates + sum(spent.get(name, 0.0) for name in KERNELS),
    }


def code_fingerprint() -> str | None:
    """Digest of the generated modules that hold a compiled graph with its kernels; None when there
    is none.
    """
    sources = (source.splitlines() for source in _generated_sources())
    # Comments name files of the private cache.
    return _digest(
        "\n".join(line for line in source if not line.lstrip().startswith("#"))
        for source in sources
    )


def count_kernels() -> int | None:
    """How many kernels the generated modules define, user's own Triton kernels among them.

    None when there is no module, and with `cpp_wrapper`, whose kernels are in C++ text.
    """
    sources = list(_generated_sources())
    if not sources or any("CppWrapperCodeCache" in source for source in sources):
        return None
    return sum(len(KERNEL_DEFINITION.findall(source)) for source in sources)


def _generated_sources() -> Iterator[str]:
    """The text of each generated module that holds a compiled graph."""
    from torch._inductor.codecache import PyCodeCache

    files = [
        str(module.__file__)
        for module in PyCodeCache.modules
        if hasattr(module, "call") and module.__file__
    ]
    return (Path(file).read_text() for file in files)


def autotuning_fingerprint() -> str | None:
    """Digest of the configurations that won, from the private cache; None when nothing was
    autotuned.
    """
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    files = Path(folder).glob("**/*.best_config") if folder else ()
    winners = ((file.stem, json.loads(file.read_text()).items()) for file in files)
    choices = (
        [name, {key: value for key, value in items if key not in NOT_A_CHOICE}]
        for name, items in winners
    )
    return _digest(json.dumps(choice, sort_keys=True) for choice in choices)


def _digest(parts: Iterable[str]) -> str | None:
    text = "\0".join(sorted(parts))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS] if text else None
