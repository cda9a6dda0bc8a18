"""Reports of large sweeps: wall and CPU seconds and peak memory, from the folder and from an MLflow
server.

    python benchmarks/reports.py [RECORDS...] [--server RUNS] [--before CHECKOUT [--pairs N]]

Multiplies the records in docs/results/records, three processes each, to sweeps of RECORDS (default:
1630 10000), writes their reports, and opens each page in a headless Chromium where that and
selenium are installed. Then it sends a sweep of RUNS (default: 2000; 0 leaves this out) to an
`mlflow server` on this machine with `python -m sweeper.sync`, and writes that report from the
server. CPU seconds are those of the command, user and system; the server's own come beside them.

With --before, the sweeps are reported in turn with the code of another checkout, and with the code
that stands here, N times each (default: 5), and nothing else is done. It ends with the names of the
files that both do not write alike.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError

from sweeper.core.paths import SweepPaths
from sweeper.core.record import Process, Record

HERE = Path(__file__).resolve().parent.parent
STORED = HERE / "docs" / "results" / "records"
PROCESSES = 3
START_S = 120  # a server needs a while for its first tables
IS_THERE = """
    const tables = [...document.querySelectorAll('section[data-table]')];
    document.querySelector('.figure').scrollIntoView();  // it is drawn when it is seen
    return document.querySelector('.figure[data-drawn]')
        && tables.every((table) => table.querySelector('tr.row'));
"""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Of one command; MiB of the process that had most of them at once."""

    wall_s: float
    cpu_s: float
    mebibytes: float
    server_cpu_s: float | None = None


def main(counts: Sequence[int], runs: int, before: Path | None, pairs: int) -> None:
    records = stored_records()
    print(f"{'':36} {'records':>8} {'wall s':>8} {'CPU s':>8} {'server':>8} {'MiB':>6}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for count in counts:
            write_sweep(folder, f"of-{count}", records, count)
            if before:
                compare(folder, count, before, pairs)
                continue
            _row("report from the folder", count, measure(folder, "sweeper.report", f"of-{count}"))
            open_page(folder / "runs" / f"of-{count}" / "report" / "report.html", count)
        if runs and not before:
            sweep = write_sweep(folder, "served", records, runs)
            with mlflow_server(folder) as (uri, group):
                where = ("--tracking-uri", uri)
                _row(
                    "sent to a server",
                    runs,
                    measure(folder, "sweeper.sync", sweep, *where, group=group),
                )
                arguments = (sweep, *where, "--out", "from-server")
                _row(
                    "report from the server",
                    runs,
                    measure(folder, "sweeper.report", *arguments, group=group),
                )


def compare(folder: Path, count: int, before: Path, pairs: int) -> None:
    """Report a sweep in turn with the code of another checkout and with ours, and name the files
    that differ.
    """
    for _ in range(pairs):
        for name, code in (("before", before), ("after", HERE)):
            load = f"{os.getloadavg()[0]:.0f}"
            cost = measure(folder, "sweeper.report", f"of-{count}", "--out", name, code=code)
            _row(f"{name}, at a load of {load}", count, cost)
    names = {path.name for out in ("before", "after") for path in (folder / out).iterdir()}
    _, differ, missing = filecmp.cmpfiles(folder / "before", folder / "after", names, shallow=False)
    print(f"files that differ: {', '.join(sorted(differ + missing)) or 'none'}", flush=True)


def open_page(page: Path, count: int) -> None:
    """Seconds from asking for a page until every table has its rows and the first figure is drawn,
    three times.
    """
    driver = shutil.which("chromedriver")
    if driver is None or find_spec("selenium") is None:
        print("the page was not opened: selenium or chromedriver is not installed")
        return
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.support.wait import WebDriverWait

    options = webdriver.ChromeOptions()
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--window-size=1400,1000",
    ):
        options.add_argument(flag)
    with webdriver.Chrome(options, Service(driver)) as browser:
        for _ in range(3):
            browser.get("about:blank")
            start = time.perf_counter()
            browser.get(page.as_uri())
            WebDriverWait(browser, START_S, 0.02).until(
                lambda driver: driver.execute_script(IS_THERE)
            )
            print(
                f"{'the page in Chromium':36} {count:8} {time.perf_counter() - start:8.1f}",
                flush=True,
            )


def _row(what: str, count: int, cost: Cost) -> None:
    server = "" if cost.server_cpu_s is None else f"{cost.server_cpu_s:.1f}"
    print(
        f"{what:36} {count:8} {cost.wall_s:8.1f} {cost.cpu_s:8.1f} {server:>8} "
        f"{cost.mebibytes:6.0f}",
        flush=True,
    )


def stored_records() -> list[Record]:
    """Every record in docs/results/records."""
    found = []
    for archive in sorted(STORED.glob("*.tar.xz")):
        with tarfile.open(archive) as tar:
            for member in sorted(tar.getmembers(), key=lambda member: member.name):
                if member.name.endswith("/record.json") and (file := tar.extractfile(member)):
                    found.append(Record.loads(file.read().decode()))
    return found


def write_sweep(folder: Path, name: str, records: Sequence[Record], count: int) -> str:
    """A sweep of `count` trials: the records over and over, with models that are called differently
    each time.
    """
    paths = SweepPaths.of(name, folder / "runs")
    for number in range(count):
        record = _copy(records[number % len(records)], name, number)
        file = paths.trial(record.label, record.trial_id).record
        file.parent.mkdir(parents=True)
        file.write_text(record.dumps())
    return name


def _copy(record: Record, sweep: str, number: int) -> Record:
    trial = record.trial
    trial = replace(
        trial,
        model=replace(trial.model, name=f"{trial.model.name}_{number}"),
        labels=replace(trial.labels, model=f"{number}_{trial.labels.model}"),
    )
    processes = tuple(
        _process(item, index) for item in record.processes[:1] for index in range(PROCESSES)
    )
    return replace(
        record, trial=trial, trial_id=trial.id, label=trial.label, sweep=sweep, processes=processes
    )


def _process(process: Process, index: int) -> Process:
    """One more process, whose compiled blocks take some thousandths longer."""
    rounds = tuple(
        replace(item, compiled_s=item.compiled_s * (1 + 0.003 * index) if item.compiled_s else None)
        for item in process.rounds
    )
    return replace(process, index=index, cold=index == 0, rounds=rounds)


def measure(
    folder: Path, module: str, *arguments: str, group: int | None = None, code: Path = HERE
) -> Cost:
    """Run `python -m module` of a checkout in a folder, beside the server whose process group is
    `group`.
    """
    before, start = _cpu_s_of(group), time.perf_counter()
    with (folder / "output").open("wb") as output:
        command = [sys.executable, "-m", module, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(code)}
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - start
    if status:
        sys.exit((folder / "output").read_text())
    served_s = _cpu_s_of(group) - before if group is not None else None
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, served_s)


def _cpu_s_of(group: int | None) -> float:
    """CPU seconds of the processes of a group so far, by /proc/PID/stat (proc(5): fields 5, 14 and
    15).
    """
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat") if group is not None else ():
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group:
            total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


@contextmanager
def mlflow_server(folder: Path) -> Iterator[tuple[str, int]]:
    """A server with a store of its own, as `mlflow server` starts it: its address and its process
    group.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = [
        "--backend-store-uri",
        f"sqlite:///{folder}/server.db",
        "--artifacts-destination",
        f"{folder}/artifacts",
    ]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *store,
    ]
    environment = {
        **os.environ,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(process, f"http://127.0.0.1:{port}/health", folder / "server.log")
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    sys.exit(f"no mlflow server:\n{log.read_text()[-2000:]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Seconds and memory of large reports.")
    parser.add_argument("records", nargs="*", type=int, default=[1630, 10_000])
    parser.add_argument("--server", type=int, default=2000, metavar="RUNS")
    parser.add_argument("--before", type=lambda name: Path(name).resolve(), metavar="CHECKOUT")
    parser.add_argument("--pairs", type=int, default=5, metavar="N")
    parsed = parser.parse_args()
    main(parsed.records, parsed.server, parsed.before, parsed.pairs)
