from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from records import make_process, make_record, make_trial, write_sweep
from reports import write_report
from rich.console import Console

from sweeper.core.record import Inspection, Latencies, Latency, PerArm, Process, Record
from sweeper.report.build import print_report
from sweeper.report.columns import formats
from sweeper.report.tables.spec import TableSpec
from sweeper.report.tables.speedups import SpeedupsTable

MEMORY = PerArm(eager=3.0 * 2**30, compiled=2.0 * 2**30)


def shown(tmp_path: Path, *records: Record, width: int = 100) -> str:
    tmp_path.joinpath("night").mkdir(parents=True, exist_ok=True)
    report = write_report([write_sweep(tmp_path, records)], tmp_path / "out")
    console = Console(file=io.StringIO(), width=width)
    print_report(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def document(tmp_path: Path, *records: Record) -> str:
    tmp_path.joinpath("night").mkdir(parents=True, exist_ok=True)
    write_report([write_sweep(tmp_path, records)], tmp_path / "out")
    return (tmp_path / "out/report.md").read_text()


def usual() -> list[Record]:
    noisy = [1.55, 1.58, 1.61]
    models = (("resnet50", "cnn", 1.0), ("mobilenet_v2", "cnn", 1.1), ("bert_base", "nlp", 0.9))
    records = [
        make_record(model, precision, [value * scale for value in noisy], family=family, mode=mode)
        for model, family, scale in models
        for precision in ("amp", "fp32")
        for mode in ("default", "reduce-overhead")
    ]
    return [
        replace(r, processes=tuple(replace(p, memory_bytes=MEMORY) for p in r.processes))
        for r in records
    ]


def test_tables_fit_into_100_columns(tmp_path: Path) -> None:
    text = shown(tmp_path, *usual())
    assert max(len(line) for line in text.splitlines() if "  " in line) <= 100
    tables = text.split("train, inductor")[1].split("causes of")[0]
    measured, costs = (
        " ".join(line.split()) for line in tables.splitlines() if line.startswith("resnet50")
    )
    assert measured == "resnet50 amp default 1.58 [1.51, 1.66] 20.0 12.7"
    assert costs == "resnet50 amp default 3.00 409 [379, 446] -33 %"


def test_every_table_is_followed_by_the_whole_verdict(tmp_path: Path) -> None:
    failed = replace(make_record("m"), status="crashed", message="lost", log="worker-0.log")
    text = shown(tmp_path, *usual(), make_record("vit_b16", "amp", [1.0, 1.2]), failed)
    verdict = text.rsplit("\n\n", 1)[1].splitlines()
    assert verdict[0].startswith("In AMP: compile 3 of 4 (3 sure)")
    assert "1 of 14 trials failed: 1 crashed; first m amp default: lost" in verdict
    assert verdict[-1].startswith("worth another run: vit_b16")


def test_inspections_are_named_in_one_line(tmp_path: Path) -> None:
    inspected = replace(make_record("resnet18"), inspection=Inspection("inspect"))
    failed = replace(
        make_record("alexnet"), inspection=Inspection(missing="crashed while compiling")
    )
    where = f"night/{inspected.label}-{inspected.trial_id}/inspect/summary.md"
    for text in (shown(tmp_path, inspected, failed), document(tmp_path, inspected, failed)):
        (line,) = [line for line in text.splitlines() if "what the compiler did" in line]
        assert line.endswith(where)


def test_a_wide_terminal_shows_one_table(tmp_path: Path) -> None:
    text = shown(tmp_path, *usual(), width=120)
    assert re.search(
        r"resnet50 +amp +default +1.58 \[1.51, 1.66\] +20.0 +12.7 +3.00 +409 \[379, 446\] +-33 %",
        text,
    )
    assert "costs" not in text


def test_what_failed_has_no_row_among_the_costs(tmp_path: Path) -> None:
    failed = make_record("vgg16", status="oom")
    assert (
        "vgg16"
        not in shown(tmp_path, *usual(), failed)
        .split("costs")[1]
        .split("vgg16 amp default: oom")[0]
    )


def test_what_does_not_fit_is_not_cut(tmp_path: Path) -> None:
    record = make_record(
        "a_model_with_quite_a_long_name", mode="max-autotune-no-cudagraphs", speedups=[1.55, 1.58]
    )
    text = shown(tmp_path, record, make_record(batch_size=4096), width=60)
    assert re.search(r"32 +amp +max-autotune-no-cudagraphs 1.56 \[1.39, 1.77\] +20.0", text)
    assert "4096" in text


def test_a_model_is_named_once(tmp_path: Path) -> None:
    text = shown(tmp_path, *usual(), width=120)
    assert text.split("train, inductor")[1].split("causes of")[0].count("resnet50") == 1


def test_the_weighted_mean_has_a_line_of_its_own(tmp_path: Path) -> None:
    # Geomeans over three models, scales 1, 1.1 and 0.9: 1.5798 * 0.99^(1/3) = 1.5745 in both
    # precisions.
    text = shown(tmp_path, *usual())
    assert (
        "train, default, inductor: weighted 0.75 AMP + 0.25 fp32: 1.57 over 3 models, all "
        "undisturbed; these models [" in text
    )
    assert "a new model" not in text, "of three models a prediction says nothing"
    more = [
        make_record(model, precision, [1.5, 1.6, 1.55])
        for model in "abcdef"
        for precision in ("amp", "fp32")
    ]
    text = shown(tmp_path / "more", *more)
    assert re.search(
        r"these models \[\d\.\d\d, \d\.\d\d\]; a new model \[\d\.\d\d, \d\.\d\d\]", text
    )


def unsure() -> list[Record]:
    """Seven models: the last is not verified, two more have a doubt. Context is none.

    (1.5^4 * x^2)^(1/6) = 2 for x = 8 / 1.5^2 = 3.5556. A new model: s of the logs is 0.4457, times
    (7/6)^(1/2) and t(5) = 2.5706 is 1.2375; 2 * exp(+-1.2375) = 0.58 and 6.89.
    """
    speedups = {"e": 32 / 9, "f": 32 / 9, "g": 9.0}
    flags = {
        "d": ("host_bound", "unsteady"),
        "e": ("shared_gpu",),
        "f": ("unequal_settings",),
        "g": ("accuracy_unverified",),
    }
    return [
        make_record(
            name,
            precision,
            [speedups.get(name, 1.5)],
            flags=flags.get(name, ("compile_contended",)),
        )
        for name in "abcdefg"
        for precision in ("amp", "fp32")
    ]


def test_every_mean_says_how_many_of_its_models_are_sure(tmp_path: Path) -> None:
    line = "weighted 0.75 AMP + 0.25 fp32: 2.00 over 6 models, 4 undisturbed; a new model"
    text, markdown = shown(tmp_path, *unsure()), document(tmp_path / "document", *unsure())
    assert f"train, default, inductor: {line} [0.58, 6.89]\n" in text
    assert f"**{line} \\[0.58, 6.89\\]**" in markdown
    assert "undisturbed models: AMP 4 of 6, fp32 4 of 6 (train, default, inductor)\n" in text
    assert re.search(r"cnn +6 of 7 +2.00 \(6\) +2.00 \(6\) +2.00 \(6\)", text)
    assert "| cnn | 6 of 7 |" + 3 * " 2.00 (6, 4 undisturbed) |" in markdown


def test_groups_without_a_judged_model_are_in_the_file_and_a_line(tmp_path: Path) -> None:
    missing = [
        make_record("vgg16", mode=mode, status="unavailable")
        for mode in ("reduce-overhead", "max-autotune")
    ]
    report = write_report([write_sweep(tmp_path, [make_record(), *missing])], tmp_path / "out")
    text = (tmp_path / "out/report.md").read_text()
    assert [len(group.judged) for group in report.findings.groups] == [1, 1, 0, 0, 0, 0]
    assert "0 of 0" not in text
    line = (
        "No model was judged, see the failures: train, reduce-overhead, inductor; train, "
        "max-autotune, inductor"
    )
    assert line in text


def test_modes_without_a_weighted_mean_share_a_line(tmp_path: Path) -> None:
    modes = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
    write_report(
        [write_sweep(tmp_path, [make_record(mode=mode) for mode in modes])], tmp_path / "out"
    )
    text = (tmp_path / "out/report.md").read_text()
    assert text.count("no model is ok in a precision of weight fp32") == 1
    assert (
        "(train, default, inductor; train, reduce-overhead, inductor; train, max-autotune, "
        "inductor and 1 more)" in text
    )


def test_the_row_of_all_models_is_left_out_beside_one_family(tmp_path: Path) -> None:
    one = [make_record(model) for model in ("resnet50", "vgg16")]
    write_report([write_sweep(tmp_path, one, "one")], tmp_path / "one")
    write_report(
        [write_sweep(tmp_path, [*one, make_record("bert", family="nlp")], "two")], tmp_path / "two"
    )
    assert "| all |" not in (tmp_path / "one/report.md").read_text()
    assert "| all |" in (tmp_path / "two/report.md").read_text()


def test_what_is_not_verified_is_named_beside_means_and_in_its_answer(tmp_path: Path) -> None:
    for text in (shown(tmp_path, *unsure()), document(tmp_path / "document", *unsure())):
        assert (
            "1 model with a trial that is ok but not verified (accuracy_unverified): such a trial "
            "is in no mean" in text
        )
    (said,) = re.findall(
        r"^\| g \|.* amp \| default, unsure \| 9\.00 \(8\.82 to 9\.18\) \|.*", text, re.MULTILINE
    )
    assert "not sure: one process, unverified" in said


def test_without_fp32_the_weighted_mean_says_why_there_is_none(tmp_path: Path) -> None:
    for text in (shown(tmp_path, make_record()), document(tmp_path, make_record())):
        assert "AMP alone: 2.00 over 1 model, all undisturbed; no weighted mean: no model" in text


def test_with_nothing_ok_that_is_said(tmp_path: Path) -> None:
    records = [
        make_record(status="oom", message="out of memory"),
        make_record(precision="fp32", status="crashed"),
    ]
    text = shown(tmp_path, *records)
    assert "no trial is ok" in text
    assert "oom" in text
    assert "No trial is ok." in document(tmp_path, *records)


def test_without_a_record_that_is_said(tmp_path: Path) -> None:
    assert "there are no records" in shown(tmp_path)
    assert "There are no records." in document(tmp_path)


def test_a_status_stands_in_place_of_the_speedup_and_is_explained(tmp_path: Path) -> None:
    text = shown(
        tmp_path,
        make_record(),
        make_record("b", status="timeout", message="still compiling\n(stack)"),
    )
    assert re.search(r"^b +amp +default +timeout *$", text, re.MULTILINE)
    assert "b amp default: timeout while compiling: still compiling | (stack)\n" in text
    assert not re.search(r"\bok\b", text.split("family")[0])


def test_flags_are_lines_below_the_table(tmp_path: Path) -> None:
    some = {0: ("throttled", "unsteady"), **dict.fromkeys(range(1, 5), ("throttled",))}
    records = [make_record(f"m{i}", flags=("verified_by_hand", *some.get(i, ()))) for i in range(6)]
    text = shown(tmp_path, *records)
    assert (
        "\nthrottled: m0 amp default, m1 amp default, m2 amp default and 2 more\nunsteady: m0 amp "
        "default\n" in text
    )
    assert (
        "\nall trials: train, inductor, batch 32; flags of every trial: verified_by_hand\n" in text
    )
    assert text.count("verified_by_hand") == 1


def test_a_flag_of_every_trial_is_said_above_the_table_and_not_in_its_rows(tmp_path: Path) -> None:
    flags = ("compile_contended", "single_process")
    records = [make_record("a", flags=flags), make_record("b", flags=(*flags, "throttled"))]
    text = document(tmp_path / "ok", *records).split("## Speedups")[1].split("## ")[0]
    assert (
        "All trials: train, inductor, batch 32; flags of every trial: compile_contended, "
        "single_process." in text
    )
    assert text.count("compile_contended") == 1
    assert "| throttled |" in text
    csv = (tmp_path / "ok/out/speedups.csv").read_text()
    assert ",ok,compile_contended;single_process," in csv
    assert ",ok,compile_contended;single_process;throttled," in csv
    failed = [
        make_record("c", status="oom"),
        make_record("d", status="timeout", flags=("single_process",)),
    ]
    text = document(tmp_path / "failed", *records, *failed).split("## Speedups")[1].split("## ")[0]
    assert "flags of every trial that is ok: compile_contended, single_process." in text
    (row,) = rows_of(text, "d")
    assert row.endswith("| single_process |"), "above the table nothing is said of it"


def test_flags_of_a_single_trial_stand_in_its_row(tmp_path: Path) -> None:
    assert "| throttled |" in document(tmp_path, make_record(flags=("throttled",)))


def test_what_the_device_could_not_tell_is_said_in_the_row_and_why_below(tmp_path: Path) -> None:
    def with_reasons(name: str, **fields: object) -> Record:
        record = make_record(name, flags=("host_bound",))
        return replace(
            record, processes=tuple(replace(process, **fields) for process in record.processes)
        )

    known = with_reasons("a", device_step_s=PerArm(0.018, 0.006), memory_bytes=PerArm(3e9, 2e9))
    unknown = [
        with_reasons(
            name,
            device_time_missing="no kernels were seen",
            memory_missing="others use the GPU",
            memory_bytes=PerArm(1e9),
        )
        for name in ("b", "c")
    ]
    text = document(tmp_path, known, *unknown).split("## Speedups")[1].split("## ")[0]
    known_row, *rows = (row for name in "abc" for row in rows_of(text, name))
    assert "not known" not in known_row
    assert [row.count(" not known ") for row in rows] == [3, 3], "device, host-bound, memory ratio"
    assert "Device time not known: b amp default, c amp default: no kernels were seen." in text
    assert "Memory not known: b amp default, c amp default: others use the GPU." in text
    assert "device time not known: b amp default, c amp default: no kernels were seen\n" in shown(
        tmp_path / "terminal", known, *unknown
    )


def test_training_in_several_processes_is_compared_with_one_where_both_were_measured(
    tmp_path: Path,
) -> None:
    def train(model: str, parallel: str, process: Process) -> Record:
        devices = None if parallel == "none" else 2
        trial = make_trial(model, parallel=parallel, parallel_devices=devices)
        return replace(make_record(trial=trial), processes=(process,))

    one, ddp = make_process(2.0, eager_s=0.020), make_process(2.5, eager_s=0.025)
    both = [train("a", "none", one), train("a", "ddp", ddp)]
    text = document(tmp_path, *both, train("b", "ddp", ddp), train("c", "none", one))
    assert re.findall(r".*samples per second of one process.*", text) == [
        "A amp default parallel=ddp; parallel.devices=2: 1.60x the samples per second of one "
        "process in eager, 2.00x compiled."
    ]


def test_of_a_cpu_nothing_is_missing_on_the_device(tmp_path: Path) -> None:
    trial = make_trial(device="cpu")
    record = make_record(trial=trial)
    reasons = {"device_time_missing": "no kernels", "memory_missing": "a CPU has none of its own"}
    processes = tuple(replace(process, **reasons) for process in record.processes)
    assert "not known" not in document(tmp_path, replace(record, processes=processes))


def test_axes_are_columns_where_they_differ_and_named_above_where_not(tmp_path: Path) -> None:
    same = shown(tmp_path / "a", make_record(), make_record("b"))
    assert "train, inductor, batch 32" in same
    differ = shown(tmp_path / "b", make_record(), make_record(batch_size=64), width=120)
    assert "\nall trials: train, inductor\n" in differ
    assert re.search(r"model +batch +precision", differ)


def test_names_are_not_markup(tmp_path: Path) -> None:
    text = shown(
        tmp_path,
        make_record("[bold]x[/bold]"),
        make_record("[/]y"),
        make_record("\x1b[31mred"),
        width=160,
    )
    assert "[bold]x[/bold]" in text
    assert "[/]y" in text
    assert "\x1b" not in text


def test_a_long_table_is_cut_on_the_terminal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SpeedupsTable, "max_terminal_rows", 2)
    text = shown(tmp_path, *(make_record(f"m{i}") for i in range(5)))
    assert "and 3 more" in text
    assert "| m4 |" in (tmp_path / "out/report.md").read_text()


def test_a_very_long_table_is_cut_in_the_document_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TableSpec, "max_markdown_rows", 2)
    failed = [make_record(f"f{i}", status="oom") for i in range(3)]
    shown(tmp_path, *(make_record(f"m{i}") for i in range(5)), *failed)
    text = (tmp_path / "out/report.md").read_text()
    assert "And 6 more in speedups.csv." in text
    assert "And 6 more in recommendations.csv." in text
    assert "And 1 more in failures.csv." in text
    assert text.count("\n| m4 |") == 1  # among causes, which have a limit of their own


def test_document_has_everything(tmp_path: Path) -> None:
    failed = make_record(
        "vit", family="vit", status="compile_error", message="BackendCompilerFailed:\nboom"
    )
    folder = write_sweep(tmp_path, [*usual(), failed, make_record("cut")])
    invocations = [
        {"started": "2026-03-01T10:00:00+00:00"},
        {"started": "2026-03-02T10:00:00+00:00"},
    ]
    (folder / "sweep.json").write_text(json.dumps({"invocations": invocations}))
    next(folder.glob("cut-*/record.json")).write_text("{")
    report = write_report([folder], tmp_path / "out")
    text = (tmp_path / "out/report.md").read_text()
    assert (
        "- sweeps: night\n- started: 2026-03-01T10:00:00+00:00, last 2026-03-02T10:00:00+00:00\n"
        in text
    )
    assert "- device: NVIDIA H200\n- versions: torch 2.13.0\n" in text
    assert (
        "**weighted 0.75 AMP + 0.25 fp32: 1.57 over 3 models, all undisturbed; these models \\["
        in text
    )
    assert (
        "| resnet50 | amp | default | 1.58 \\[1.51, 1.66\\] | 20.0 | 12.7 | 3.00 | 409 \\[379, "
        "446\\] | -33 % |" in text
    )
    assert (
        "| vit | amp | default | compile_error | compiling | BackendCompilerFailed: \\| boom |"
        in text
    )
    assert "share one compiled artifact" in text
    assert "## Records that could not be read" in text
    assert report.problems[0].split(":")[0] in text


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>",
        "a|b",
        "[x](javascript:alert(1))",
        "`code`",
        "two\nlines",
        "**bold**",
        "a\\|b",
    ],
)
def test_a_name_cannot_break_the_document(tmp_path: Path, name: str) -> None:
    text = document(
        tmp_path, make_record(name), make_record(name, "fp32", status="crashed", message=name)
    )
    assert "<" not in text
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert (
            len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in table.splitlines()}) == 1
        ), table
    assert not re.search(r"(?<!\\)\[x", text)
    assert not re.search(r"(?<!\\)`", text)


@pytest.mark.parametrize(
    "environment", [{}, {"versions": None}, {"device": "cuda"}, {"versions": [], "device": {}}]
)
def test_an_environment_may_say_little(tmp_path: Path, environment: dict[str, None]) -> None:
    assert "- sweeps: night\n- measured: 2 rounds\n\n" in document(
        tmp_path, replace(make_record(), environment=environment)
    )


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"invocations": []}', '{"invocations": [{}]}', "\ud800"]
)
def test_a_sweep_may_have_no_date(tmp_path: Path, text: str) -> None:
    folder = write_sweep(tmp_path, [make_record()])
    (folder / "sweep.json").write_text(text, errors="surrogatepass")
    write_report([folder], tmp_path)
    assert "- run:" not in (tmp_path / "report.md").read_text()


def test_different_versions_are_all_named(tmp_path: Path) -> None:
    older = replace(make_record("b"), environment={"versions": {"torch": "2.12.0"}})
    assert "- versions: torch 2.12.0 and 2.13.0\n" in document(tmp_path, make_record(), older)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.0, "0"),
        (0.0123, "0.0123"),
        (1.5, "1.50"),
        (12.34, "12.3"),
        (123.4, "123"),
        (1234567.8, "1,234,568"),
    ],
)
def test_figures_have_three_digits_and_no_exponent(value: float | None, text: str) -> None:
    assert formats.figure(value) == text


def host_bound(
    name: str = "resnet50", speedups: Sequence[float] = (1.89, 2.12, 2.01), **axes: object
) -> Record:
    """Its compiled arm waits for the host; the device alone is 2.83 times as fast."""
    record = make_record(name, speedups=speedups, flags=("host_bound",), **axes)  # type: ignore[arg-type]
    step = PerArm(0.0198, 0.007)
    processes = (replace(p, device_step_s=step) for p in record.processes)
    return replace(record, processes=tuple(processes))


def test_a_host_bound_trial_of_few_processes_shows_its_range(tmp_path: Path) -> None:
    text = document(tmp_path, host_bound(), make_record("vgg16", speedups=[2.0, 2.0]))
    assert (
        "| resnet50 | amp | default | 2.00 (1.89 to 2.12) | 2.83 \\[2.83, 2.83\\] | 30 % | 20.0 |"
        in text
    )
    assert "| vgg16 | amp | default | 2.00 \\[2.00, 2.00\\] |  |  | 20.0 |" in text
    assert "(low to high) is the range of the processes of a host-bound trial" in text
    assert text.count("2.00 (1.89 to 2.12)") == 2, "in both tables of speedups"
    assert "| speedup | device | host-bound |" in text
    assert "device is eager / compiled device step time" in text
    assert "single process" not in text


def test_a_host_bound_trial_of_five_processes_shows_its_interval(tmp_path: Path) -> None:
    text = document(tmp_path, host_bound(speedups=[2.0] * 5))
    assert "| 2.00 \\[2.00, 2.00\\] |" in text
    assert "(low to high)" not in text


def test_columns_that_say_nothing_are_left_out(tmp_path: Path) -> None:
    text = document(tmp_path, make_record())
    assert "host-bound" not in text
    assert "| device |" not in text


def test_the_flag_host_bound_names_the_arm(tmp_path: Path) -> None:
    assert "\nhost_bound: resnet50 amp default (compiled)\n" in shown(
        tmp_path, host_bound(), make_record("vgg16")
    )
    both = shown(tmp_path / "both", host_bound(), host_bound("vgg16"))
    assert "; flags of every trial: host_bound (compiled)\n" in both
    assert "\nhost_bound: " not in both


def test_every_trial_is_named_where_they_are_host_bound_in_different_arms(tmp_path: Path) -> None:
    slow_eager = host_bound("vgg16")
    processes = (replace(p, device_step_s=PerArm(0.0028, 0.007)) for p in slow_eager.processes)
    text = shown(tmp_path, host_bound(), replace(slow_eager, processes=tuple(processes)))
    assert "\nhost_bound: resnet50 amp default (compiled), vgg16 amp default (both)\n" in text


def test_times_beside_busy_neighbours_are_upper_bounds(tmp_path: Path) -> None:
    record = make_record(speedups=[2.0, 2.0], flags=("compile_contended",))
    assert "| ≤3.00 | ≤300 \\[300, 300\\] |" in document(tmp_path, record)


@pytest.mark.parametrize(
    ("speedups", "text"),
    [
        ([2.0], "300"),
        ([1.0001], "1,500,000"),
        ([2.0, 2.0], "300 \\[300, 300\\]"),
        ([1.0, 1.1, 1.05], "3,200 \\[979, never\\]"),
        ([0.9, 1.0, 1.05], "never \\[926, never\\]"),
        ([0.5, 0.5], "never"),
    ],
)
def test_break_even_with_its_bounds(tmp_path: Path, speedups: Sequence[float], text: str) -> None:
    assert f"| 3.00 | {text} |" in document(tmp_path, make_record(speedups=speedups))


def test_an_eager_step_that_moved_is_a_flag_in_every_table(tmp_path: Path) -> None:
    moved = replace(make_record(mode="reduce-overhead"), processes=(make_process(eager_s=0.03),))
    text = document(tmp_path, make_record(), moved, make_record("vgg16"))
    assert text.count("| eager_moved |") == 2
    assert (tmp_path / "out/speedups.csv").read_text().count(",ok,eager_moved,") == 2


def test_intervals_say_what_they_mean(tmp_path: Path) -> None:
    draws = replace(
        make_record("a"), processes=tuple(make_process(2.0 + i, index=i, draw=i) for i in range(3))
    )
    text = document(tmp_path, draws, make_record("b"), make_record("c", speedups=[2.0, 2.1]))
    assert "over processes that share one compiled artifact" in text
    assert "over compile caches of their own (draws)" in text
    assert "a speedup without an interval comes from a single process" in text


def test_an_interval_within_two_draws_says_so(tmp_path: Path) -> None:
    processes = tuple(make_process(2.0 + i, index=i, draw=i // 2) for i in range(4))
    text = document(tmp_path, replace(make_record(), processes=processes))
    assert "over processes within their draws, and speak of these compiled artifacts alone" in text
    assert "share one compiled artifact" not in text


def test_what_never_pays_back_says_never(tmp_path: Path) -> None:
    assert "| never |" in document(tmp_path, make_record(trial=make_trial(), speedups=[0.5]))


def test_steps_that_were_waited_for_show_percentiles_and_energy(tmp_path: Path) -> None:
    """Only where they were measured: the usual table has none of these columns."""
    latencies = Latencies(Latency(0.02, 0.021, 0.0302, 99), Latency(0.01, 0.0105, 0.0151, 99))
    record = make_record("bert_base", speedups=(2.0,))
    process = replace(
        record.processes[0],
        latencies=latencies,
        tokens_per_step=4096.0,
        energy_j=PerArm(eager=12.0, compiled=7.25),
    )
    text = document(tmp_path / "a", replace(record, processes=(process,)))
    (row,) = rows_of(text.split("## Speedups")[1].split("## Causes")[0], "bert_base")
    assert "| 20.0 / 21.0 / 30.2 | 10.0 / 10.5 / 15.1 | 409,600 | 12.0 | 7.25 |" in row
    assert "p50" not in document(tmp_path / "b", make_record("bert_base"))


def test_a_preset_is_named_and_its_total_stands_as_it_was_made_in_2022(tmp_path: Path) -> None:
    trials = [
        make_trial(model, precision, optimizer="none")
        for model in ("resnet50", "vgg16")
        for precision in ("amp", "fp32")
    ]
    trials = [replace(trial, labels=replace(trial.labels, preset="pt2")) for trial in trials]
    speedups = [(2.0,), (2.0,), (0.5,), (0.5,)]
    text = document(
        tmp_path,
        *(
            make_record(trial=trial, speedups=one)
            for trial, one in zip(trials, speedups, strict=True)
        ),
    )
    assert "preset: pt2, the settings of the figures of 2022" in text
    # sqrt(2 x 1), where the plain mean is 1
    assert "as in 2022, slowdowns raised to 1.0, 1.41" in text
    assert "1.00 over 2 models, all undisturbed" in text


def rows_of(document: str, model: str) -> list[str]:
    return [
        line for line in document.splitlines() if line.startswith(f"| {model} ") and "|" in line[2:]
    ]
