"""The structured trace of torch, and the report that tlparse makes of it.

`TORCH_TRACE=FOLDER` has torch write the trace; https://github.com/meta-pytorch/tlparse reads it.
Torch is not imported here: the variable has to be set before that.
"""

import subprocess
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from sweeper.core.system.leftovers import TEMPORARY, make_prefix
from sweeper.core.tlparse import explain_missing, find_tlparse

# plain text instead of HTML for code, and pages that link each kernel to the graph
OPTIONS = ("--plain-text", "--inductor-provenance", "--no-browser", "--overwrite")


def request_trace(environment: MutableMapping[str, str]) -> None:
    """Have torch, once it is imported, write its trace to a new folder, and compile into caches of
    our own.
    """
    if "TORCHINDUCTOR_CACHE_DIR" not in environment:
        cache = tempfile.mkdtemp(prefix=make_prefix(TEMPORARY))
        environment.update(
            TORCHINDUCTOR_CACHE_DIR=f"{cache}/inductor", TRITON_CACHE_DIR=f"{cache}/triton"
        )
    parent = Path(environment["TORCHINDUCTOR_CACHE_DIR"]).parent
    parent.mkdir(parents=True, exist_ok=True)
    environment["TORCH_TRACE"] = tempfile.mkdtemp(dir=parent, prefix="trace-")
    # Comments name each launch. Level 1 would change the names of kernels.
    environment["INDUCTOR_PROVENANCE"] = "2"


def write_report(trace: Path, report: Path) -> str | None:
    """Have tlparse write its report, and return why it wrote none."""
    program, files = find_tlparse(), sorted(trace.glob("*.log"))
    if program is None:
        return explain_missing()
    if not files:
        return "torch traced nothing"
    command = [program, *OPTIONS, "-o", str(report), str(files[0])]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        return f"tlparse failed: {ended.stderr.strip()[:300]}"
    (report / "raw.log").unlink(missing_ok=True)  # a copy of the trace, half of all bytes
    return None
