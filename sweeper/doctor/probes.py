"""Questions to torch, each asked in a process of its own, so that a backend may hang, crash or break the interpreter.

Place in the flow: `doctor` asks, `sweeper.worker.probe` answers with one line of JSON on its standard output.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.gpus import Device
from sweeper.core.serialization import Json

PROBE = (sys.executable, "-m", "sweeper.worker.probe")
POLL_S = 0.1


@dataclass(frozen=True)
class Answer:
    """What a probe said, or why it said nothing."""

    data: Json = None
    problem: str | None = None


def ask(question: Sequence[str], device: Device, timeout_s: float) -> Answer:
    """One question: the arguments of `python -m sweeper.worker.probe`."""
    return next(ask_all([question], device, timeout_s, at_once=1))


def ask_all(
    questions: Sequence[Sequence[str]], device: Device, timeout_s: float, at_once: int = 1
) -> Generator[Answer, None, None]:
    """The answers in the order of the questions, each as soon as it and those before it are there.

    Every probe has `timeout_s` from its own start. None is left running when the iterator is closed.
    """
    waiting = deque(enumerate(questions))
    running: dict[int, _Probe] = {}
    answers: dict[int, Answer] = {}
    try:
        for wanted in range(len(questions)):
            while wanted not in answers:
                while waiting and len(running) < at_once:
                    number, question = waiting.popleft()
                    running[number] = _Probe(question, device, timeout_s)
                time.sleep(POLL_S)
                for number in [number for number, probe in running.items() if probe.is_over()]:
                    answers[number] = running.pop(number).end()
            yield answers[wanted]
    finally:
        for probe in running.values():
            probe.end()


class _Probe:
    """A process group of its own, in an empty folder that holds its compile caches and goes with it."""

    def __init__(self, question: Sequence[str], device: Device, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="sweeper-probe-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self._answer, self._log = folder / "answer", folder / "log"
        # Files, not pipes: a child that is left behind would hold a pipe open.
        with self._answer.open("wb") as answer, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*PROBE, *question],
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=log,
                cwd=folder,  # some backends leave files where they are
                env=_environment(device, folder),
                start_new_session=True,
            )

    def is_over(self) -> bool:
        return self._process.poll() is not None or time.monotonic() >= self._deadline

    def end(self) -> Answer:
        """Kill whatever is left of the group, and read what was said."""
        code = self._process.poll()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        answer, log = self._answer.read_text(errors="replace"), self._log.read_text(errors="replace")
        self._folder.cleanup()
        if code is None:
            return Answer(problem=f"no answer within {self._timeout_s:g} s")
        try:
            return Answer(json.loads(answer))
        except ValueError:
            return Answer(problem=_how_it_ended(code, log))


def _environment(device: Device, folder: Path) -> dict[str, str]:
    package = str(Path(__file__).resolve().parents[2])  # a checkout that is not installed can be found from there too
    inherited = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        **device.environment(),
        "PYTHONPATH": os.pathsep.join([package, inherited] if inherited else [package]),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def _how_it_ended(code: int, log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    how = f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
    return f"the probe {how}{': ' + lines[-1] if lines else ''}"
