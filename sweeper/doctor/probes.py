"""Questions to torch, each asked in a process of its own: a backend may hang, crash or break the
interpreter.

`sweeper.worker.probe` answers with one line of JSON on its standard output.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.serialization import Json
from sweeper.core.system.gpus import Device
from sweeper.core.system.leftovers import TEMPORARY, make_prefix
from sweeper.execution import processes


@dataclass(frozen=True)
class Answer:
    """What a probe said, or why it said nothing."""

    data: Json = None
    problem: str | None = None


def ask_all(
    questions: Sequence[Sequence[str]], device: Device, timeout_s: float, at_once: int = 1
) -> Generator[Answer, None, None]:
    """Give the answers in the order of the questions, each as soon as it and those before it are
    there.

    Every probe has `timeout_s` from its own start. None is left running when the iterator is
    closed.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(at_once) as pool:
        try:
            yield from pool.map(
                functools.partial(ask, device=device, timeout_s=timeout_s, stop=stop), questions
            )
        finally:
            stop.set()


def ask(
    question: Sequence[str], device: Device, timeout_s: float, stop: threading.Event | None = None
) -> Answer:
    """Ask one question: the arguments of `python -m sweeper.worker.probe`. Its caches are removed
    with its folder.
    """
    with (
        tempfile.TemporaryDirectory(
            prefix=make_prefix(TEMPORARY), ignore_cleanup_errors=True
        ) as name,
        # A checkout that is not installed is found from the folder too.
        processes.expose_package(sys.executable) as variables,
    ):
        folder = Path(name)  # some backends leave files where they are
        answer, log = folder / "answer", folder / "log"
        environment = {
            **device.environment(),
            **variables,
            **processes.make_cache_variables(folder),
        }
        asked = [*processes.make_command(None, "sweeper.worker.probe"), *question]
        with answer.open("wb") as output:
            process = processes.start_group(asked, environment, log, stdout=output, cwd=folder)
        code = processes.wait_for_end(process, timeout_s, stop)
        if code is None:
            return Answer(problem=f"no answer within {timeout_s:g} s")
        try:
            return Answer(json.loads(answer.read_text(errors="replace")))
        except ValueError:
            how = f"the probe {processes.describe_exit(code)}"
            return Answer(problem=": ".join([how, *processes.read_last_lines(log, 1)]))
