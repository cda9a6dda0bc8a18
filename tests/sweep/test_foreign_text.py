"""What models, workers and servers say, and what they leave in place of an answer: none of it
reaches the terminal as more than text, and none of it ends a sweep.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fake_python
import pytest
from records import make_trial

from sweeper.core.errors import ConfigError
from sweeper.core.paths import SweepPaths
from sweeper.core.record import Record
from sweeper.core.settings import Measure, Settings, Tracking
from sweeper.core.system.exit_codes import NOT_OK, OK
from sweeper.core.trial import Labels, Model, Trial
from sweeper.sweep import preflight
from sweeper.sweep.driver import run_sweep
from sweeper.sweep.progress import Progress

SETTINGS = Settings(
    "night", device="cpu", measure=Measure(processes=1), tracking=Tracking(enabled=False)
)
# a title, a link (OSC 8), a C1 control, a bidi override, a cleared screen; and markup that is none
EVIL = "\x1b]0;a\x07\x1b]8;;http://x\x1b\\b\x9b2J\u202ec\x1b[2J [/x] [bold]"
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
FAILS = """
if trial["batch_size"] == 1:
    say(Outcome("runtime_error", "eager", {!r}, environment={{"device": {{"name": {!r}}}}}))
    sys.exit()
"""


@pytest.fixture
def trials(in_empty_folder: Path) -> list[Trial]:
    python = str(fake_python.write(in_empty_folder / "python", FAILS.format(EVIL, EVIL)))
    trial = make_trial("vit_b_16", "fp32", device="cpu", python=python)
    evil = Trial(Model("custom", EVIL), 1, Labels(EVIL, "fp32"), device="cpu", python=python)
    return [evil, replace(trial, batch_size=2)]


def statuses(trials: list[Trial]) -> list[str]:
    paths = SweepPaths.of("night")
    return [Record.read(paths.trial(one.label, one.id).record).status for one in trials]


def test_text_of_others_changes_no_terminal_and_is_no_markup(
    trials: list[Trial], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_sweep(trials, SETTINGS) == NOT_OK
    out, err = capfd.readouterr()
    assert not UNSAFE.search(out + err), ascii(out + err)
    assert "[/x] [bold]" in out
    assert statuses(trials) == ["runtime_error", "ok"]


@pytest.fixture
def odd_server() -> Iterator[str]:
    """A server whose answers are JSON, and not what MLflow expects."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'["[/x]"]')

        do_POST = do_GET  # noqa: N815  # the name is the method's

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize("path", ["", "/[/x]\x1b]0;a\x07"])
def test_odd_answers_of_mlflow_cost_no_trial(
    trials: list[Trial], odd_server: str, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    tracking = Tracking(uri=odd_server + path)
    assert run_sweep(trials[1:], replace(SETTINGS, tracking=tracking)) == OK
    out, err = capfd.readouterr()
    assert "nothing is lost, send it: python -m sweeper.sync night" in out
    assert not UNSAFE.search(out + err)
    assert "Traceback" not in err


def test_what_fails_between_two_trials_costs_none(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: object) -> None:
        raise LookupError("no such phase")

    monkeypatch.setattr(Progress, "_describe_result", fail)
    monkeypatch.setattr("sweeper.sweep.driver.print_verdict", fail)
    assert run_sweep(trials, SETTINGS) == NOT_OK
    assert statuses(trials) == ["runtime_error", "ok"]
    shown = capfd.readouterr().err
    assert "note: what a trial has shown is not shown: LookupError: no such phase" in shown
    assert "note: the report is not shown: LookupError: no such phase" in shown


ANSWERS = {
    "no JSON": "open(answer, 'w').write('no JSON')",
    "no text": r"open(answer, 'wb').write(b'\xff\x00')",
    "other JSON": "open(answer, 'w').write('[]')",
    "other types": """open(answer, 'w').write('{{"problems": 1, "notes": null}}')""",
    "a folder": "os.mkdir(answer)",
    "a pipe": "os.mkfifo(answer)",
    "a link": "os.symlink('/dev/zero', answer)",
    "a giant": "os.truncate(os.open(answer, os.O_CREAT | os.O_RDWR), 10**12)",
    "none": "os._exit(3)",
    "a signal": "os.kill(os.getpid(), 40)",
}


# each is read as another one is
ALIKE = ("other JSON", "a folder", "a link")


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(answer, id=name, marks=[pytest.mark.slow] if name in ALIKE else [])
        for name, answer in ANSWERS.items()
    ],
)
def test_a_model_that_spoils_the_answer_of_the_check_costs_no_other(
    trials: list[Trial], answer: str, capfd: pytest.CaptureFixture[str]
) -> None:
    name = r"open(os.path.join(os.path.dirname(answer), 'at'), 'w').write('custom bad:x\x1b[2J')"
    check = f"if 'bad:x' in open(sys.argv[-2]).read(): {name}; print('last'); {answer}; sys.exit(3)"
    fake_python.write(Path(str(trials[1].python)), check=check.replace("\x1b", r"\x1b"))
    bad = replace(trials[1], model=Model("custom", "bad:x\x1b[2J"))
    assert run_sweep([bad, trials[1]], SETTINGS) == OK
    out, err = capfd.readouterr()
    assert "note: the check of model custom bad:x" in out
    assert "its trials are tried all the same" in out
    assert "Traceback" not in err
    assert not UNSAFE.search(out + err)


def test_where_no_other_model_is_left_nothing_is_started(trials: list[Trial]) -> None:
    fake_python.write(Path(str(trials[1].python)), check="open(answer, 'w').write('['); sys.exit()")
    with pytest.raises(ConfigError, match="left an answer that cannot be read: not JSON"):
        run_sweep(trials, SETTINGS)
    assert not list(Path("runs/night").glob("*/"))


def test_a_check_that_hangs_says_so(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preflight, "NOTE_S", 1)
    monkeypatch.setattr(preflight, "TIMEOUT_S", 2)
    hangs = "open(os.path.join(os.path.dirname(answer), 'at'), 'w').write('x'); time.sleep(600)"
    fake_python.write(Path(str(trials[1].python)), check=hangs)
    with pytest.raises(ConfigError, match="the check of model x took longer than 2 s"):
        run_sweep(trials, SETTINGS)
    assert "note: still checking x: 2 s so far, and at most 2 s" in capfd.readouterr().err
