"""report.html, as text and as dictionaries: what it shows, what it escapes, what it leaves out."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml
from checkout import ROOT
from records import make_process, make_record, make_script, make_trial, write_sweep

from sweeper.analysis.meanings import FLAGS
from sweeper.core.record import Accuracy, Attempt, Diagnostics, GraphBreak, PerArm, Record, Round
from sweeper.core.trial import Text
from sweeper.loading.entries import Entry, load
from sweeper.report.build import write_report
from sweeper.report.contents import Report
from sweeper.report.findings import Findings
from sweeper.report.formatting import sentence
from sweeper.report.page import (
    cost_figures,
    headroom_figure,
    listings,
    page,
    published,
    script_figure,
    speedup_figures,
    step_figure,
)
from sweeper.report.page.figure_base import Figure, label, ratio_axis, seconds_axis
from sweeper.report.page.legend import make_legend
from sweeper.report.registry import TABLES
from sweeper.report.table import Row
from sweeper.report.tables import causes
from sweeper.report.tables.groups import groups
from sweeper.report.tables.speedups import speedups
from sweeper.report.tables.summary import summary
from sweeper.report.tables.units import collect

HOSTILE = "<img src=x onerror=alert(1)></script><!--"
FIGURES = (
    "forest", "families", "ladder", "backends", "batch-sizes", "compile-time", "total-time", "memory", "headroom",
    "step-times",
)  # fmt: skip
PAIR = (make_record(speedups=(2.0, 2.1)), make_record(precision="fp32", speedups=(1.4, 1.5)))


def write_page(folder: Path, records: Sequence[Record]) -> str:
    sweep = write_sweep(folder / "runs", records)
    write_report([sweep], sweep / "report")
    return (sweep / "report" / "report.html").read_text()


def data_of(text: str) -> dict[str, Any]:
    found = re.findall(r'<script type="application/json" id="([a-z]+)-data">(.*?)</script>', text, re.DOTALL)
    data = {name: json.loads(content) for name, content in found}
    return {"figures": data["figure"], "tables": data["table"]}


def without_plotly(text: str) -> str:
    start = text.index("* plotly.js v")
    return text[:start] + text[text.index("</script>", start) :]


def loaded(folder: Path, records: Sequence[Record]) -> tuple[Sequence[Entry], Sequence[Row]]:
    entries = load([write_sweep(folder / "runs", records)]).entries
    return entries, speedups(entries).rows


def drawn(figure: Figure) -> list[dict[str, Any]]:
    assert figure.missing == ""
    return list(figure.choices[0].traces)


def test_page_loads_nothing_and_lets_only_its_own_scripts_run(tmp_path: Path) -> None:
    text = write_page(tmp_path, PAIR)
    assert not re.findall(r'(?:src|srcset|action)="', without_plotly(text))
    assert not re.findall(r"@import|url\(", without_plotly(text))
    assert re.findall(r'<link [^>]*href="([^"]*)"', text) == ["data:,"]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert policy[1].count("'sha256-") == 2
    assert "unsafe-inline" not in policy[1].partition("script-src")[2].partition(";")[0]


def test_names_from_records_are_text(tmp_path: Path) -> None:
    record = make_record(HOSTILE, status="compile_error", message=HOSTILE)
    text = write_page(tmp_path, [record, make_record(HOSTILE), make_record(HOSTILE, "fp32", family=HOSTILE)])
    assert "<img" not in without_plotly(text)
    assert text.count("</script>") == 4  # data of figures and of tables, plotly.js, ours
    rows = data_of(text)["tables"]["speedups"]["rows"]
    assert {row["cells"][0] for row in rows} == {HOSTILE}
    forest = next(item for item in data_of(text)["figures"] if item["id"] == "forest")
    assert "&lt;img" in json.dumps(forest["choices"][0]["layout"])
    assert "<img" not in json.dumps(forest["choices"][0])


def test_label_escapes_what_plotly_takes_for_markup() -> None:
    assert label("<b>a & b</b>\n") == "&lt;b&gt;a &amp; b&lt;/b&gt;"
    assert label("x" * 50, 10) == "x" * 9 + "…"


def test_header_has_the_weighted_mean_and_its_interval(tmp_path: Path) -> None:
    text = write_page(tmp_path, PAIR)
    geomeans = math.sqrt(2.0 * 2.1), math.sqrt(1.4 * 1.5)
    weighted = 0.75 * geomeans[0] + 0.25 * geomeans[1]
    assert f"<b>{weighted:.2f}&times;</b>" in text
    assert "these models [" in text
    assert "<dt>device</dt><dd>NVIDIA H200</dd>" in text


def test_header_says_how_sure_the_mean_is_and_what_it_is_with_unverified_models(tmp_path: Path) -> None:
    flags = {"amp": ("accuracy_unverified",), "fp32": ()}
    text = write_page(tmp_path, [*PAIR, *(make_record("vgg16", name, [2.0], flags=flags[name]) for name in flags)])
    assert "<span>1 model, all without doubt</span><span>1 of 2 with verified results</span>" in text.replace("\n", "")
    assert "with 1 unverified" in text
    (row,) = (row for row in data_of(text)["tables"]["summary"]["rows"] if row["cells"][0] == "cnn")
    assert [cell.partition("(")[2] for cell in row["cells"] if " doubt)" in cell] == [
        "1, all without doubt)",
        "2, all without doubt)",
        "1, all without doubt)",
    ]
    bars = [trace for trace in data_of(text)["figures"][1]["choices"][0]["traces"] if trace["type"] == "bar"]
    assert [bar["hovertext"][0].partition(" over ")[2] for bar in bars] == [
        "1 model, all without doubt",
        "2 models, all without doubt",
    ]


def test_header_says_what_ran_what_failed_and_leads_to_it(tmp_path: Path) -> None:
    header = write_page(tmp_path, [*PAIR, make_record("vgg16", status="oom")]).partition("</header>")[0]
    assert "3 trials, 2 ok · NVIDIA H200 · torch 2.13.0</p>" in header
    assert '<p class="verdict">1 of 3 trials failed: 1 oom. <a href="#failures">' in header
    assert "failed" not in write_page(tmp_path / "right", PAIR).partition("</header>")[0]


@pytest.mark.parametrize(
    ("speedups", "flags", "is_doubted"),
    [([2.0, 2.1], (), False), ([1.0, 9.0], (), True), ([2.0, 2.1], ("throttled",), True)],
    ids=["sure", "wide interval", "flagged"],
)
def test_a_mean_that_says_little_is_pale(
    tmp_path: Path, speedups: Sequence[float], flags: tuple[str, ...], is_doubted: bool
) -> None:
    header = write_page(tmp_path, [make_record(speedups=speedups, flags=flags)]).partition("</header>")[0]
    assert ('<b class="unsure"' in header) is is_doubted


def test_rows_open_to_their_earlier_attempts(tmp_path: Path) -> None:
    attempts = (Attempt("crashed", "compiling", "killed by SIGKILL\nmore"), Attempt("timeout"))
    text = write_page(tmp_path, [replace(make_record(), attempts=attempts)])
    (row,) = data_of(text)["tables"]["speedups"]["rows"]
    assert ["earlier attempts", "crashed while compiling: killed by SIGKILL\ntimeout"] in row["details"]


def test_every_figure_is_there_or_says_why_not(tmp_path: Path) -> None:
    text = write_page(tmp_path, PAIR)
    assert set(re.findall(r'data-figure="([^"]+)"', text)) == set(FIGURES)
    assert "Backends: left out, fewer than two backends were tried." in text


@pytest.mark.parametrize(
    "records",
    [
        [],
        [make_record(status="oom", message="no memory")],
        [make_record()],
        [make_record(precision="fp32")],
        [make_record(mode="eager")],
        [replace(make_record(), processes=())],
    ],
    ids=["nothing", "none ok", "one trial", "fp32 alone", "mode eager", "ok without processes"],
)
def test_page_of_little_is_written(tmp_path: Path, records: Sequence[Record]) -> None:
    write_sweep(tmp_path / "runs", records)
    (tmp_path / "runs" / "night").mkdir(parents=True, exist_ok=True)
    write_report([tmp_path / "runs" / "night"], tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text()
    shown = [item["id"] for item in data_of(text)["figures"] if item["choices"]]
    assert set(shown) == set(re.findall(r'<section class="figure"[^>]*data-figure="([^"]+)"', text))
    assert len(data_of(text)["tables"].get("speedups", {"rows": []})["rows"]) == len(records)


def test_forest_is_sorted_and_shows_each_kind_of_interval(tmp_path: Path) -> None:
    waiting = [
        replace(make_process(speedup, index=i), device_time_s=PerArm(0.001, 0.001))
        for i, speedup in enumerate((3.0, 3.3))
    ]
    waiting = [replace(process, device_kernels=PerArm(10, 10)) for process in waiting]
    records = [
        make_record("single", speedups=(0.5,)),
        make_record("several", speedups=(2.0, 2.1)),
        replace(make_record("waits"), processes=tuple(waiting)),
    ]
    choice = speedup_figures.draw_forest(loaded(tmp_path, records)[1]).choices[0]
    assert choice.layout["yaxis"]["ticktext"] == ["waits", "several", "single"]
    by_name = {trace["name"].partition(", ")[2]: trace for trace in choice.traces}
    assert set(by_name) == {speedup_figures.INTERVAL, speedup_figures.RANGE, speedup_figures.SINGLE}
    ranged = by_name[speedup_figures.RANGE]
    assert ranged["x"][0] + ranged["error_x"]["array"][0] == pytest.approx(3.3)
    assert ranged["x"][0] - ranged["error_x"]["arrayminus"][0] == pytest.approx(3.0)
    assert by_name[speedup_figures.SINGLE]["x"] == [pytest.approx(0.5)]
    assert not by_name[speedup_figures.SINGLE]["error_x"]["visible"]


def test_forest_marks_what_is_not_verified_and_keeps_its_interval(tmp_path: Path) -> None:
    _, rows = loaded(tmp_path, [make_record("unsure", speedups=[2.0, 2.1], flags=("accuracy_unverified",))])
    (trace,) = speedup_figures.draw_forest(rows).choices[0].traces
    assert (trace["name"], trace["marker"]["symbol"]) == ("amp, result not verified", "x-thin-open")
    assert trace["error_x"]["array"][0] > 0


def test_forest_of_many_opens_with_both_ends_and_has_all(tmp_path: Path) -> None:
    records = [make_record(f"m{i}", speedups=(1 + i / 100,)) for i in range(70)]
    first, *_, last = speedup_figures.draw_forest(loaded(tmp_path, records)[1]).choices
    assert first.name == "30 fastest, 30 slowest of 70"
    assert first.layout["yaxis"]["ticktext"][0] == "m69"
    assert first.layout["yaxis"]["ticktext"][-1] == "m0"
    assert (last.name, sum(len(trace["x"]) for trace in last.traces)) == ("all 70", 70)


def test_families_have_bars_in_both_precisions_and_what_was_published(tmp_path: Path) -> None:
    records = [*PAIR, make_record("vit", family="vit"), make_record("vit", "fp32", family="vit", speedups=(1.2,))]
    entries, _ = loaded(tmp_path, records)
    rows = summary(groups(collect(entries).units)).rows
    references = {"cnn": published.find_for_family("cnn", ())}
    amp, fp32, dotted = drawn(
        speedup_figures.draw_families(rows, {key: item for key, item in references.items() if item})
    )
    assert (amp["name"], fp32["name"]) == ("AMP", "fp32")
    both = math.exp((math.log(4.2) / 2 + math.log(2)) / 2)
    assert amp["y"] == pytest.approx([math.sqrt(4.2), 2.0, both])
    assert fp32["y"][1] == pytest.approx(1.2)
    assert dotted["y"][:2] == [1.10, 1.10]
    assert "A6000 2023" in dotted["name"]


def test_families_of_several_modes_differ_in_colour_and_fp32_is_pale(tmp_path: Path) -> None:
    precisions = (("amp", 2.0), ("fp32", 1.5))
    modes = ("default", "reduce-overhead")
    records = [make_record("a", name, (speedup,), mode=mode) for name, speedup in precisions for mode in modes]
    entries, _ = loaded(tmp_path, records)
    bars = drawn(speedup_figures.draw_families(summary(groups(collect(entries).units)).rows, {}))
    assert {trace["name"]: trace["marker"] for trace in bars} == {
        "AMP, default": {"color": "@0"},
        "fp32, default": {"color": "@0 pale"},
        "AMP, reduce-overhead": {"color": "@2"},
        "fp32, reduce-overhead": {"color": "@2 pale"},
    }


def test_published_total_stands_only_beside_the_three_suites() -> None:
    total = published.find_for_family("all", {"timm", "huggingface", "torchbench"})
    assert total is not None
    assert total.label == "1.43 (A100, 2022)"
    timm = published.find_for_family("all", {"timm"})
    assert timm is not None
    assert timm.low == 1.38
    assert published.find_for_family("all", {"timm", ""}) is None
    assert published.find_for_family("all", {"timm", "huggingface"}) is None
    assert all(item.source.startswith("https://") for item in (*published.SUITES, *published.FAMILIES))


def test_suites_have_rows_of_their_own_with_what_was_published(tmp_path: Path) -> None:
    def of_suite(suite: str, precision: str) -> Record:
        trial = make_trial(f"{suite}-model", precision)
        return make_record(trial=replace(trial, labels=replace(trial.labels, suite=suite)))

    records = [of_suite(suite, precision) for suite in ("timm", "huggingface") for precision in ("amp", "fp32")]
    table = data_of(write_page(tmp_path, records))["tables"]["summary"]
    last = [column["title"] for column in table["columns"]].index("published")
    assert {row["cells"][0]: row["cells"][last] for row in table["rows"]} == {
        "cnn": "1.10 (A6000, 2023)",
        "all": "",
        "suite huggingface": "1.52 (A100, 2022)",
        "suite timm": "1.38 (A100, 2022)",
    }


def weighted_pair(preset: bool, **settings: Any) -> list[Record]:
    """A Hugging Face model in both precisions, in the settings of `conf/preset/pt2.yaml` or in those of today."""
    records = []
    for name in ("amp", "fp32"):
        record = make_record("bert", name, family="nlp")
        labels = replace(record.trial.labels, suite="huggingface", preset="pt2" if preset else None)
        model = replace(record.trial.model, library="transformers", dropout=not preset)
        precision = replace(record.trial.precision, tf32=True if preset else None)
        trial = replace(
            record.trial,
            labels=labels,
            model=model,
            precision=precision,
            optimizer="none" if preset else "adam",
            text=Text("none" if preset else "auto"),
        )
        half = "float16" if preset else "bfloat16"
        ran = {
            "autocast": half if name == "amp" else None,
            "grad_scaler": False,
            "text": "none" if preset else "padded",
        }
        records.append(replace(record, trial=trial, diagnostics=Diagnostics(settings=ran | settings)))
    return records


def test_published_figures_name_every_setting_that_was_another(tmp_path: Path) -> None:
    text = write_page(tmp_path, weighted_pair(preset=False))
    said = (
        "The figures of 2022 were measured with other settings (TF32 on, here as torch sets it; AMP float16 autocast "
        "without gradient scaler, here bfloat16 autocast without gradient scaler; optimizer none, here adam; dropout "
        "off, here on; texts of full length without a mask, here padded), on another machine (GPU NVIDIA A100, here "
        "NVIDIA H200; torch before 2.0, here 2.13.0)."
    )
    header, _, rest = text.partition("</header>")
    assert "published: 1.52 (A100, 2022), measured otherwise" in header
    assert said in header
    families = re.findall(r'data-figure="families".*?<p class="caption">(.*?)</p>', rest, re.DOTALL)
    summed = re.findall(r'data-table="summary".*?<p class="caption">(.*?)</p>', rest, re.DOTALL)
    assert [said in caption for caption in (*families, *summed)] == [True, True]


def test_beside_the_preset_published_figures_differ_by_machine_alone(tmp_path: Path) -> None:
    header = write_page(tmp_path, weighted_pair(preset=True)).partition("</header>")[0]
    assert "published: 1.52 (A100, 2022)</span>" in header
    assert (
        "The figures of 2022 were measured with the settings of this sweep, on another machine (GPU NVIDIA A100, here "
        "NVIDIA H200; torch before 2.0, here 2.13.0)." in header
    )
    changed = [replace(item, trial=replace(item.trial, optimizer="adam")) for item in weighted_pair(preset=True)]
    header = write_page(tmp_path / "adam", changed).partition("</header>")[0]
    assert "with other settings (optimizer none, here adam)" in header


def test_the_head_names_the_clock_of_the_device_mean(tmp_path: Path) -> None:
    busy = replace(make_process(), device_time_s=PerArm(0.02, 0.01))
    pair = [replace(make_record("resnet50", name), processes=(busy,)) for name in ("amp", "fp32")]
    header = write_page(tmp_path, pair).partition("</header>")[0]
    assert "by busy time 2.00 over 1 model" in header
    assert "by device time" not in header


def test_without_published_figures_nothing_is_said_of_their_settings(tmp_path: Path) -> None:
    text = write_page(tmp_path, PAIR)
    assert "The figures of 2022" not in text
    assert text.count("The source of the figures of 2023 names no settings.") == 3
    inference = [replace(item, trial=replace(item.trial, workload="inference")) for item in weighted_pair(preset=True)]
    assert "published" not in write_page(tmp_path / "inference", inference).partition("</header>")[0]


def test_settings_of_the_published_figures_are_those_of_the_preset() -> None:
    preset = yaml.safe_load((ROOT / "conf/preset/pt2.yaml").read_text().partition("\n")[2])
    assert preset["precision"] == {"tf32": True, "auto": "float16", "grad_scaler": False}
    assert (preset["model"], preset["defaults"]) == (
        {"dropout": False},
        [{"override /optimizer": "none"}, {"override /text": "none"}],
    )
    names = {"TF32": "on", "AMP": "float16 autocast without gradient scaler", "optimizer": "none", "dropout": "off"}
    assert {name: published.SETTINGS[name][0] for name in names} == names


def test_rows_open_to_why_the_device_could_not_tell(tmp_path: Path) -> None:
    process = replace(make_process(), device_time_missing="no kernels were seen")
    text = write_page(tmp_path, [replace(make_record(), processes=(process,)), make_record("vgg16")])
    table = data_of(text)["tables"]["speedups"]
    row = next(row for row in table["rows"] if row["cells"][0] == "resnet50")
    assert row["cells"][[column["title"] for column in table["columns"]].index("device")] == "not known"
    assert ["device_time_missing", "no kernels were seen"] in row["details"]
    assert "Device time not known: resnet50 amp default: no kernels were seen." in text


def test_rows_open_to_why_they_are_slow(tmp_path: Path) -> None:
    slow = replace(make_process(0.9), device_time_s=PerArm(0.02, 0.025))
    attention = {"attention_ran_eager": "cudnn", "attention_ran_compiled": ""}
    found = Diagnostics(graphs=1, graph_breaks=(GraphBreak("print", count=2),), recompiles=1, settings=attention)
    record = replace(make_record(flags=("attention_differs",)), processes=(slow,), diagnostics=found)
    text = write_page(tmp_path, [record, make_record("vgg16", speedups=[1.0])])
    details = {row["cells"][0]: dict(row["details"]) for row in data_of(text)["tables"]["speedups"]["rows"]}
    assert details["resnet50"]["why not faster"].splitlines() == [
        "the compiled kernels take longer than eager's (busy speedup 0.80); inspect=true shows which are generated and "
        "which are library calls",
        "recompile, 1 time: TORCH_LOGS=recompiles or inspect=true says why",
        "2 graph breaks, see below",
    ]
    assert details["resnet50"]["attention kernels"] == "eager cudnn, compiled none of cuDNN, flash, memory-efficient"
    assert details["vgg16"]["why not faster"] == "2 graph breaks, see below"  # nobody knows of its kernels
    assert "attention kernels" not in details["vgg16"]


def test_rows_open_to_why_nobody_knows_whether_the_result_is_right(tmp_path: Path) -> None:
    accuracy = Accuracy("float64", None, "eager is too far from it", worst="output", compiled_error=0.8, bound=2.5)
    record = replace(make_record(), processes=(replace(make_process(), accuracy=accuracy),))
    (row,) = data_of(write_page(tmp_path, [record]))["tables"]["speedups"]["rows"]
    assert dict(row["details"])["accuracy"] == (
        "no verdict: eager is too far from it; output: error 0.8, allowed 2.5, against float64"
    )


def test_rows_of_failures_open_to_what_their_status_means(tmp_path: Path) -> None:
    text = write_page(tmp_path, [make_record(status="oom", message="first\nsecond"), make_record("vgg16")])
    tables = data_of(text)["tables"]
    (row,) = tables["failures"]["rows"]
    assert 'class="caption">1 trial is not ok; pass rates count it.</p>' in text
    assert dict(row["details"])["status"].startswith("oom: Out of device or host memory. Give a smaller batch (batch_")
    assert "first" in row["cells"]  # the table has the first line, the opened row all of the message
    assert dict(row["details"])["message"] == "first\nsecond"
    assert ["status" in dict(row["details"]) for row in tables["speedups"]["rows"]] == [True, False]


def test_a_flag_of_every_trial_stands_above_the_rows(tmp_path: Path) -> None:
    flags = {"a": ("single_process",), "b": ("single_process", "throttled")}
    text = write_page(tmp_path, [make_record(name, flags=flags[name]) for name in flags])
    table = data_of(text)["tables"]["speedups"]
    at = [column["title"] for column in table["columns"]].index("flags")
    assert [row["cells"][at] for row in table["rows"]] == ["", "throttled"]
    assert "flags of every trial: single_process." in text
    assert re.findall(r'data-term="(\w+)"', text) == ["throttled", "graph_break", "single_process"]
    assert "1 trial: b amp default." in text
    folded = text.partition('<section id="legend">')[2].partition("</section>")[0].partition("<details>")[2]
    assert "Housekeeping flags (1)" in folded
    assert 'data-term="single_process"' in folded
    assert ["flags", "single_process, throttled"] in table["rows"][1]["details"]


def test_backends_stand_side_by_side_and_those_without_figures_are_named(tmp_path: Path) -> None:
    records = [
        make_record(backend="inductor", speedups=(2.0,)),
        make_record(backend="aot_eager", speedups=(0.9,)),
        make_record(backend="tvm", status="unavailable"),
    ]
    figure = speedup_figures.draw_backends(loaded(tmp_path, records)[1])
    (bars,) = drawn(figure)
    assert figure.choices[0].layout["yaxis"]["ticktext"] == ["aot_eager", "inductor"]
    assert dict(zip(bars["y"], bars["x"], strict=True)) == {0: pytest.approx(0.9), 1: pytest.approx(2.0)}
    assert "tvm (unavailable)" in figure.caption


def test_forest_of_many_has_both_ends_of_each_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedup_figures, "MAX_BARS", 6)
    monkeypatch.setattr(speedup_figures, "MAX_BARS_PER_GROUP", 4)
    records = [make_record(f"m{i}", speedups=(1 + i / 100,)) for i in range(5)]
    records += [make_record(f"m{i}", "fp32", (1 + i / 50,)) for i in range(4)]
    _, amp, fp32, _ = speedup_figures.draw_forest(loaded(tmp_path, records)[1]).choices
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
    figure = speedup_figures.draw_backends(loaded(tmp_path, records)[1])
    assert [choice.name for choice in figure.choices] == ["a", "c"]
    assert "2 of 3 to choose from: those in which most backends gave a speedup." in figure.caption


def test_many_lines_of_batch_sizes_are_capped_with_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedup_figures, "MAX_LINES", 2)
    sizes = {"a": (8, 16), "b": (8, 16), "c": (8, 16, 32)}
    records = [make_record(model, batch_size=size) for model, found in sizes.items() for size in found]
    figure = speedup_figures.draw_batch_sizes(loaded(tmp_path, records)[1])
    assert [trace["name"] for trace in drawn(figure)] == ["a", "c"]
    assert figure.caption.endswith("2 of 3 lines: those of most sizes.")


def test_batch_sizes_make_a_line(tmp_path: Path) -> None:
    records = [make_record(batch_size=size, speedups=(1 + size / 100,)) for size in (64, 8, 16)]
    (line,) = drawn(speedup_figures.draw_batch_sizes(loaded(tmp_path, records)[1]))
    assert line["x"] == [8, 16, 64]
    assert line["y"] == pytest.approx([1.08, 1.16, 1.64])


def test_total_times_cross_at_break_even(tmp_path: Path) -> None:
    _, rows = loaded(
        tmp_path, [make_record(speedups=(2.0, 2.0))]
    )  # 20 ms eager, 10 ms compiled, 3 s and 0.5 s to compile
    eager, cold, crossing, warm, warm_crossing = drawn(cost_figures.draw_total_time(rows))
    assert (cold["y"][0], warm["y"][0]) == (3.0, 0.5)
    assert crossing["x"] == [pytest.approx(300)]
    assert crossing["y"] == [pytest.approx(6.0)]
    assert warm_crossing["x"] == [pytest.approx(50)]
    slope = (eager["y"][1] - eager["y"][0]) / (eager["x"][1] - eager["x"][0])
    assert slope == pytest.approx(0.02)


def test_break_even_of_a_contended_compile_is_an_upper_bound(tmp_path: Path) -> None:
    flagged, plain = (
        cost_figures.draw_total_time(loaded(tmp_path / name, [make_record(speedups=(2.0, 2.0), flags=flags)])[1])
        for name, flags in (("flagged", ("compile_contended",)), ("plain", ()))
    )
    legend = [trace["name"] for trace in drawn(flagged) if "break-even" in trace["name"]]
    assert legend == ["break-even, empty cache: ≤300 steps", "break-even, filled cache: ≤50 steps"]
    assert flagged.choices[0].name == "resnet50: ≤300 [300, 300] steps"
    assert "≤" not in json.dumps(page._figure_data(plain), ensure_ascii=False)


def test_a_trial_that_never_pays_has_no_crossing(tmp_path: Path) -> None:
    figure = cost_figures.draw_total_time(loaded(tmp_path, [make_record(speedups=(0.8,))])[1])
    assert [trace["name"] for trace in drawn(figure)] == ["eager", "compiled, empty cache"]
    assert figure.choices[0].name.endswith("never")


def test_compile_time_and_memory_stand_against_speedup(tmp_path: Path) -> None:
    process = replace(make_process(2.0), memory_bytes=PerArm(3e9, 2e9))
    _, rows = loaded(tmp_path, [replace(make_record(), processes=(process,))])
    (compiling,) = drawn(cost_figures.draw_compile_time(rows))
    assert (compiling["x"], compiling["y"]) == ([3.0], [pytest.approx(2.0)])
    (memory,) = drawn(cost_figures.draw_memory(rows))
    assert memory["x"] == [pytest.approx(1.5)]
    assert cost_figures.draw_memory(loaded(tmp_path / "other", PAIR)[1]).missing


def with_host(record: Record, host_s: PerArm, device_s: PerArm) -> Record:
    processes = (replace(process, host_step_s=host_s, device_step_s=device_s) for process in record.processes)
    return replace(record, processes=tuple(processes))


def test_speedups_on_other_hosts_bend_where_an_arm_becomes_host_bound(tmp_path: Path) -> None:
    steep = with_host(make_record("steep"), PerArm(0.008, 0.005), PerArm(0.020, 0.010))
    flat = with_host(make_record("flat"), PerArm(0.002, 0.001), PerArm(0.020, 0.010))
    figure = headroom_figure.draw_headroom(loaded(tmp_path, [flat, steep, make_record("unknown")])[1])
    first, second = drawn(figure)
    assert (first["name"], second["name"]) == ("steep", "flat")
    assert [trace["line"]["color"] for trace in (first, second)] == ["@0", "@0"]  # one mode
    assert [trace["line"]["dash"] for trace in (first, second)] == ["solid", "dash"]
    speedups = dict(zip(first["x"], first["y"], strict=True))
    assert (min(speedups), max(speedups)) == (0.25, 4.0)
    # 20 / 10 ms until the compiled arm's host takes 10 ms, 20 / 12.5 ms where eager's takes 20 ms, then 8 / 5.
    predicted = {0.25: 2.0, 1.0: 2.0, 2.0: 2.0, 2.5: 1.6, 4.0: 1.6}
    found = {at: next(value for x, value in speedups.items() if x == pytest.approx(at)) for at in predicted}
    assert found == pytest.approx(predicted)
    assert second["y"] == pytest.approx([2.0] * len(second["x"]))
    assert figure.choices[0].layout["xaxis"]["ticktext"] == ["¼", "½", "1", "2", "4"]


def test_many_lines_of_other_hosts_are_capped_with_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headroom_figure, "MAX_LINES", 3)
    monkeypatch.setattr(headroom_figure, "MAX_SERIES", 2)
    records = [with_host(make_record(name), PerArm(0.01, 0.01), PerArm(0.02, 0.01)) for name in "abcd"]
    figure = headroom_figure.draw_headroom(loaded(tmp_path, records)[1])
    assert [choice.name for choice in figure.choices] == ["a, b", "c"]
    assert figure.caption.endswith("3 of 4 lines: those that depend most on the host.")


@pytest.mark.parametrize(
    ("host_s", "device_s"), [(PerArm(0.01, None), PerArm(0.02, 0.01)), (PerArm(0.01, 0.01), PerArm(None, 0.01))]
)
def test_without_all_four_times_there_is_no_line(tmp_path: Path, host_s: PerArm, device_s: PerArm) -> None:
    figure = headroom_figure.draw_headroom(loaded(tmp_path, [with_host(make_record(), host_s, device_s)])[1])
    assert figure.missing == "no trial with a speedup has host time and device step time of both arms"


def test_step_times_are_first_steps_then_blocks_without_void_rounds(tmp_path: Path) -> None:
    process = make_process(2.0)
    void = Round("AB", 9.0, 9.0, "recompiled")
    process = replace(process, first_steps_s=(5.0, 0.01), rounds=(*process.rounds, void))
    entries, rows = loaded(tmp_path, [replace(make_record(), processes=(process,))])
    figure = step_figure.draw_step_times(entries, rows)
    by_name = {trace["name"]: trace for trace in drawn(figure)}
    assert by_name["first compiled steps"]["y"] == [5.0, 0.01, None]
    assert by_name["eager, blocks"]["y"] == [pytest.approx(0.02), pytest.approx(0.02), None]
    assert by_name["compiled, blocks"]["y"] == [pytest.approx(0.01), pytest.approx(0.01), None]
    assert figure.choices[0].layout["xaxis"]["ticktext"] == ["process 0, cold, 1 void"]


def test_step_times_of_many_trials_begin_with_the_unsteady(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_figure, "MAX_TRIALS", 2)
    records = [make_record("a"), make_record("b"), make_record("c", flags=("unsteady",))]
    figure = step_figure.draw_step_times(*loaded(tmp_path, records))
    assert [choice.name for choice in figure.choices] == ["c (unsteady)", "a"]
    assert "2 of 3 trials" in figure.caption


NINE = {8: 3, **{10 + size: size for size in range(1, 9)}}


def test_sizes_that_a_loop_saw_are_a_histogram_with_the_sizes_to_pad_to(tmp_path: Path) -> None:
    records = [make_script("train.py", NINE, pad_to=(14, 18)), make_script("one.py", {8: 3}), make_record()]
    figure = script_figure.draw_sizes(*loaded(tmp_path, records))
    assert [choice.name for choice in figure.choices] == ["train.py: 9 shapes"]
    bars, lines = drawn(figure)
    assert dict(zip(bars["x"], bars["y"], strict=True)) == NINE
    assert bars["hovertext"][:2] == ["size 8", "size 11"]
    assert lines["x"] == [14.5, 14.5, None, 18.5, 18.5, None]  # behind the size, not through its bar
    assert [text for text in lines["text"] if text] == ["14", "18"]


def test_few_shapes_are_drawn_without_sizes_to_pad_to(tmp_path: Path) -> None:
    records = [make_script("train.py", {8: 1, 32: 60}, pad_to=(32,))]
    (bars,) = drawn(script_figure.draw_sizes(*loaded(tmp_path, records)))
    assert (bars["x"], bars["y"]) == ([8, 32], [1, 60])


def test_many_sizes_share_bars(tmp_path: Path) -> None:
    sizes = dict.fromkeys(range(1000, 1250), 1)
    (bars,) = drawn(script_figure.draw_sizes(*loaded(tmp_path, [make_script("train.py", sizes)])))
    assert (len(bars["x"]), sum(bars["y"])) == (84, 250)
    assert (bars["x"][0], bars["y"][0], bars["hovertext"][0]) == (1001, 3, "sizes 1,000 to 1,002")
    assert bars["y"][-1] == 1


def test_only_a_page_with_a_script_speaks_of_its_sizes(tmp_path: Path) -> None:
    left_out = "Sizes in a script&#39;s loop: left out, no script has shapes that differ in one dimension."
    for name, records, is_drawn, is_left_out in (
        ("no script", [], False, False),
        ("one shape", [make_script("train.py", {8: 3})], False, True),
        ("several", [make_script("train.py", NINE)], True, False),
    ):
        text = write_page(tmp_path / name, [make_record(), *records])
        figures = re.findall(r'<section class="figure"[^>]*data-figure="([^"]+)"', text)
        assert ("script-sizes" in figures, left_out in text) == (is_drawn, is_left_out), name


def test_axis_of_ratios_shows_one_and_takes_nothing_that_has_no_log() -> None:
    axis = ratio_axis("speedup", [2.0, None, 0.0])
    low, high = axis["range"]
    assert low < 0 < math.log10(2.0) < high
    assert 1.0 in axis["tickvals"]
    assert ratio_axis("speedup", [])["range"] == [-0.01, 0.01]


def test_axis_of_seconds_names_milliseconds() -> None:
    assert seconds_axis("time", [0.01, 2.0])["ticktext"] == [
        "10 ms",
        "20 ms",
        "50 ms",
        "100 ms",
        "200 ms",
        "500 ms",
        "1 s",
        "2 s",
    ]


def test_rows_open_to_the_whole_message_and_link_to_their_files(tmp_path: Path) -> None:
    text = write_page(tmp_path, [make_record(status="compile_error", message="first\nsecond"), make_record("vgg16")])
    rows = {row["cells"][0]: row for row in data_of(text)["tables"]["speedups"]["rows"]}
    assert ["message", "first\nsecond"] in rows["resnet50"]["details"]
    assert ["graph breaks", "2 times: print (no place)"] in rows["vgg16"]["details"]
    sweep = tmp_path / "runs" / "night"
    for row in rows.values():
        assert all((sweep / "report" / href).resolve().exists() for _, href in row["links"])
        assert row["links"]


@pytest.mark.parametrize("out", ["night", "night/deep/er", ".", "other one/#2"])
def test_links_start_from_the_folder_of_the_page(tmp_path: Path, out: str) -> None:
    runs = tmp_path / "100 % runs"
    sweep = write_sweep(runs, [make_record(status="compile_error")])
    write_report([sweep], runs / out)
    tables = data_of((runs / out / "report.html").read_text())["tables"]
    for name in ("speedups", "failures"):
        links = [unquote(href) for row in tables[name]["rows"] for _, href in row["links"]]
        assert len(links) >= 2
        assert all((runs / out / link).exists() for link in links)


def test_a_trial_whose_folder_is_elsewhere_has_no_links(tmp_path: Path) -> None:
    entries, _ = loaded(tmp_path, PAIR)
    moved = [replace(entry, folder=tmp_path / "gone") for entry in entries]
    findings = Findings(moved)
    report = Report((), findings, {spec.name: spec.make(findings) for spec in TABLES}, (), ())
    data = data_of(page.begin_page(report, tmp_path)())
    assert [row["links"] for row in data["tables"]["speedups"]["rows"]] == [[], []]


def test_recommendations_and_causes_stand_in_the_page(tmp_path: Path) -> None:
    slow = make_record(HOSTILE, speedups=(1.10, 1.11, 1.09), mode="default")
    fast = make_record(HOSTILE, speedups=(1.50, 1.51, 1.49), mode="reduce-overhead")
    text = write_page(tmp_path, [slow, fast])
    shown = data_of(text)["tables"]["recommendations"]
    assert [column["title"] for column in shown["columns"]][:4] == ["model", "precision", "recommended", "speedup"]
    assert shown["rows"][0]["cells"][0] == HOSTILE
    assert shown["rows"][0]["numbers"][3] == pytest.approx(1.5, rel=0.01)
    assert text.index('id="recommendations"') < text.index('id="figures"')


def test_causes_are_grouped_by_cause_and_fix_and_open_to_their_trials(tmp_path: Path) -> None:
    def waiting(name: str, batch_size: int = 32, **more: Any) -> Record:
        process = replace(make_process(), device_time_s=PerArm(0.018, 0.005), device_kernels=PerArm(10, 10))
        record = make_record(name, batch_size=batch_size, **more)
        return replace(record, processes=(process,), diagnostics=None)

    other = (GraphBreak("a branch", "model.py:3", 1), GraphBreak("print", "model.py:9", 1))
    broken = replace(make_record("e"), diagnostics=Diagnostics(graph_breaks=other))
    records = [waiting("a"), waiting("b", 64), waiting("c", mode="reduce-overhead"), make_record("d"), broken]
    table = data_of(write_page(tmp_path, records))["tables"]["causes"]
    titles = [column["title"] for column in table["columns"]]
    assert titles == ["cause", "reason", "fix", "lost at most", "trials", "models"]
    rows = [dict(zip(titles, row["cells"], strict=True)) for row in table["rows"]]
    assert [(row["cause"], row["trials"], row["models"]) for row in rows] == [
        ("host_bound", "2", "a, b"),
        ("host_bound", "1", "c"),
        ("graph_break", "2", "d, e"),
    ]
    assert [row["fix"] for row in rows[:2]] == [causes.GRAPHS, causes.LARGER_BATCH]
    assert [row["reason"] for row in rows] == [causes.WAITS, causes.WAITS, "print (2); a branch (1)"]
    assert rows[0]["lost at most"] == "4.99 ms per step (50 %)"
    (first, _), (second, said) = table["rows"][0]["details"]
    assert (first, second) == ("a amp default 32", "b amp default 64")
    assert said.startswith("4.99 ms per step (50 %): the device waits for the host")
    assert [row["numbers"][4] for row in table["rows"]] == [2, 1, 2]
    csv = (tmp_path / "runs/night/report/causes.csv").read_text().splitlines()
    assert len(csv) == 7  # the file keeps every trial


def test_failures_stand_near_the_top_with_the_end_of_their_logs(tmp_path: Path) -> None:
    failed = replace(make_record(status="compile_error", message="first\nsecond"), log="worker-0.log")
    sweep = write_sweep(tmp_path / "runs", [failed, make_record("vgg16")])
    (folder,) = sweep.glob("resnet50*")
    noise = "".join(f"line {number}\n" for number in range(2000))
    (folder / "worker-0.log").write_bytes(f"{noise}\x1b[31m  <b>no\x07 kernel</b>\x1b[0m\n\n".encode() + b"last \xff\n")
    write_report([sweep], sweep / "report")
    text = (sweep / "report" / "report.html").read_text()
    assert text.index('id="failures"') < text.index('id="recommendations"') < text.index('id="figures"')
    assert '<a href="#failures">Failures (1)</a>' in text
    tables = data_of(text)["tables"]
    (row,) = tables["failures"]["rows"]
    end = dict(row["details"])["end of the log"].splitlines()
    assert end[-3:] == ["line 1999", "  <b>no  kernel</b>", "last \ufffd"]
    assert len(end) == listings.MAX_LOG_LINES
    assert dict(row["details"])["message"] == "first\nsecond"
    assert "<b>no" not in without_plotly(text)
    assert all("end of the log" not in dict(row["details"]) for row in tables["speedups"]["rows"])  # once is enough


@pytest.mark.parametrize("log", ["../../secret", "{folder}/secret"])
def test_a_record_shows_no_file_from_outside_of_its_folder(tmp_path: Path, log: str) -> None:
    """Sweeps are shared, and a page may be sent on."""
    (tmp_path / "secret").write_text("the secret\n")
    failed = replace(make_record(status="compile_error", message="first"), log=log.format(folder=tmp_path))
    sweep = write_sweep(tmp_path / "runs", [failed])
    write_report([sweep], sweep / "report")
    text = (sweep / "report" / "report.html").read_text()
    (row,) = data_of(text)["tables"]["failures"]["rows"]
    assert "end of the log" not in dict(row["details"])
    assert [name for name, _ in row["links"]] == ["folder", "record.json"]
    assert "the secret" not in text


def test_without_failures_nothing_is_said_of_them(tmp_path: Path) -> None:
    text = write_page(tmp_path, PAIR)
    assert 'href="#failures"' not in text
    assert 'id="failures"' not in text


def test_every_entry_of_the_contents_bar_leads_somewhere(tmp_path: Path) -> None:
    text = without_plotly(
        write_page(tmp_path, [*PAIR, make_record("bad", status="oom"), make_record("x", mode="eager")])
    )
    named = re.findall(r'<a href="#([a-z]+)">', text.partition("<nav")[2].partition("</nav>")[0])
    assert {"failures", "recommendations", "figures", "causes", "legend", "speedups", "settings"} <= set(named)
    assert [text.index(f'id="{name}"') for name in named] == sorted(text.index(f'id="{name}"') for name in named)


def test_legend_has_flags_by_rank_with_their_trials_and_statuses(tmp_path: Path) -> None:
    rows = speedups([]).rows
    assert make_legend(rows, []) == []
    flags = {"a": ("host_bound", "single_process"), "b": ("host_bound", "little_headroom", "of_tomorrow")}
    records = [make_record(name, flags=flags[name]) for name in flags] + [make_record("c", status="oom")]
    entries, rows = loaded(tmp_path, records)
    parts = make_legend(rows, causes.causes(entries).rows)
    assert {part.kind: [term.name for term in part.terms] for part in parts} == {
        "status": ["oom"],
        "doubt": ["host_bound"],
        "context": ["little_headroom", "of_tomorrow"],
        "housekeeping": ["single_process"],
        "cause": ["graph_break"],
    }
    assert [part.kind for part in parts if part.folded] == ["housekeeping"]
    (host_bound,) = parts[0].terms
    assert host_bound.says == sentence(FLAGS["host_bound"].says)
    assert host_bound.todo == FLAGS["host_bound"].todo
    assert host_bound.trials == "2 trials: a amp default, b amp default"


def test_housekeeping_flags_show_in_opened_rows_alone(tmp_path: Path) -> None:
    flags = {"a": ("compile_contended", "throttled"), "b": ()}
    text = write_page(tmp_path, [make_record(name, flags=flags[name]) for name in flags])
    table = data_of(text)["tables"]["speedups"]
    at = [column["title"] for column in table["columns"]].index("flags")
    assert [row["cells"][at] for row in table["rows"]] == ["throttled", ""]
    assert ["flags", "compile_contended, throttled"] in table["rows"][0]["details"]


def test_a_colour_is_a_mode_in_every_figure(tmp_path: Path) -> None:
    known = {"host_step_s": PerArm(0.01, 0.005), "device_step_s": PerArm(0.02, 0.01), "memory_bytes": PerArm(3e9, 2e9)}

    def with_all(record: Record) -> Record:
        processes = (replace(item, first_steps_s=(5.0, 0.01), **known) for item in record.processes)
        return replace(record, processes=tuple(processes))

    numbers = {"default": 0, "eager": 1, "reduce-overhead": 2}
    for mode, precision in itertools.product(("default", "reduce-overhead"), ("amp", "fp32")):
        made = [make_record(mode=mode, precision=precision, batch_size=size) for size in (8, 16)]
        made += [make_record(mode=mode, precision=precision, backend="aot_eager")]
        text = write_page(tmp_path / mode / precision, list(map(with_all, made)))
        pale = " pale" if precision == "fp32" else ""
        allowed = {f"@{numbers[name]}{pale}" for name in (mode, "eager")} | {"@ink", "@muted"}
        for figure in data_of(text)["figures"]:
            if figure["choices"]:
                used = set(
                    re.findall(r'"color": "(@[^"]+)"', json.dumps([item["traces"] for item in figure["choices"]]))
                )
                assert used <= allowed, figure["id"]
                assert f"@{numbers[mode]}{pale}" in used, figure["id"]
        shades = re.findall(r'class="shade" style="--shade:var\(--c(\d)\)">([a-z-]+)<', text)
        assert {name: int(number) for number, name in shades} == {name: numbers[name] for name in ("eager", mode)}


def test_two_sweeps_are_named_in_each_row_and_filter_and_whose_trial_counts_at_the_top(tmp_path: Path) -> None:
    names = {"night": (2.0, 2.1), "day": (1.5, 1.6)}
    sweeps = []
    for name, values in names.items():
        records = [make_record(speedups=values), make_record("vgg16", status="oom"), make_record("eager", mode="eager")]
        sweep = write_sweep(tmp_path / name, records)
        sweeps.append(sweep.rename(tmp_path / name / name))
    only_here = make_record("alone", speedups=(1.7, 1.8))
    write_sweep(tmp_path / "more", [only_here])
    (folder,) = (tmp_path / "more" / "night").glob("alone*")
    folder.rename(sweeps[0] / folder.name)
    write_report(sweeps, tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text()
    head = text.partition("<main>")[0]
    said = "Where several of night, day tried one model, precision, batch and mode, means and recommendations take"
    assert said in head
    tables = data_of(text)["tables"]
    for name in ("speedups", "failures", "recommendations"):
        at = [column["title"] for column in tables[name]["columns"]].index("sweep")
        filters = tables[name]["filters"].index("sweep")
        assert [row["cells"][at] for row in tables[name]["rows"]] == [
            row["filters"][filters] for row in tables[name]["rows"]
        ]
        ids = [row["id"] for row in tables[name]["rows"] if "id" in row]
        assert len(ids) == len(set(ids))
    chosen = {row["cells"][0]: row["filters"][0] for row in tables["recommendations"]["rows"]}
    assert chosen == {"resnet50": "day", "alone": "night", "vgg16": "day"}
    opened = [name for row in tables["causes"]["rows"] for name, _ in row["details"]]
    assert {name.split()[-1] for name in opened} == {"night", "day"}
    assert "same trial twice" in (tmp_path / "out" / "report.md").read_text()


def test_a_table_sorts_by_figures_in_full(tmp_path: Path) -> None:
    table = data_of(write_page(tmp_path, [make_record(speedups=(1.2345678,)), make_record("bad", status="oom")]))[
        "tables"
    ]["speedups"]
    column = [item["title"] for item in table["columns"]].index("speedup")
    assert [row["numbers"][column] for row in table["rows"]] == [None, pytest.approx(1.2345678)]
    assert [row["filters"] for row in table["rows"]] == [
        ["oom", "default", "amp", "cnn"],
        ["ok", "default", "amp", "cnn"],
    ]
