"""tlparse, the program that `inspect=true` needs: https://github.com/meta-pytorch/tlparse."""

import os
import shutil
import sys
from pathlib import Path


def find_tlparse(python: str | None = None) -> str | None:
    """Find the program beside an interpreter, which is by default this one, or on the PATH."""
    scripts = Path(python or sys.executable).parent
    return shutil.which(
        "tlparse", path=f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    )


def explain_missing(python: str | None = None) -> str:
    return f"inspect=true needs tlparse; type: {python or sys.executable} -m pip install tlparse"
