"""Every place that tells an answer tells the same one, of records drawn at random: the terminal,
report.md, the page, the CSV and what to run next.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from records import make_record, make_trial
from reports import report_on
from rich.console import Console

from sweeper.analysis.flags import FLAGS
from sweeper.core.record import Record
from sweeper.report.answers.decision import COMPILE, OPEN, STAY, Answer
from sweeper.report.build import print_verdict
from sweeper.report.text.report import Report

MODES = ("default", "reduce-overhead", "max-autotune")
STATUSES = ("compile_error", "timeout", "accuracy_mismatch", "oom", "crashed", "interrupted")
NUM_MODELS = 60


def draw_records(draw: random.Random, model: str) -> list[Record]:
    """One to three modes of a model: a status, one to nine processes, flags, a planned length."""
    records = []
    trial = make_trial(model, device=draw.choice(["cuda", "cuda", "cpu"]))
    labels = replace(trial.labels, total_steps=draw.choice([None, None, 30, 3_000, 300_000]))
    for mode in draw.sample(MODES, draw.randint(1, 3)):
        middle = math.exp(draw.uniform(-0.3, 0.7))
        noise = draw.choice([0.001, 0.02, 0.2])
        speedups = [
            middle * math.exp(draw.gauss(0, noise)) for _ in range(draw.choice([1, 1, 2, 3, 9]))
        ]
        flags = draw.sample(sorted(FLAGS), draw.choice([0, 0, 1, 2]))
        status = draw.choice([*["ok"] * 9, draw.choice(STATUSES)])
        records.append(
            make_record(
                trial=replace(trial, mode=mode, labels=labels),
                speedups=speedups,
                flags=tuple(flags),
                status=status,
                message=None if status == "ok" else "it failed",
            )
        )
    return records


def read_recommendations(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((folder / "recommendations.csv").read_text())))


def print_to_text(report: Report) -> str:
    console = Console(file=io.StringIO(), width=400)
    print_verdict(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def read_page_table(folder: Path, name: str) -> list[dict[str, str]]:
    page = (folder / "report.html").read_text()
    found = re.search(r'<script[^>]*id="table-data"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert found
    table = json.loads(found[1])[name]
    titles = [column["title"] for column in table["columns"]]
    return [dict(zip(titles, row["cells"], strict=True)) for row in table["rows"]]


def count_from(rows: Sequence[dict[str, str]]) -> Iterator[str]:
    """Count the rows of the CSV as the verdict should count them."""
    rows = [row for row in rows if row["speedup"]]
    stay = [row for row in rows if row["recommended"] == STAY]
    crossing = [row for row in rows if row["recommended"] == OPEN]
    compiled = [row for row in rows if row["mode"]]
    assert len(stay) + len(crossing) + len(compiled) == len(rows)
    for text, found in ((f"compile {len(compiled)} of {len(rows)}", compiled),
                        (f"stay eager with {len(stay)}", stay)):  # fmt: skip
        sure = sum(row["sure"] == "true" for row in found)
        if found:
            yield f"{text} ({sure or 'none'} sure)"
    if crossing:
        yield f"{len(crossing)} {'is' if len(crossing) == 1 else 'are'} open"


@pytest.mark.parametrize("seed", [1, 2])
def test_many_models_are_counted_alike_in_every_place(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    records = []
    for number in range(NUM_MODELS):
        records += draw_records(draw, f"model{number}")
    report = report_on(tmp_path, records, "python -m sweeper -m model=custom sweep=night")
    answers = {answer.trial.labels.model: answer for answer in report.findings.answers}
    assert {answer.verdict for answer in answers.values()} == {COMPILE, STAY, OPEN}
    rows = {row["model"]: row for row in read_recommendations(tmp_path / "report")}
    assert rows.keys() == answers.keys()
    cells = {row["model"]: row for row in read_page_table(tmp_path / "report", "recommendations")}
    terminal, markdown = print_to_text(report), (tmp_path / "report" / "report.md").read_text()
    for text in count_from(list(rows.values())):
        assert text in terminal
        assert text in markdown
    for name, answer in answers.items():
        row = rows[name]
        assert row["recommended"] == answer.recommended
        assert (row["sure"] == "true") == answer.is_sure
        assert (row["mode"] != "") == (answer.verdict == COMPILE)
        assert cells[name]["answer"].startswith(answer.recommended)
        assert cells[name]["answer"].endswith(", unsure") == (
            answer.verdict != OPEN and not answer.is_sure
        )
        shown = re.search(rf"^ *{name} +(?:device=\w+ +)?(.*?) *$", terminal, re.MULTILINE)
        if shown and answer.best:
            assert shown[1].startswith(answer.recommended)
            assert shown[1].endswith(" ?") == (answer.verdict != OPEN and not answer.is_sure)
    again = {model: item.why for item in report.verdict.again for model in item.models}
    for name, answer in answers.items():
        check_next_step(answer, again.get(name, ""))


def check_next_step(answer: Answer, why: str) -> None:
    """What is worth another run is neither sure nor beyond help."""
    if answer.is_sure and not answer.not_tried:
        assert why == ""
    if "make it sure" in why:
        assert answer.verdict in (COMPILE, STAY)
        assert not answer.is_sure
    if why.startswith("open"):
        assert answer.verdict == OPEN
    if answer.verdict == COMPILE:
        assert "not tried" not in why


def test_a_single_model_is_told_alike_in_every_place(tmp_path: Path) -> None:
    draw = random.Random(3)
    for number in range(40):
        folder = tmp_path / str(number)
        report = report_on(folder, draw_records(draw, "model"))
        (answer,) = report.findings.answers
        check_answer(answer)
        (row,) = read_recommendations(folder / "report")
        sentence = f"In AMP model: {answer}"
        assert sentence in print_to_text(report)
        assert any(said.startswith(sentence) for said in report.verdict.sentences)
        assert row["reason"].lower() in str(answer).lower()
        for reason in answer.why_unsure:
            assert reason in str(answer)


def check_answer(answer: Answer) -> None:
    """An answer follows from its own figures."""
    best, steps = answer.best, answer.limits.steps
    if best is None:
        assert (answer.verdict, answer.is_sure) == (OPEN, False)
        return
    turn = best.turn
    if answer.is_sure:
        assert not best.gain.by_margin
        assert not best.gain.low <= turn <= best.gain.high
    if answer.verdict == COMPILE:
        assert best.gain.value > turn
    if answer.verdict == STAY:
        assert best.gain.high < turn
    if best.gain.low > turn:
        assert answer.verdict == COMPILE, "an interval above the turning point is an answer"
    if answer.verdict == COMPILE and steps is not None:
        assert best.result.break_even_steps.value is not None
        assert best.result.break_even_steps.value <= steps
