"""Scripts of users in a worker of their own, as a sweep runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from checkout import ROOT

from sweeper.analysis.derive import derive
from sweeper.core.libraries import SCRIPT
from sweeper.core.protocol import Job, LeaseGrant, LeaseNews, Outcome, Phase, decode
from sweeper.core.record import Record, ScriptRun
from sweeper.core.settings import Measure
from sweeper.core.trial import Labels, Model, Trial
from sweeper.loading.entries import Entry
from sweeper.report.answers.scripts import ScriptAnswer

SCRIPTS = ROOT / "tests" / "scripts"
MEASURE = Measure(processes=1, rounds=2, rounds_s=0.3, block_s=0.01, warmup_s=0.1)
BEGIN = """
import os, signal, sys, torch
torch.manual_seed(0)
torch.set_num_threads(1)
module = torch.nn.Sequential(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
def steps(count):
    for _ in range(count):
        optimizer.zero_grad()
        module(torch.ones(4, 8)).sum().backward()
        optimizer.step()
"""


def make_trial(
    path: str, arguments: str = "", mode: str = "default", backend: str = "aot_eager"
) -> Trial:
    model = Model(SCRIPT, path, arguments={"args": arguments} if arguments else {})
    labels = Labels(Path(path).name, "own")
    axes = {"workload": SCRIPT, "device": "cpu", "optimizer": "none", "mode": mode}
    return Trial(model, 1, labels, backend=None if mode == "eager" else backend, **axes)  # type: ignore[arg-type]


def run_worker(
    trial: Trial, folder: Path, measure: Measure = MEASURE, **variables: str
) -> tuple[Outcome, str]:
    """Run a worker in a folder; its outcome, and what else it wrote."""
    job = folder / "trial.json"
    job.write_text(Job(trial, measure).dumps())
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": str(ROOT),
        **variables,
    }
    receive, send = os.pipe()
    log = folder / "worker.log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            [sys.executable, "-m", "sweeper.worker", str(job), "--answer-fd", str(send)],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            text=True,
            pass_fds=[send],
            start_new_session=True,
        ) as worker,
    ):
        os.close(send)
        assert worker.stdin is not None
        worker.stdin.write(LeaseNews(grant=LeaseGrant()).dumps())
        worker.stdin.flush()
        with os.fdopen(receive, "rb") as answer:
            messages = [decode(line) for line in answer]
        worker.stdin.close()
    printed = log.read_text()
    outcome = messages[-1]
    assert isinstance(outcome, Outcome), printed
    assert all(isinstance(message, Phase) for message in messages[1:-1])
    return outcome, printed


def run_stored(
    name: str, folder: Path, arguments: str = "", **variables: str
) -> tuple[Trial, Outcome, str]:
    trial = make_trial(f"{name}.py", arguments)
    (folder / f"{name}.py").write_bytes((SCRIPTS / f"{name}.py").read_bytes())
    return trial, *run_worker(trial, folder, **variables)


def read_script(outcome: Outcome) -> ScriptRun:
    assert outcome.process is not None
    assert outcome.process.script is not None
    return outcome.process.script


def make_entry(trial: Trial, outcome: Outcome) -> Entry:
    processes = (outcome.process,) if outcome.process else ()
    record = Record(trial.id, "s", trial.label, outcome.status, trial=trial, processes=processes)
    record = replace(record, diagnostics=outcome.diagnostics)
    return Entry(record, derive(record), Path("t"), trial.variant)


def find(trial: Trial, outcome: Outcome) -> str:
    """What the report says of the script, and the message of a failure."""
    return "; ".join([*ScriptAnswer(make_entry(trial, outcome)).findings, outcome.message or ""])
