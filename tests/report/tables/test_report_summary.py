"""The table of the summary: the file, the headline and what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from records import make_record
from summary_records import (
    PRECISIONS,
    doubtful,
    findings_of,
    unverified,
    whole_of,
    with_busy_host,
    with_device,
)
from tables import differences

from sweeper.analysis import stats
from sweeper.core.record import Record
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.groups import DEVICE
from sweeper.report.columns.column import MARKDOWN, PAGE, TERMINAL
from sweeper.report.columns.formats import estimated
from sweeper.report.tables.summary import SummaryTable, headline

TABLE = SummaryTable()


def families() -> list[Record]:
    """Worked out by hand, 0.75 for AMP and 0.25 for fp32; trials of one process, so that no geomean
    has an interval.

    model     family  AMP   fp32
    resnet50  cnn     2     1/4
    vgg16     cnn     8     4
    vit_b16   vit     1/2   compile_error
    bert      nlp     eager_error   8

    cnn: AMP (2 * 8)^(1/2) = 4, fp32 (1/4 * 4)^(1/2) = 1, weighted 0.75 * 4 + 0.25 * 1 = 3.25
    clipped: 1/4 becomes 1, fp32 (1 * 4)^(1/2) = 2, 0.75 * 4 + 0.25 * 2 = 3.5; no failures a new
    model: the models' own values are 0.75 * 2 + 0.25 * 1/4 = 1.5625 and 0.75 * 8 + 0.25 * 4 = 7, in
    the middle (1.5625 * 7)^(1/2) = 3.307189; s of their logs is ln(7 / 1.5625) / 2^(1/2) =
    1.060394, times (1 + 1/2)^(1/2) = 1.298712; t(1 degree) = 12.7062, so 3.307189 *
    exp(+-16.501696) = 2.25353e-7 and 4.85349e7 vit: a failure in one of two precisions: tried 1,
    passed 0; AMP 1/2 counts on its own; weighted needs both, so null; failures as one: 0.75 * 1/2 +
    0.25 * 1 = 0.625 nlp: an eager failure leaves the denominator: 0 of 0, pass rate null; fp32
    counts on its own: 8 all: tried 3 (without bert), passed 2; AMP (2 * 8 * 1/2)^(1/3) = 2; fp32
    (1/4 * 4 * 8)^(1/3) = 2; weighted over resnet50 and vgg16 as for cnn; failures as one over all
    but bert: AMP 2, fp32 (1/4 * 4 * 1)^(1/3) = 1, so 0.75 * 2 + 0.25 * 1 = 1.75 reduce-overhead has
    no trial in fp32, so no weighted mean, and passes in all that was asked for.
    """
    return [
        make_record("resnet50", "amp", [2.0]),
        make_record("resnet50", "fp32", [0.25]),
        make_record("vgg16", "amp", [8.0]),
        make_record("vgg16", "fp32", [4.0]),
        make_record("vit_b16", "amp", [0.5], family="vit"),
        make_record("vit_b16", "fp32", family="vit", status="compile_error"),
        make_record("bert", "amp", family="nlp", status="eager_error"),
        make_record("bert", "fp32", [8.0], family="nlp"),
        make_record("resnet50", "amp", [2.0], mode="reduce-overhead"),
        # None of these enters: no weight, or eager against eager.
        make_record("resnet50", "bf16", [64.0]),
        make_record("vgg16", "bf16", status="compile_error"),
        make_record("resnet50", "amp", [1.0], mode="eager", backend=None),
    ]


def test_summary_equals_the_table_worked_out_by_hand(tmp_path: Path) -> None:
    assert differences(TABLE.csv(findings_of(tmp_path, families())), "summary.csv") == []


@pytest.mark.parametrize(("name", "value"), [("AMP_SHARE", 0.76), ("FP32_SHARE", 0.24)])
def test_another_weight_gives_another_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: float
) -> None:
    monkeypatch.setattr(stats, name, value)
    assert differences(TABLE.csv(findings_of(tmp_path, families())), "summary.csv")


def test_the_headline_has_the_mean_and_how_many_models_are_without_doubt(tmp_path: Path) -> None:
    assert headline(whole_of(findings_of(tmp_path, doubtful()))) == (
        "weighted 0.75 AMP + 0.25 fp32: 5.50 over 3 models, 1 undisturbed; by device time 5.50 "
        "over 3 models, 2 undisturbed"
    )


def test_the_headline_is_over_verified_models_alone(tmp_path: Path) -> None:
    assert headline(whole_of(findings_of(tmp_path, unverified()))) == (
        "weighted 0.75 AMP + 0.25 fp32: 3.50 over 1 model, all undisturbed; "
        "by device time 3.50 over 1 model, all undisturbed"
    )
    assert headline(whole_of(findings_of(tmp_path / "none", unverified()[4:]))) == (
        "weighted 0.75 AMP + 0.25 fp32: none, no model is ok and verified in a precision of weight "
        "amp or fp32"
    )


def test_a_device_mean_that_is_surer_says_so(tmp_path: Path) -> None:
    records = [make_record("a", name, flags=("host_busy",)) for name in PRECISIONS]
    records = [with_device(with_busy_host(record), 2.0) for record in records]
    findings = findings_of(tmp_path, records)
    assert headline(whole_of(findings)) == (
        "weighted 0.75 AMP + 0.25 fp32: 2.00 over 1 model, none undisturbed; "
        "by device time 2.00 over 1 model, all undisturbed"
    )


def test_the_headline_has_the_intervals_of_both_means(tmp_path: Path) -> None:
    records = [make_record("a", name, [2.0, 2.1]) for name in PRECISIONS]
    group = whole_of(findings_of(tmp_path, [with_device(record, 2.0) for record in records]))
    assert group.weighted is not None
    interval = estimated(group.weighted).partition(" ")[2]
    assert headline(group).endswith(
        f"; these models {interval}; by device time {estimated(DEVICE.estimate(group))} over 1 "
        "model, all undisturbed"
    )
    assert "[" in interval


def titles(findings: Findings) -> list[str]:
    """The columns of device means that the page has."""
    shown = TABLE.shown(findings.groups, findings, PAGE)
    return [column.title for column in shown if column.title.startswith("by ")]


def test_the_page_has_a_column_of_the_device_mean_where_a_device_time_is_known(
    tmp_path: Path,
) -> None:
    known = [with_device(make_record("a", name), 4.0) for name in PRECISIONS]
    unknown = [make_record("b", name) for name in PRECISIONS]
    findings = findings_of(tmp_path / "known", [*known, *unknown])
    assert titles(findings) == ["by device time"]
    assert "; by device time 4.00 over 1 model" in headline(whole_of(findings))
    assert titles(findings_of(tmp_path / "unknown", unknown)) == []


@pytest.mark.parametrize(
    ("medium", "shown"),
    [
        (PAGE, "6.00 (3, 1 undisturbed)"),
        (MARKDOWN, "6.00 (3, 1 undisturbed)"),
        (TERMINAL, "6.00 (3)"),
    ],
)
def test_a_mean_says_over_how_many_models_it_is(tmp_path: Path, medium: str, shown: str) -> None:
    findings = findings_of(tmp_path, doubtful())
    columns = TABLE.shown(findings.groups, findings, medium)
    (column,) = (column for column in columns if column.title == "AMP")
    assert column.show(whole_of(findings)) == shown
