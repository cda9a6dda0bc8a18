"""By wall clock, `compare --by mode` and the answers of a report are of one mind about the same
records.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import archives
import pytest
from comparisons import MODELS, measured
from records import write_sweep
from reports import load

from sweeper.analysis.gains import lie_apart
from sweeper.compare.pairs import Pair, read_sides
from sweeper.compare.verdicts import JudgedPair, judge
from sweeper.loading.sources import SweepFolder
from sweeper.report.answers.candidates import Candidate, find_candidate
from sweeper.report.answers.decision import Answer, choose_all

Judged = list[tuple[Answer, Candidate, JudgedPair]]


def judge_modes(sweep: Path) -> Judged:
    """Each mode that gains as well as the one to take, and what `compare` says of the two."""
    sides = read_sides(SweepFolder(sweep)).sides
    found = []
    pairs = []
    for answer in choose_all(load([sweep]).entries):
        for entry in answer.entries:
            one = find_candidate(entry) if entry.is_ok else None
            if answer.chosen and one and one.gain.low > one.turn and one.name != answer.chosen.name:
                found.append((answer, one))
                best = answer.chosen.entry.trial.id
                pairs.append(Pair(sides[entry.trial.id], sides[best]))
    rows = judge(pairs).rows
    return [(answer, one, row) for (answer, one), row in zip(found, rows, strict=True)]


def assert_of_one_mind(judged: Judged) -> None:
    for answer, one, row in judged:
        said = f"{answer}: {one.name}: {row.verdict}, {row.reason}"
        assert answer.chosen
        if one.name in answer.tied:
            assert row.verdict == "UNRESOLVED", said
        elif lie_apart(one, answer.chosen):  # else a report knows it by device time
            assert row.verdict == "FASTER", said


@pytest.mark.parametrize(
    "name",
    [
        "h200-ladder",
        "h200-modes",
        "h200-resnet50-modes",
        "h200-axes",
        "h200-without-races",
        "h200-races",
    ],
)
def test_stored_modes_are_tied_where_compare_does_not_tell_them_apart(
    tmp_path: Path, name: str
) -> None:
    judged = judge_modes(archives.unpack(name, tmp_path))
    assert judged
    assert_of_one_mind(judged)


ONE = (1.0,)
THREE = (1.0, 1.002, 0.998)


@pytest.mark.parametrize(
    ("device", "wobble", "draws", "faster", "is_told"),
    [
        ("cuda", THREE, (0, 0, 0), 0.97, False),
        ("cuda", THREE, (0, 0, 0), 0.92, True),
        ("cuda", THREE, (0, 1, 2), 0.97, True),
        ("cuda", THREE, (0, 1, 2), 0.995, False),
        ("cuda", ONE, (0,), 0.96, False),
        ("cuda", ONE, (0,), 0.94, True),
        ("cpu", THREE, (0, 0, 0), 0.92, False),
        ("cpu", THREE, (0, 0, 0), 0.85, True),
    ],
)
def test_modes_are_told_apart_by_both_or_by_none(
    tmp_path: Path,
    device: str,
    wobble: Sequence[float],
    draws: Sequence[int],
    faster: float,
    is_told: bool,
) -> None:
    """Modes of one draw are as far apart as draws are: no report is sure which one is better."""
    records = []
    for model in MODELS:
        plain = measured(model, wobble=wobble, draws=draws, code="one", device=device)
        graphs = measured(
            model,
            compiled=faster if model == "vgg16" else 1.0,
            wobble=wobble,
            draws=draws,
            code="other",
            device=device,
            mode="reduce-overhead",
        )
        records += [plain, graphs]
    judged = judge_modes(write_sweep(tmp_path, records))
    assert len(judged) == len(MODELS)
    for answer, one, row in judged:
        told = is_told and answer.trial.labels.model == "vgg16"
        assert (one.name in answer.tied) == (not told)
        assert (row.verdict == "FASTER") == told, row.reason
