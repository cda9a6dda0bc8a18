"""Two assemblers: the `ptxas` of Triton, and the one that torch has for CUDA 13, up to 2.12.

Inductor compiles the candidates of autotuning ahead in worker processes, which take torch's. The
main process takes Triton's, so it finds none of them in Triton's cache, since the version is part
of the key, and compiles them again, one by one.
"""

import os
import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path

import torch

VARIABLE = "TRITON_PTXAS_PATH"


def explain_second_ptxas() -> str | None:
    """Say how to have candidates of autotuning compiled once; None where they are."""
    own, triton = Path(torch.__file__).with_name("bin") / "ptxas", find_spec("triton")
    if VARIABLE in os.environ or triton is None or triton.origin is None or not own.is_file():
        return None
    other = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "ptxas"
    versions = {_read_version(own), _read_version(other)}
    if None in versions or len(versions) == 1:
        return None
    return (
        "max-autotune compiles each candidate twice, because torch and Triton have different "
        f"versions of ptxas; to compile it once: export {VARIABLE}={shlex.quote(str(own))}"
    )


def _read_version(ptxas: Path) -> str | None:
    """Read the version that it prints; None if it does not run."""
    try:
        command = [str(ptxas), "--version"]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
