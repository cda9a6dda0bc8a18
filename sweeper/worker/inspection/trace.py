"""The structured trace of torch, and the report that tlparse makes of it.

`TORCH_TRACE=FOLDER` has torch write the trace; https://github.com/meta-pytorch/tlparse reads it.
Torch is not imported here: the variable has to be set before that.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.system.leftovers import TEMPORARY, make_prefix
from sweeper.core.tlparse import explain_missing, find_tlparse

# plain text instead of HTML for code, and pages that link each kernel to the graph
OPTIONS = ("--plain-text", "--inductor-provenance", "--no-browser", "--overwrite")
AOT_ID = re.compile(r"^# AOT ID: \['\d+_([a-z]+)'", re.MULTILINE)
LAUNCH = re.compile(r"^\s*(?:#|//) \[Provenance debug handles\] (\S+):\d+$", re.MULTILINE)
DEFINITION = re.compile(r"^(\w+) = async_compile\.", re.MULTILINE)
# kernels that the code does not define, as with `cpp_wrapper`
OF_INDUCTOR = re.compile(r"(cpp|triton)_")
OPERATION = re.compile(r" = torch\.ops\.")
NUMBER = re.compile(r"_\d+$")  # makes the names of kernels different


@dataclass(frozen=True)
class CompiledPart:
    """A forward, backward or inference graph for which Inductor wrote code."""

    compile_id: str  # frame/compilation, as in the logs of torch
    direction: str
    num_operations: int  # of the graph, after the passes of Inductor
    kernels: Mapping[str, int]  # launches by name, without the number at its end
    library_calls: Mapping[str, int]


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
    # comments that name each launch; level 1 would change the names of kernels
    environment["INDUCTOR_PROVENANCE"] = "2"


def take_folder(environment: MutableMapping[str, str]) -> Path:
    """Return where torch writes; to be called once torch is imported, so that processes started
    later write elsewhere.
    """
    return Path(environment.pop("TORCH_TRACE"))


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


def read_parts(report: Path) -> list[CompiledPart]:
    """Read the parts from a report, in the order in which they were compiled."""
    directory = report / "compile_directory.json"
    if not directory.exists():
        return []
    parts = []
    for name, compiled in json.loads(directory.read_text()).items():
        compile_id = name.strip("[]").partition("_")[0]  # [0/1_2]: attempt 2 of 0/1
        graph = ""
        for artifact in compiled["artifacts"]:
            file = report / artifact["url"]
            if artifact["name"].startswith("inductor_post_grad_graph"):
                graph = file.read_text()
            elif artifact["name"].startswith("inductor_output_code"):
                parts.append(read_part(compile_id, graph, file.read_text()))
    return parts


def read_part(compile_id: str, graph: str, code: str) -> CompiledPart:
    """Count the operations of a graph, and what its code launches."""
    defined = set(DEFINITION.findall(code))
    kernels, calls = Counter[str](), Counter[str]()
    for name in LAUNCH.findall(code):
        if name in defined or OF_INDUCTOR.match(name):
            kernels[NUMBER.sub("", name)] += 1
        else:
            calls[name] += 1
    matched = AOT_ID.search(code)
    direction = matched.group(1) if matched else ""
    return CompiledPart(compile_id, direction, len(OPERATION.findall(graph)), kernels, calls)
