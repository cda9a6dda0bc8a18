"""What the compiler left behind: fingerprints of code and autotuning, where the time went, what the
caches gave.

Two processes with the same fingerprints ran the same kernels; Inductor autotunes kernels while it
compiles, so two caches may end with different ones.
"""

import hashlib
import json
import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch._dynamo.utils import compilation_time_metrics, counters

from .heard_logs import HeardLogs

# Keys of torch._dynamo.utils.compilation_time_metrics, seconds of each call. Dynamo's frames hold
# the backend's time, AOTAutograd's that of Inductor, Inductor's the autotuning of templates; that
# of kernels comes at their first launch.
FRAMES = "_compile.compile_inner"
BACKEND = "OutputGraph.call_user_compiler"
BACKWARD = "backward._backward_impl"
INDUCTOR = "compile_fx_inner"

KERNELS = ("CachingAutotuner.benchmark_all_configs", "CachingAutotuner.coordinate_descent_tuning")

# Fields of a `Process`, with the group of torch's counters and how their keys begin.
CACHES = {
    "compile_cache": ("inductor", "fxgraph_cache"),
    "autograd_cache": ("aot_autograd", "autograd_cache"),
}
OUTCOMES = {"hits": "hit", "misses": "miss", "bypassed": "bypass"}
CACHE_LOGS = ("torch._inductor.codecache", "torch._functorch._aot_autograd.autograd_cache")
REASON_LENGTH = 300


# why a cache cannot hold a graph; one, as torch's logs and counters are global
bypass_log = HeardLogs(CACHE_LOGS, logging.INFO, ("Bypassing ",))


def read_fingerprints() -> dict[str, Any]:
    """Read the fingerprints, and what the caches gave so far, as fields of a `Process`."""
    found: dict[str, Any] = {}
    for name, (group, prefix) in CACHES.items():
        counts = {key: int(counters[group][f"{prefix}_{end}"]) for key, end in OUTCOMES.items()}
        found[name] = counts if any(counts.values()) else {}
    return found | {
        "cache_bypasses": dict(Counter(map(_shorten, bypass_log.texts))),
        "code_fingerprint": code_fingerprint(),
        "autotuning_fingerprint": autotuning_fingerprint(),
    }


def _shorten(reason: str) -> str:
    # an address is another one in each process
    return re.sub(" at 0x[0-9a-f]+", "", " ".join(reason.split()))[:REASON_LENGTH]


def read_parts_s() -> dict[str, float]:
    """Read the seconds of each part of this process's compilations; the parts do not overlap."""
    spent = defaultdict(float)
    templates = 0.0
    for name, times in compilation_time_metrics.items():
        spent[name] = sum(times)
        if name.endswith("_template_autotuning"):  # e.g. mm_template_autotuning
            templates += spent[name]
    if not spent[FRAMES]:
        return {}
    return {
        "dynamo": max(spent[FRAMES] - spent[BACKEND], 0.0),
        "aot_autograd": max(spent[BACKEND] + spent[BACKWARD] - spent[INDUCTOR], 0.0),
        "inductor": max(spent[INDUCTOR] - templates, 0.0),
        "autotuning": templates + sum(spent[name] for name in KERNELS),
    }


def code_fingerprint() -> str | None:
    """Digest of the generated modules that hold a compiled graph with its kernels; None when there
    is none.
    """
    codes = []
    for source in _generated_sources():
        # Comments name files of the private cache.
        lines = [line for line in source.splitlines() if not line.lstrip().startswith("#")]
        codes.append("\n".join(lines))
    return _digest(codes)


def count_kernels() -> int | None:
    """How many kernels the generated modules define, user's own Triton kernels among them.

    None when there is no module, and with `cpp_wrapper`, whose kernels are in C++ text.
    """
    source = "\n".join(_generated_sources())
    if not source or "CppWrapperCodeCache" in source:
        return None
    return len(re.findall(r"^\w+ = async_compile\.\w+\(", source, re.MULTILINE))


def _generated_sources() -> Iterator[str]:
    """The text of each generated module that holds a compiled graph."""
    from torch._inductor.codecache import PyCodeCache

    for module in PyCodeCache.modules:
        if hasattr(module, "call") and module.__file__:
            yield Path(module.__file__).read_text()


def autotuning_fingerprint() -> str | None:
    """Digest of the configurations that won, from the private cache; None when nothing was
    autotuned.
    """
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if not folder:
        return None
    choices = []
    for file in Path(folder).glob("**/*.best_config"):
        winner = json.loads(file.read_text())
        for key in ("time_taken_ms", "triton_cache_hash"):  # they are no choices
            winner.pop(key, None)
        choices.append(json.dumps([file.stem, winner], sort_keys=True))
    return _digest(choices)


def _digest(parts: Iterable[str]) -> str | None:
    text = "\0".join(sorted(parts))
    return hashlib.sha256(text.encode()).hexdigest()[:12] if text else None
