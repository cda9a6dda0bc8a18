"""The parent stays light: what answers without a worker does not import torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "torchvision", "timm", "transformers", "mlflow", "pandas", "plotly")


@pytest.mark.parametrize(
    "code",
    [
        "import sweeper",
        "import sweeper.sweep.hydra_app, sweeper.tracking.tracker, sweeper.report.build, sweeper.execution.execute",
        "import runpy, sys; sys.argv = ['sweeper', '--help']; runpy.run_module('sweeper', run_name='__main__')",
        "import runpy, sys; sys.argv = ['sweeper', 'model=nope']; runpy.run_module('sweeper', run_name='__main__')",
        "import runpy, sys; sys.argv = ['sweeper', 'dry_run=true', 'device=cpu'];"
        "runpy.run_module('sweeper', run_name='__main__')",
    ],
    ids=["package", "parent", "help", "bad option", "dry run"],
)
def test_parent_imports_nothing_heavy(code: str) -> None:
    script = f"""
import sys
try:
    exec({code!r})
except SystemExit:
    pass
print("heavy:", [name for name in {HEAVY!r} if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "heavy: []", result.stdout + result.stderr
