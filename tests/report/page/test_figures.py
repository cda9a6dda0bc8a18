"""The figures of the page, as dictionaries of traces: what is drawn, in which order, and what is
left out.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from pages import drawn, loaded
from records import make_process, make_record

from sweeper.core.record import PerArm
from sweeper.report.answers.findings import Findings
from sweeper.report.page import cost_figures, speedup_figures
from sweeper.report.page.plotly_parts import label, ratio_axis
from sweeper.report.published import find_references

PAIR = (make_record(speedups=(2.0, 2.1)), make_record(precision="fp32", speedups=(1.4, 1.5)))


def test_label_escapes_what_plotly_takes_for_markup() -> None:
    assert label("<b>a & b</b>\n") == "&lt;b&gt;a &amp; b&lt;/b&gt;"
    assert label("x" * 50, 10) == "x" * 9 + "…"


def test_forest_is_sorted_and_shows_each_kind_of_interval(tmp_path: Path) -> None:
    waiting = [
        replace(make_process(speedup, index=i), device_step_s=PerArm(0.001, 0.001))
        for i, speedup in enumerate((3.0, 3.3))
    ]
    records = [
        make_record("single", speedups=(0.5,)),
        make_record("several", speedups=(2.0, 2.1)),
        replace(make_record("waits"), processes=tuple(waiting)),
    ]
    drawing = speedup_figures.draw_forest(loaded(tmp_path, records)).drawings[0]
    assert drawing.layout["yaxis"]["ticktext"] == ["waits", "several", "single"]
    by_name = {trace["name"].partition(", ")[2]: trace for trace in drawing.traces}
    assert set(by_name) == {speedup_figures.INTERVAL, speedup_figures.RANGE, speedup_figures.SINGLE}
    ranged = by_name[speedup_figures.RANGE]
    assert ranged["x"][0] + ranged["error_x"]["array"][0] == pytest.approx(3.3)
    assert ranged["x"][0] - ranged["error_x"]["arrayminus"][0] == pytest.approx(3.0)
    assert by_name[speedup_figures.SINGLE]["x"] == [pytest.approx(0.5)]
    assert not by_name[speedup_figures.SINGLE]["error_x"]["visible"]


def test_forest_marks_what_is_not_verified_and_keeps_its_interval(tmp_path: Path) -> None:
    record = make_record("unsure", speedups=[2.0, 2.1], flags=("accuracy_unverified",))
    (trace,) = speedup_figures.draw_forest(loaded(tmp_path, [record])).drawings[0].traces
    assert (trace["name"], trace["marker"]["symbol"]) == ("amp, result not verified", "x-thin-open")
    assert trace["error_x"]["array"][0] > 0


def test_forest_of_many_opens_with_both_ends_and_has_all(tmp_path: Path) -> None:
    records = [make_record(f"m{i}", speedups=(1 + i / 100,)) for i in range(70)]
    first, *_, last = speedup_figures.draw_forest(loaded(tmp_path, records)).drawings
    assert first.name == "30 fastest, 30 slowest of 70"
    assert first.layout["yaxis"]["ticktext"][0] == "m69"
    assert first.layout["yaxis"]["ticktext"][-1] == "m0"
    assert (last.name, sum(len(trace["x"]) for trace in last.traces)) == ("all 70", 70)


def test_families_have_bars_in_both_precisions_and_what_was_published(tmp_path: Path) -> None:
    records = [
        *PAIR,
        make_record("vit", family="vit"),
        make_record("vit", "fp32", family="vit", speedups=(1.2,)),
    ]
    findings = Findings(loaded(tmp_path, records))
    published = find_references(findings)
    figure = speedup_figures.draw_families(findings.groups, published)
    amp, fp32 = drawn(figure)
    assert (amp["name"], fp32["name"]) == ("AMP", "fp32")
    both = math.exp((math.log(4.2) / 2 + math.log(2)) / 2)
    assert amp["y"] == pytest.approx([math.sqrt(4.2), 2.0, both])
    assert fp32["y"][1] == pytest.approx(1.2)
    assert figure.drawings[0].layout["xaxis"]["ticktext"][0] == "cnn<br>1.10<br>(A6000, 2023)"
    assert f"Below a name: what was published for PyTorch 2.0. {published.sentence}" in (
        figure.caption
    )


def test_families_of_several_modes_differ_in_colour_and_fp32_is_pale(tmp_path: Path) -> None:
    precisions = (("amp", 2.0), ("fp32", 1.5))
    modes = ("default", "reduce-overhead")
    records = [
        make_record("a", name, (speedup,), mode=mode)
        for name, speedup in precisions
        for mode in modes
    ]
    findings = Findings(loaded(tmp_path, records))
    traces = drawn(speedup_figures.draw_families(findings.groups, find_references(findings)))
    bars = [trace for trace in traces if trace["type"] == "bar"]
    assert {trace["name"]: trace["marker"] for trace in bars} == {
        "AMP, default": {"color": "@0"},
        "fp32, default": {"color": "@0 pale"},
        "AMP, reduce-overhead": {"color": "@2"},
        "fp32, reduce-overhead": {"color": "@2 pale"},
    }


def test_backends_stand_side_by_side_and_those_without_figures_are_named(tmp_path: Path) -> None:
    records = [
        make_record(backend="inductor", speedups=(2.0,)),
        make_record(backend="aot_eager", speedups=(0.9,)),
        make_record(backend="tvm", status="unavailable"),
    ]
    figure = speedup_figures.draw_backends(loaded(tmp_path, records))
    (bars,) = drawn(figure)
    assert figure.drawings[0].layout["yaxis"]["ticktext"] == ["aot_eager", "inductor"]
    assert dict(zip(bars["y"], bars["x"], strict=True)) == {
        0: pytest.approx(0.9),
        1: pytest.approx(2.0),
    }
    assert "tvm (unavailable)" in figure.caption


def test_forest_of_many_has_both_ends_of_each_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speedup_figures, "MAX_BARS", 6)
    monkeypatch.setattr(speedup_figures, "MAX_BARS_PER_GROUP", 4)
    records = [make_record(f"m{i}", speedups=(1 + i / 100,)) for i in range(5)]
    records += [make_record(f"m{i}", "fp32", (1 + i / 50,)) for i in range(4)]
    _, amp, fp32, _ = speedup_figures.draw_forest(loaded(tmp_path, records)).drawings
    assert (amp.name, fp32.name) == ("amp: 2 fastest, 2 slowest of 5", "fp32: 4")
    assert amp.layout["yaxis"]["ticktext"] == ["m4", "m3", "m1", "m0"]
    assert len(amp.layout["shapes"]) == len(fp32.layout["shapes"]) + 1  # the cut


def test_many_models_in_the_figure_of_backends_are_capped_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speedup_figures, "MAX_SERIES", 1)
    monkeypatch.setattr(speedup_figures, "MAX_MODELS", 2)
    records = [make_record(model, backend="inductor") for model in "abc"]
    records += [make_record("c", backend="aot_eager", speedups=(0.9,))]
    figure = speedup_figures.draw_backends(loaded(tmp_path, records))
    assert [drawing.name for drawing in figure.drawings] == ["a", "c"]
    assert "2 of 3 to choose from: those in which most backends gave a speedup." in figure.caption


def test_many_lines_of_batch_sizes_are_capped_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speedup_figures, "MAX_LINES", 2)
    sizes = {"a": (8, 16), "b": (8, 16), "c": (8, 16, 32)}
    records = [
        make_record(model, batch_size=size) for model, found in sizes.items() for size in found
    ]
    figure = speedup_figures.draw_batch_sizes(loaded(tmp_path, records))
    assert [trace["name"] for trace in drawn(figure)] == ["a", "c"]
    assert figure.caption.endswith("2 of 3 lines: those of most sizes.")


def test_batch_sizes_make_a_line(tmp_path: Path) -> None:
    records = [make_record(batch_size=size, speedups=(1 + size / 100,)) for size in (64, 8, 16)]
    (line,) = drawn(speedup_figures.draw_batch_sizes(loaded(tmp_path, records)))
    assert line["x"] == [8, 16, 64]
    assert line["y"] == pytest.approx([1.08, 1.16, 1.64])


def test_total_times_cross_at_break_even(tmp_path: Path) -> None:
    # 20 ms eager, 10 ms compiled, 3 s and 0.5 s to compile
    entries = loaded(tmp_path, [make_record(speedups=(2.0, 2.0))])
    eager, cold, crossing, warm, warm_crossing = drawn(cost_figures.draw_total_time(entries))
    assert (cold["y"][0], warm["y"][0]) == (3.0, 0.5)
    assert crossing["x"] == [pytest.approx(300)]
    assert crossing["y"] == [pytest.approx(6.0)]
    assert warm_crossing["x"] == [pytest.approx(50)]
    slope = (eager["y"][1] - eager["y"][0]) / (eager["x"][1] - eager["x"][0])
    assert slope == pytest.approx(0.02)


def test_break_even_of_a_contended_compile_is_an_upper_bound(tmp_path: Path) -> None:
    flagged, plain = (
        cost_figures.draw_total_time(
            loaded(tmp_path / name, [make_record(speedups=(2.0, 2.0), flags=flags)])
        )
        for name, flags in (("flagged", ("compile_contended",)), ("plain", ()))
    )
    legend = [trace["name"] for trace in drawn(flagged) if "break-even" in trace["name"]]
    assert legend == ["break-even, empty cache: ≤300 steps", "break-even, filled cache: ≤50 steps"]
    assert flagged.drawings[0].name == "resnet50: ≤300 [300, 300] steps"
    assert "≤" not in json.dumps(drawn(plain), ensure_ascii=False)


def test_a_trial_that_never_pays_has_no_crossing(tmp_path: Path) -> None:
    figure = cost_figures.draw_total_time(loaded(tmp_path, [make_record(speedups=(0.8,))]))
    assert [trace["name"] for trace in drawn(figure)] == ["eager", "compiled, empty cache"]
    assert figure.drawings[0].name.endswith("never")


def test_axis_of_ratios_shows_one_and_takes_nothing_that_has_no_log() -> None:
    axis = ratio_axis("speedup", [2.0, None, 0.0])
    low, high = axis["range"]
    assert low < 0 < math.log10(2.0) < high
    assert 1.0 in axis["tickvals"]
    assert ratio_axis("speedup", [])["range"] == [-0.01, 0.01]
