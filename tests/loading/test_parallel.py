"""Reports in several processes. Each test has a process of its own: beside the threads of pytest
nothing is forked.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from records import make_record, write_sweep

from sweeper.loading.sources import MIN_OF_A_PART, SweepFolder


def in_python(code: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("work", "printed"),
    [
        ("lambda: os.getpid() != own", "True"),
        ("lambda: int('x')", "ValueError: invalid literal for int() with base 10: 'x'"),
        ("lambda: os._exit(7)", "RuntimeError: a process of this report ended with exit code 7"),
    ],
)
def test_what_a_fork_finds_raises_or_dies_of_is_told(
    tmp_path: Path, work: str, printed: str
) -> None:
    code = f"""
        import os
        from sweeper.loading import parallel
        own = os.getpid()
        wait = parallel.start({work}, 2)
        try:
            print(wait())
        except Exception as error:
            print(f"{{type(error).__name__}}: {{error}}")
    """
    found = in_python(code, tmp_path)
    assert (found.stdout.strip(), found.stderr) == (printed, "")


def test_nothing_is_forked_beside_other_threads(tmp_path: Path) -> None:
    code = """
        import os, threading
        from sweeper.loading import parallel
        event = threading.Event()
        threading.Thread(target=event.wait).start()
        print(parallel.start(os.getpid, 2)() == os.getpid())
        event.set()
    """
    assert in_python(code, tmp_path).stdout.split() == ["True"]


def test_what_nobody_waits_for_ends_with_the_report(tmp_path: Path) -> None:
    """More than a pipe holds, and a parent that goes on to fail."""
    code = """
        from sweeper.loading import parallel
        parallel.start(lambda: "x" * 10**7, 2)
        parallel.start(lambda: __import__("time").sleep(600), 2)
        raise KeyError("something else")
    """
    found = in_python(code, tmp_path)
    assert found.stderr.splitlines()[-1] == "KeyError: 'something else'"


def test_large_sweep_reads_the_same_in_parts(tmp_path: Path) -> None:
    """Every file of the report; the trial in the middle cannot be read."""
    count = 2 * MIN_OF_A_PART + 40
    folder = write_sweep(
        tmp_path / "runs", [make_record(f"model{number:03}") for number in range(count)]
    )
    assert len(SweepFolder(folder).split(2)) == 2
    assert len(SweepFolder(folder).split(64)) == 3
    next(folder.glob(f"model{count // 2}-*/record.json")).write_text("{")
    code = """
        import sys
        from sweeper.loading import parallel
        from sweeper.report.__main__ import main
        forked = []
        start = parallel.start
        parallel.count_cores = lambda: int(sys.argv[2])
        parallel.start = lambda *arguments: (forked.append(arguments), start(*arguments))[1]
        status = main(["night", "--out", sys.argv[1]])
        print(len(forked), file=sys.stderr)
        sys.exit(status)
    """
    runs = [
        in_python(code, tmp_path, out, cores) for out, cores in (("alone", "1"), ("parts", "3"))
    ]
    assert [run.returncode for run in runs] == [1, 1], runs[0].stderr
    # Recommendations, tables and figures; two parts as well.
    assert [run.stderr.splitlines()[-1] for run in runs] == ["3", "5"]
    names = sorted(path.name for path in (tmp_path / "alone").iterdir())
    assert "speedups.csv" in names
    for name in names:
        alone, parts = ((tmp_path / out / name).read_text() for out in ("alone", "parts"))
        assert alone == parts, name
