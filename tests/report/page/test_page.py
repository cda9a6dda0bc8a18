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
from pages import loaded, write_page
from records import make_process, make_record, make_script, make_trial, write_sweep
from reports import write_report

from sweeper.analysis.flags import FLAGS
from sweeper.core.record import Accuracy, Attempt, Diagnostics, GraphBreak, PerArm, Record, Round
from sweeper.core.trial import Text
from sweeper.report import published
from sweeper.report.answers import causes
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.provenance import Provenance
from sweeper.report.columns.formats import sentence
from sweeper.report.page import listings, page
from sweeper.report.page.legend import make_legend
from sweeper.report.text.report import Report
from sweeper.report.text.verdict import Verdict

HOSTILE = "<img src=x onerror=alert(1)></script><!--"
FIGURES = (
    "forest", "families", "ladder", "backends", "batch-sizes", "total-time",
)  # fmt: skip
PAIR = (make_record(speedups=(2.0, 2.1)), make_record(precision="fp32", speedups=(1.4, 1.5)))


def data_of(text: str) -> dict[str, Any]:
    found = re.findall(
        r'<script type="application/json" id="([a-z]+)-data">(.*?)</script>', text, re.DOTALL
    )
    data = {name: json.loads(content) for name, content in found}
    return {"figures": data["figure"], "tables": data["table"]}


def without_plotly(text: str) -> str:
    start = text.index("* plotly.js v")
    return text[:start] + text[text.index("</script>", start) :]


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
    text = write_page(
        tmp_path, [record, make_record(HOSTILE), make_record(HOSTILE, "fp32", family=HOSTILE)]
    )
    assert "<img" not in without_plotly(text)
    assert text.count("</script>") == 4  # data of figures and of tables, plotly.js, ours
    rows = data_of(text)["tables"]["speedups"]["rows"]
    assert {row["cells"][0] for row in rows} == {HOSTILE}
    forest = next(item for item in data_of(text)["figures"] if item["id"] == "forest")
    assert "&lt;img" in json.dumps(forest["choices"][0]["layout"])
    assert "<img" not in json.dumps(forest["choices"][0])


def test_header_has_the_weighted_mean_and_its_interval(tmp_path: Path) -> None:
    text = write_page(tmp_path, PAIR)
    geomeans = math.sqrt(2.0 * 2.1), math.sqrt(1.4 * 1.5)
    weighted = 0.75 * geomeans[0] + 0.25 * geomeans[1]
    header = text.partition("</header>")[0]
    assert f"<b>weighted 0.75 AMP + 0.25 fp32: {weighted:.2f} over 1 model, " in header
    assert "these models [" in header
    assert "<dt>device</dt><dd>NVIDIA H200</dd>" in text


def test_header_says_how_sure_the_mean_is(tmp_path: Path) -> None:
    flags = {"amp": ("accuracy_unverified",), "fp32": ()}
    text = write_page(
        tmp_path, [*PAIR, *(make_record("vgg16", name, [2.0], flags=flags[name]) for name in flags)]
    )
    assert " over 1 model, all undisturbed" in text.partition("</header>")[0]
    (row,) = (row for row in data_of(text)["tables"]["summary"]["rows"] if row["cells"][0] == "cnn")
    assert [cell.partition("(")[2] for cell in row["cells"] if "undisturbed)" in cell] == [
        "1, all undisturbed)",
        "2, all undisturbed)",
        "1, all undisturbed)",
    ]
    bars = [
        trace
        for trace in data_of(text)["figures"][1]["choices"][0]["traces"]
        if trace["type"] == "bar"
    ]
    assert [bar["hovertext"][0].partition(" over ")[2] for bar in bars] == [
        "1 model, all undisturbed",
        "2 models, all undisturbed",
    ]


def test_header_says_what_ran_what_failed_and_leads_to_it(tmp_path: Path) -> None:
    header = write_page(tmp_path, [*PAIR, make_record("vgg16", status="oom")]).partition(
        "</header>"
    )[0]
    assert "3 trials, 2 ok · NVIDIA H200 · torch 2.13.0</p>" in header
    assert '<p class="verdict">1 of 3 trials failed: 1 oom. <a href="#failures">' in header
    assert "failed" not in write_page(tmp_path / "right", PAIR).partition("</header>")[0]


def test_rows_open_to_their_earlier_attempts(tmp_path: Path) -> None:
    attempts = (Attempt("crashed", "compiling", "killed by SIGKILL\nmore"), Attempt("timeout"))
    text = write_page(tmp_path, [replace(make_record(), attempts=attempts)])
    (row,) = data_of(text)["tables"]["speedups"]["rows"]
    assert ["earlier attempts", "crashed while compiling: killed by SIGKILL\ntimeout"] in row[
        "details"
    ]


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


def of_suite(suite: str | None, precision: str = "amp") -> Record:
    trial = make_trial(f"{suite}-model", precision)
    return make_record(trial=replace(trial, labels=replace(trial.labels, suite=suite)))


@pytest.mark.parametrize(
    ("suites", "label"),
    [
        (("timm", "huggingface", "torchbench"), "1.43 (A100, 2022)"),
        (("timm",), "1.38 (A100, 2022)"),
        (("timm", None), None),
        (("timm", "huggingface"), None),
    ],
    ids=["all three", "one", "one and other models", "two"],
)
def test_published_total_stands_only_beside_the_three_suites(
    tmp_path: Path, suites: Sequence[str | None], label: str | None
) -> None:
    findings = Findings(loaded(tmp_path, [of_suite(suite) for suite in suites]))
    (whole,) = (group for group in findings.groups if group.is_whole)
    found = published.find_published(whole)
    assert (found.label if found else None) == label


def test_published_figures_name_their_sources() -> None:
    for item in (*published.SUITES.values(), *published.FAMILIES.values()):
        assert item.source.startswith("https://"), item


def test_suites_have_rows_of_their_own_with_what_was_published(tmp_path: Path) -> None:
    records = [
        of_suite(suite, precision)
        for suite in ("timm", "huggingface")
        for precision in ("amp", "fp32")
    ]
    table = data_of(write_page(tmp_path, records))["tables"]["summary"]
    last = [column["title"] for column in table["columns"]].index("published")
    assert {row["cells"][0]: row["cells"][last] for row in table["rows"]} == {
        "cnn": "1.10 (A6000, 2023)",
        "all": "",
        "suite huggingface": "1.52 (A100, 2022)",
        "suite timm": "1.38 (A100, 2022)",
    }


def weighted_pair(preset: bool, **settings: Any) -> list[Record]:
    """A Hugging Face model in both precisions, in the settings of `conf/preset/pt2.yaml` or in
    those of today.
    """
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
        records.append(
            replace(record, trial=trial, diagnostics=Diagnostics(settings=ran | settings))
        )
    return records


def test_published_figures_name_every_setting_that_was_another(tmp_path: Path) -> None:
    text = write_page(tmp_path, weighted_pair(preset=False))
    said = (
        "The figures of 2022 were measured with other settings (TF32 on, here as torch sets it; "
        "AMP float16 autocast "
        "without gradient scaler, here bfloat16 autocast without gradient scaler; optimizer none, "
        "here adam; dropout "
        "off, here on; texts of full length without a mask, here padded), on another machine (GPU "
        "NVIDIA A100, here "
        "NVIDIA H200; torch before 2.0, here 2.13.0)."
    )
    families = re.findall(r'data-figure="families".*?<p class="caption">(.*?)</p>', text, re.DOTALL)
    summed = re.findall(r'data-table="summary".*?<p class="caption">(.*?)</p>', text, re.DOTALL)
    assert [said in caption for caption in (*families, *summed)] == [True, True]


def test_beside_the_preset_published_figures_differ_by_machine_alone(tmp_path: Path) -> None:
    text = write_page(tmp_path, weighted_pair(preset=True))
    assert r"all\u003cbr\u003e1.52\u003cbr\u003e(A100, 2022)" in text
    assert (
        "The figures of 2022 were measured with the settings of this sweep, on another machine "
        "(GPU NVIDIA A100, here "
        "NVIDIA H200; torch before 2.0, here 2.13.0)." in text
    )
    changed = [
        replace(item, trial=replace(item.trial, optimizer="adam"))
        for item in weighted_pair(preset=True)
    ]
    text = write_page(tmp_path / "adam", changed)
    assert "with other settings (optimizer none, here adam)" in text


def test_the_head_has_the_device_mean(tmp_path: Path) -> None:
    known = replace(make_process(), device_step_s=PerArm(0.02, 0.01))
    pair = [replace(make_record("resnet50", name), processes=(known,)) for name in ("amp", "fp32")]
    header = write_page(tmp_path, pair).partition("</header>")[0]
    assert "by device time 2.00 over 1 model" in header


def test_without_published_figures_nothing_is_said_of_their_settings(tmp_path: Path) -> None:
    text = write_page(tmp_path, PAIR)
    assert "The figures of 2022" not in text
    assert text.count("The source of the figures of 2023 names no settings.") == 2
    inference = [
        replace(item, trial=replace(item.trial, workload="inference"))
        for item in weighted_pair(preset=True)
    ]
    assert "The source of" not in write_page(tmp_path / "inference", inference)


def test_settings_of_the_published_figures_are_those_of_the_preset() -> None:
    preset = yaml.safe_load((ROOT / "conf/preset/pt2.yaml").read_text().partition("\n")[2])
    assert preset["precision"] == {"tf32": True, "auto": "float16", "grad_scaler": False}
    assert (preset["model"], preset["defaults"]) == (
        {"dropout": False},
        [{"override /optimizer": "none"}, {"override /text": "none"}],
    )
    names = {
        "TF32": "on",
        "AMP": "float16 autocast without gradient scaler",
        "optimizer": "none",
        "dropout": "off",
    }
    assert {name: published.SETTINGS[name][0] for name in names} == names


def test_rows_open_to_why_the_device_could_not_tell(tmp_path: Path) -> None:
    process = replace(make_process(), device_time_missing="no kernels were seen")
    text = write_page(
        tmp_path, [replace(make_record(), processes=(process,)), make_record("vgg16")]
    )
    table = data_of(text)["tables"]["speedups"]
    row = next(row for row in table["rows"] if row["cells"][0] == "resnet50")
    assert (
        row["cells"][[column["title"] for column in table["columns"]].index("device")]
        == "not known"
    )
    assert ["device_time_missing", "no kernels were seen"] in row["details"]
    assert "Device time not known: resnet50 amp default: no kernels were seen." in text


def test_rows_open_to_why_they_are_slow(tmp_path: Path) -> None:
    slow = replace(make_process(0.9), device_step_s=PerArm(0.02, 0.025))
    attention = {"attention_ran_eager": "cudnn", "attention_ran_compiled": ""}
    found = Diagnostics(
        graphs=1, graph_breaks=(GraphBreak("print", count=2),), recompiles=1, settings=attention
    )
    record = replace(
        make_record(flags=("attention_differs",)), processes=(slow,), diagnostics=found
    )
    text = write_page(tmp_path, [record, make_record("vgg16", speedups=[1.0])])
    details = {
        row["cells"][0]: dict(row["details"]) for row in data_of(text)["tables"]["speedups"]["rows"]
    }
    assert details["resnet50"]["why not faster"].splitlines() == [
        "the compiled kernels take longer than eager's (device speedup 0.80); inspect=true shows "
        "which are generated and "
        "which are library calls",
        "recompile, 1 time: TORCH_LOGS=recompiles or inspect=true says why",
        "2 graph breaks, see below",
    ]
    assert (
        details["resnet50"]["attention kernels"]
        == "eager cudnn, compiled none of cuDNN, flash, memory-efficient"
    )
    # nobody knows of its kernels
    assert details["vgg16"]["why not faster"] == "2 graph breaks, see below"
    assert "attention kernels" not in details["vgg16"]


def test_rows_open_to_their_fastest_and_slowest_block_without_void_rounds(tmp_path: Path) -> None:
    rounds = (
        Round("AB", 0.20, 0.110),
        Round("BA", 0.22, 0.100),
        Round("AB", 9.0, 0.001, "recompiled"),
    )
    record = replace(make_record(), processes=(replace(make_process(), rounds=rounds),))
    (row,) = data_of(write_page(tmp_path, [record]))["tables"]["speedups"]["rows"]
    assert dict(row["details"])["blocks"].splitlines() == [
        "eager 20.0 to 22.0 ms per step",
        "compiled 10.0 to 11.0 ms per step",
    ]


def test_rows_of_scripts_open_to_the_shapes_that_their_loop_saw(tmp_path: Path) -> None:
    records = [make_script("train.py", {8: 1, 16: 3, 32: 4}), make_script("one.py", {8: 3})]
    rows = data_of(write_page(tmp_path, records))["tables"]["scripts"]["rows"]
    details = {row["cells"][0]: dict(row["details"]) for row in rows}
    assert details["train.py"]["shapes of inputs"] == ("3, the most frequent size in 50 % of calls")
    assert "shapes of inputs" not in details["one.py"]


def test_rows_open_to_why_nobody_knows_whether_the_result_is_right(tmp_path: Path) -> None:
    accuracy = Accuracy(
        "float64", None, "eager is too far from it", worst="output", compiled_error=0.8, bound=2.5
    )
    record = replace(make_record(), processes=(replace(make_process(), accuracy=accuracy),))
    (row,) = data_of(write_page(tmp_path, [record]))["tables"]["speedups"]["rows"]
    assert dict(row["details"])["accuracy"] == (
        "no verdict: eager is too far from it; output: error 0.8, allowed 2.5, against float64"
    )


def test_rows_of_failures_open_to_what_their_status_means(tmp_path: Path) -> None:
    text = write_page(
        tmp_path, [make_record(status="oom", message="first\nsecond"), make_record("vgg16")]
    )
    tables = data_of(text)["tables"]
    (row,) = tables["failures"]["rows"]
    assert 'class="caption">1 trial is not ok; pass rates count it.</p>' in text
    assert dict(row["details"])["status"].startswith(
        "oom: Out of device or host memory. Give a smaller batch (batch_"
    )
    # the table has the first line, the opened row all of the message
    assert "first" in row["cells"]
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
    folded = (
        text.partition('<section id="legend">')[2]
        .partition("</section>")[0]
        .partition("<details>")[2]
    )
    assert "Housekeeping flags (1)" in folded
    assert 'data-term="single_process"' in folded
    assert ["flags", "single_process, throttled"] in table["rows"][1]["details"]


def test_rows_open_to_the_whole_message_and_link_to_their_files(tmp_path: Path) -> None:
    text = write_page(
        tmp_path,
        [make_record(status="compile_error", message="first\nsecond"), make_record("vgg16")],
    )
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
    moved = [replace(entry, folder=tmp_path / "gone") for entry in loaded(tmp_path, PAIR)]
    nothing = Provenance((), "", "", ""), (), (), Verdict((), (), "", None)
    report = Report(Findings(moved), *nothing)
    data = data_of(page.begin_page(report, tmp_path)())
    assert [row["links"] for row in data["tables"]["speedups"]["rows"]] == [[], []]


def test_recommendations_and_causes_stand_in_the_page(tmp_path: Path) -> None:
    slow = make_record(HOSTILE, speedups=(1.10, 1.11, 1.09), mode="default")
    fast = make_record(HOSTILE, speedups=(1.50, 1.51, 1.49), mode="reduce-overhead")
    text = write_page(tmp_path, [slow, fast])
    shown = data_of(text)["tables"]["recommendations"]
    assert [column["title"] for column in shown["columns"]][:4] == [
        "model",
        "precision",
        "answer",
        "speedup",
    ]
    assert shown["rows"][0]["cells"][0] == HOSTILE
    assert shown["rows"][0]["numbers"][3] == pytest.approx(1.5, rel=0.01)
    assert text.index('id="recommendations"') < text.index('id="figures"')


def test_causes_are_grouped_by_cause_and_fix_and_open_to_their_trials(tmp_path: Path) -> None:
    def waiting(name: str, batch_size: int = 32, **more: Any) -> Record:
        process = replace(make_process(), device_step_s=PerArm(0.018, 0.005))
        record = make_record(name, batch_size=batch_size, **more)
        return replace(record, processes=(process,), diagnostics=None)

    other = (GraphBreak("a branch", "model.py:3", 1), GraphBreak("print", "model.py:9", 1))
    broken = replace(make_record("e"), diagnostics=Diagnostics(graph_breaks=other))
    records = [
        waiting("a"),
        waiting("b", 64),
        waiting("c", mode="reduce-overhead"),
        make_record("d"),
        broken,
    ]
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
    assert [row["reason"] for row in rows] == [
        causes.WAITS,
        causes.WAITS,
        "print (2); a branch (1)",
    ]
    assert rows[0]["lost at most"] == "5.00 ms per step (50 %)"
    (first, _), (second, said) = table["rows"][0]["details"]
    assert (first, second) == ("a amp default 32", "b amp default 64")
    assert said.startswith("5.00 ms per step (50 %): the device waits for the host")
    assert [row["numbers"][4] for row in table["rows"]] == [2, 1, 2]
    csv = (tmp_path / "runs/night/report/causes.csv").read_text().splitlines()
    assert len(csv) == 7  # the file keeps every trial


def test_failures_stand_near_the_top_with_the_end_of_their_logs(tmp_path: Path) -> None:
    failed = replace(
        make_record(status="compile_error", message="first\nsecond"), log="worker-0.log"
    )
    sweep = write_sweep(tmp_path / "runs", [failed, make_record("vgg16")])
    (folder,) = sweep.glob("resnet50*")
    noise = "".join(f"line {number}\n" for number in range(2000))
    (folder / "worker-0.log").write_bytes(
        f"{noise}\x1b[31m  <b>no\x07 kernel</b>\x1b[0m\n\n".encode() + b"last \xff\n"
    )
    write_report([sweep], sweep / "report")
    text = (sweep / "report" / "report.html").read_text()
    assert (
        text.index('id="failures"')
        < text.index('id="recommendations"')
        < text.index('id="figures"')
    )
    assert '<a href="#failures">Failures (1)</a>' in text
    tables = data_of(text)["tables"]
    (row,) = tables["failures"]["rows"]
    end = dict(row["details"])["end of the log"].splitlines()
    assert end[-3:] == ["line 1999", "  <b>no\ufffd kernel</b>", "last \ufffd"]
    assert len(end) == listings.MAX_LOG_LINES
    assert dict(row["details"])["message"] == "first\nsecond"
    assert "<b>no" not in without_plotly(text)
    # once is enough
    assert all("end of the log" not in dict(row["details"]) for row in tables["speedups"]["rows"])


@pytest.mark.parametrize("log", ["../../secret", "{folder}/secret"])
def test_a_record_shows_no_file_from_outside_of_its_folder(tmp_path: Path, log: str) -> None:
    """Sweeps are shared, and a page may be sent on."""
    (tmp_path / "secret").write_text("the secret\n")
    failed = replace(
        make_record(status="compile_error", message="first"), log=log.format(folder=tmp_path)
    )
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
        write_page(
            tmp_path, [*PAIR, make_record("bad", status="oom"), make_record("x", mode="eager")]
        )
    )
    named = re.findall(r'<a href="#([a-z]+)">', text.partition("<nav")[2].partition("</nav>")[0])
    assert {
        "failures",
        "recommendations",
        "figures",
        "causes",
        "legend",
        "speedups",
        "settings",
    } <= set(named)
    assert [text.index(f'id="{name}"') for name in named] == sorted(
        text.index(f'id="{name}"') for name in named
    )


def test_legend_has_flags_by_rank_with_their_trials_and_statuses(tmp_path: Path) -> None:
    assert make_legend(Findings([])) == []
    flags = {
        "a": ("shared_gpu", "single_process"),
        "b": ("shared_gpu", "host_bound", "of_tomorrow"),
    }
    records = [make_record(name, flags=flags[name]) for name in flags] + [
        make_record("c", status="oom")
    ]
    parts = make_legend(Findings(loaded(tmp_path, records)))
    assert {part.kind: [term.name for term in part.terms] for part in parts} == {
        "status": ["oom"],
        "doubt": ["shared_gpu"],
        "context": ["host_bound", "of_tomorrow"],
        "housekeeping": ["single_process"],
        "cause": ["graph_break"],
    }
    assert [part.kind for part in parts if part.folded] == ["housekeeping"]
    (shared,) = parts[0].terms
    assert shared.says == sentence(FLAGS["shared_gpu"].says)
    assert shared.todo == FLAGS["shared_gpu"].todo
    assert shared.trials == "2 trials: a amp default, b amp default"


def test_housekeeping_flags_show_in_opened_rows_alone(tmp_path: Path) -> None:
    flags = {"a": ("compile_contended", "throttled"), "b": ()}
    text = write_page(tmp_path, [make_record(name, flags=flags[name]) for name in flags])
    table = data_of(text)["tables"]["speedups"]
    at = [column["title"] for column in table["columns"]].index("flags")
    assert [row["cells"][at] for row in table["rows"]] == ["throttled", ""]
    assert ["flags", "compile_contended, throttled"] in table["rows"][0]["details"]


def test_a_colour_is_a_mode_in_every_figure(tmp_path: Path) -> None:
    known = {
        "host_step_s": PerArm(0.01, 0.005),
        "device_step_s": PerArm(0.02, 0.01),
        "memory_bytes": PerArm(3e9, 2e9),
    }

    def with_all(record: Record) -> Record:
        processes = (replace(item, **known) for item in record.processes)
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
                    re.findall(
                        r'"color": "(@[^"]+)"',
                        json.dumps([item["traces"] for item in figure["choices"]]),
                    )
                )
                assert used <= allowed, figure["id"]
                assert f"@{numbers[mode]}{pale}" in used, figure["id"]
        shades = re.findall(r'class="shade" style="--shade:var\(--c(\d)\)">([a-z-]+)<', text)
        assert {name: int(number) for number, name in shades} == {
            name: numbers[name] for name in ("eager", mode)
        }


def test_two_sweeps_are_named_in_each_row_and_filter_and_whose_trial_counts_at_the_top(
    tmp_path: Path,
) -> None:
    names = {"night": (2.0, 2.1), "day": (1.5, 1.6)}
    sweeps = []
    for name, values in names.items():
        records = [
            make_record(speedups=values),
            make_record("vgg16", status="oom"),
            make_record("eager", mode="eager"),
        ]
        sweep = write_sweep(tmp_path / name, records)
        sweeps.append(sweep.rename(tmp_path / name / name))
    only_here = make_record("alone", speedups=(1.7, 1.8))
    write_sweep(tmp_path / "more", [only_here])
    (folder,) = (tmp_path / "more" / "night").glob("alone*")
    folder.rename(sweeps[0] / folder.name)
    write_report(sweeps, tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text()
    head = text.partition("<main>")[0]
    said = (
        "Where several of night, day tried one model, precision, batch and mode, means and "
        "recommendations take"
    )
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
    place = tables["recommendations"]["filters"].index("sweep")
    chosen = {row["cells"][0]: row["filters"][place] for row in tables["recommendations"]["rows"]}
    assert chosen == {"resnet50": "day", "alone": "night", "vgg16": "day"}
    opened = [name for row in tables["causes"]["rows"] for name, _ in row["details"]]
    assert {name.split()[-1] for name in opened} == {"night", "day"}
    assert "same trial twice" in (tmp_path / "out" / "report.md").read_text()


def test_a_table_sorts_by_figures_in_full(tmp_path: Path) -> None:
    table = data_of(
        write_page(tmp_path, [make_record(speedups=(1.2345678,)), make_record("bad", status="oom")])
    )["tables"]["speedups"]
    column = [item["title"] for item in table["columns"]].index("speedup")
    assert [row["numbers"][column] for row in table["rows"]] == [None, pytest.approx(1.2345678)]
    filters = [dict(zip(table["filters"], row["filters"], strict=True)) for row in table["rows"]]
    common = {"mode": "default", "precision": "amp", "family": "cnn"}
    assert filters == [{"status": "oom", **common}, {"status": "ok", **common}]
