"""What the compiler left behind: fingerprints of code and autotuning, where the time went, what the cache gave.

Two processes with the same fingerprints ran the same kernels; Inductor races kernels while it compiles, so two caches
may end with different ones. Place in the flow: `session` reads this after the first steps and after warm-up.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch._dynamo.utils import compilation_time_metrics, counters

DIGITS = 12
# Keys of torch._dynamo.utils.compilation_time_metrics, seconds of each call. Dynamo's frames hold the backend's time,
# AOTAutograd's that of Inductor, Inductor's the races of templates; those of kernels come at their first launch.
FRAMES, BACKEND, BACKWARD = "_compile.compile_inner", "OutputGraph.call_user_compiler", "backward._backward_impl"
INDUCTOR = "compile_fx_inner"
RACES_OF_TEMPLATES = "_template_autotuning"  # the end of a key, `mm_template_autotuning`
RACES_OF_KERNELS = ("CachingAutotuner.benchmark_all_configs", "CachingAutotuner.coordinate_descent_tuning")
NOT_A_CHOICE = ("time_taken_ms", "triton_cache_hash")  # of a kernel's winner


def found() -> dict[str, Any]:
    """What the cache gave and the fingerprints so far, as fields of a `Process`."""
    return {
        "compile_cache": cache(),
        "code_fingerprint": code_fingerprint(),
        "autotuning_fingerprint": autotuning_fingerprint(),
    }


def parts_s() -> dict[str, float]:
    """Seconds of this process's compilations, told apart; they do not overlap."""
    spent = {name: sum(times) for name, times in compilation_time_metrics.items()}
    templates = sum(seconds for name, seconds in spent.items() if name.endswith(RACES_OF_TEMPLATES))
    frames, backend, backward = (spent.get(name, 0.0) for name in (FRAMES, BACKEND, BACKWARD))
    inductor = spent.get(INDUCTOR, 0.0)
    if not frames:
        return {}
    return {
        "dynamo": max(frames - backend, 0.0),
        "aot_autograd": max(backend + backward - inductor, 0.0),
        "inductor": max(inductor - templates, 0.0),
        "autotuning": templates + sum(spent.get(name, 0.0) for name in RACES_OF_KERNELS),
    }


def cache() -> dict[str, int]:
    """How many graphs Inductor found in its cache, compiled anew, or could not cache."""
    found = {name: int(counters["inductor"][f"fxgraph_cache_{key}"]) for name, key in _CACHE.items()}
    return found if any(found.values()) else {}


_CACHE = {"hits": "hit", "misses": "miss", "bypassed": "bypass"}


def code_fingerprint() -> str | None:
    """Digest of the generated modules that hold a compiled graph with its kernels; None when there is none."""
    from torch._inductor.codecache import PyCodeCache

    files = [str(module.__file__) for module in PyCodeCache.modules if hasattr(module, "call") and module.__file__]
    return _digest(sorted(_code(Path(file)) for file in files))


def _code(file: Path) -> str:
    """Source without comments, which name files of the private cache."""
    return "\n".join(line for line in file.read_text().splitlines() if not line.lstrip().startswith("#"))


def autotuning_fingerprint() -> str | None:
    """Digest of the configurations that won, from the private cache; None when there were no races."""
    return _digest(sorted(_winners(Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")))))


def _winners(cache_folder: Path) -> Iterator[str]:
    if not cache_folder.name:
        return
    for file in cache_folder.glob("**/*.best_config"):
        choice = json.loads(file.read_text())
        kept = {key: value for key, value in choice.items() if key not in NOT_A_CHOICE}
        yield json.dumps([file.stem, kept], sort_keys=True)


def _digest(parts: Iterable[str]) -> str | None:
    text = "\0".join(parts)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS] if text else None
