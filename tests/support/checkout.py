"""Where the checkout and the helpers of the tests are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests" / "support"
SEARCH_PATH = f"{SUPPORT}{os.pathsep}{ROOT}"
Run = Callable[..., subprocess.CompletedProcess[str]]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


HEAVY = ("torch", "mlflow", "pandas", "transformers", "timm", "hydra")


def place_in_factories(line: str) -> str:
    """Where `factories` has a line, as messages name it; it must have that line once."""
    lines = [found.strip() for found in (SUPPORT / "factories.py").read_text().splitlines()]
    assert lines.count(line) == 1, line
    return f"factories.py:{lines.index(line) + 1}"


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python in a folder, with the code of the checkout, and keep what it writes."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
