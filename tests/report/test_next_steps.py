"""What is worth another run, and the command for it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from records import make_record, make_trial
from reports import report_on

from sweeper.core.ablation import change
from sweeper.report.text.next_steps import ReportedModel, find_options, narrow


def narrow_to(command: str, *models: ReportedModel) -> str:
    return narrow(command, find_options(command, models), {"mode": "lite"})


def test_a_backend_that_was_not_tried_is_named_and_not_its_mode(tmp_path: Path) -> None:
    other = make_record(trial=make_trial(backend="aot_eager"), speedups=[1.0])
    command = "python -m sweeper -m model=resnet50 precision=amp backend=aot_eager"
    (again,) = report_on(tmp_path, [other], command).verdict.again
    assert again.why == "inductor not tried"
    assert "mode=default backend=inductor" in again.command


def test_what_is_worth_another_run_has_its_command(tmp_path: Path) -> None:
    command = (
        "python -m sweeper -m model=resnet50,vgg16,alexnet precision=amp,fp32 measure=quick "
        "sweep=old retry=all"
    )
    names = ("resnet50", "vgg16")
    untried = [
        make_record(name, precision, [1.0]) for name in names for precision in ("amp", "fp32")
    ]
    unsure = make_record("alexnet", speedups=[7.0])
    report = report_on(tmp_path, [*untried, unsure], command)
    again, first = report.verdict.again
    assert first.names == ("resnet50 (amp, fp32)", "vgg16 (amp, fp32)")
    assert first.why == "reduce-overhead not tried"
    assert first.command == (
        "python -m sweeper -m measure=quick model=resnet50,vgg16 precision=amp,fp32 "
        "mode=reduce-overhead sweep=night"
    )
    assert again.names == ("alexnet (amp)",)
    assert again.why == "more processes on an idle machine can make it sure"
    assert again.command == (
        "python -m sweeper -m measure=quick model=alexnet precision=amp mode=default "
        "measure.processes=5"
        " sweep=night-again"
    )
    text, page = (
        (tmp_path / "report/report.md").read_text(),
        (tmp_path / "report/report.html").read_text(),
    )
    assert (
        f"- resnet50 (amp, fp32), vgg16 (amp, fp32): {first.why}\n\n      {first.command}\n" in text
    )
    assert f"<code>{first.command}</code>" in page
    assert report.verdict.sentences[0] in text


@pytest.mark.parametrize(("measured", "asked"), [(1, 5), (2, 5), (4, 8), (8, 16)])
def test_more_processes_are_more_than_there_were(tmp_path: Path, measured: int, asked: int) -> None:
    speedups = [1.0, 1.2, 1.0, 1.2, 1.0, 1.2, 1.0, 1.2][:measured]
    record = make_record(trial=make_trial(device="cpu"), speedups=speedups)
    (again,) = report_on(tmp_path, [record], "python -m sweeper model=resnet50").verdict.again
    assert f" measure.processes={asked} " in again.command


def test_another_backend_gives_way_to_inductor(tmp_path: Path) -> None:
    record = make_record(trial=make_trial(backend="aot_eager"), speedups=[1.0])
    (again,) = report_on(
        tmp_path, [record], "python -m sweeper model=resnet50 backend=aot_eager"
    ).verdict.again
    assert again.command.endswith(" precision=amp mode=default backend=inductor sweep=night")


def test_without_a_command_of_the_sweep_none_is_made_up(tmp_path: Path) -> None:
    """The time is that of the models that would run again."""
    sure = replace(make_record("vgg16", speedups=[2.0, 2.0]), wall_s=600.0)
    unsure = replace(make_record(speedups=[7.0]), wall_s=60.0)
    (again,) = report_on(tmp_path, [sure, unsure], "python benchmarks/other.py").verdict.again
    assert again.command == ""
    assert again.why == "more processes on an idle machine can make it sure (about 5 min 00 s)"


@pytest.mark.parametrize(
    ("command", "model", "narrowed"),
    [
        ("python -m sweeper model=vgg16 dry_run=true", "vgg16", "python -m sweeper -m model=vgg16"),
        ("python /venv/bin/sweeper -m mode=a,b", "resnet50", "sweeper -m model=resnet50"),
        ("python -m sweeper -m 'model=glob(*)'", "resnet50", "python -m sweeper -m model=resnet50"),
        (
            "python -m sweeper experiment=cnn",
            "resnet50",
            "python -m sweeper -m experiment=cnn model=resnet50",
        ),
        (
            "python -m sweeper -m model=timm/dla102,b",
            "timm/dla102",
            "python -m sweeper -m model=timm/dla102",
        ),
        ("python -m sweeper -m model=a,b", "c", "python -m sweeper -m model=a,b"),
    ],
)
def test_a_command_is_narrowed_to_some_models(command: str, model: str, narrowed: str) -> None:
    one = ReportedModel(model.rpartition("/")[2], "timm" if "/" in model else None)
    assert narrow_to(command, one) == f"{narrowed} mode=lite"


def test_a_command_that_is_no_plain_text_is_not_repeated(tmp_path: Path) -> None:
    record = make_record(speedups=[1.0])
    (again,) = report_on(
        tmp_path, [record], "python -m sweeper -m model=resnet50 '\x1b]0;x\x07'"
    ).verdict.again
    assert again.command == ""
    (again,) = report_on(
        tmp_path / "other", [record], "/tmp/evil -m sweeper model=resnet50"
    ).verdict.again
    assert again.command.startswith("python -m sweeper -m model=resnet50 ")


def test_the_arguments_of_a_script_stay_behind_what_is_changed() -> None:
    command = "python -m sweeper train.py mode=default -- mode=x 'a b' -m"
    narrowed = narrow(command, [], {"mode": "lite", "sweep": "n"})
    assert narrowed == "python -m sweeper -m train.py mode=lite sweep=n -- mode=x 'a b' -m"


@pytest.mark.parametrize(
    ("tuned", "changes"),
    [
        (4.0, {"mode": "default", "backend": "aot_eager"}),
        (9.0, {"mode": "max-autotune", "backend": None}),
    ],
    ids=["of a backend", "of Inductor"],
)
def test_the_command_names_the_mode_that_the_answer_rests_on(
    tmp_path: Path, tuned: float, changes: dict[str, str | None]
) -> None:
    records = [
        make_record(trial=make_trial(backend="aot_eager"), speedups=[5.0]),
        make_record(mode="max-autotune", speedups=[tuned]),
        make_record(mode="reduce-overhead", speedups=[1.0]),
    ]
    (again,) = report_on(tmp_path, records, "python -m sweeper mode=reduce-overhead").verdict.again
    changed = dict(word.split("=") for word in again.command.split() if "=" in word)
    assert {name: changed.get(name) for name in changes} == changes


@pytest.mark.parametrize(
    ("speedups", "flags", "why"),
    [
        ([1.5, 1.51, 1.49], (), None),
        ([1.5, 1.51, 1.49], ("shared_gpu",), "more processes on an idle machine can make it sure"),
        ([1.0, 1.1, 1.05], (), "open; more processes on an idle machine may tell"),
        ([1.5, 1.51, 1.49], ("accuracy_unverified",), None),  # no process makes it verified
    ],
    ids=["sure", "disturbed", "open", "unverified"],
)
def test_more_processes_are_worth_it_where_they_can_make_the_answer_sure(
    tmp_path: Path, speedups: list[float], flags: tuple[str, ...], why: str | None
) -> None:
    records = [
        make_record(speedups=speedups, flags=flags),
        make_record(mode="reduce-overhead", speedups=[0.8, 0.81]),
    ]
    again = report_on(tmp_path, records, "python -m sweeper").verdict.again
    assert [item.why for item in again] == ([why] if why else [])


def test_modes_of_a_ladder_are_named_as_rungs(tmp_path: Path) -> None:
    record = make_record(mode="max-autotune", speedups=[7.0])
    command = (
        "python -m sweeper experiment=ladder model=resnet50 rung=eager,max-autotune "
        "backend=inductor"
    )
    (again,) = report_on(tmp_path, [record], command).verdict.again
    words = again.command.split()
    assert "rung=max-autotune" in words
    assert not [word for word in words if word.startswith("mode=")]


@pytest.fixture
def three_nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options for models of one name. A suite is called otherwise than its folder."""
    monkeypatch.setattr("sweeper.config.schema.conf_folder", lambda: tmp_path)
    for option, suite in (("a/net", "first"), ("b/net", "second"), ("net", None)):
        path = tmp_path / f"model/{option}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"suite: {suite}\n" if suite else "name: net\n")


@pytest.mark.usefixtures("three_nets")
@pytest.mark.parametrize(
    "given", ["a/net,b/net,net", "glob(*)", None], ids=["listed", "pattern", "experiment"]
)
def test_models_of_one_name_are_told_apart_by_their_suites(given: str | None) -> None:
    command = f"python -m sweeper -m {f'model={given}' if given else 'experiment=all'}"
    for suites, options in (
        (["second"], "b/net"),
        ([None], "net"),
        (["second", "first"], "b/net,a/net"),
    ):
        narrowed = narrow_to(command, *(ReportedModel("net", suite) for suite in suites))
        assert narrowed.split()[-2:] == [f"model={options}", "mode=lite"]
    kept = narrow_to(command, ReportedModel("net", "third"))
    assert shlex.split(kept) == [*command.split(), "mode=lite"]


@pytest.mark.usefixtures("three_nets")
def test_the_command_has_both_models_of_one_name(tmp_path: Path) -> None:
    trial = make_trial("net")
    trials = [
        replace(
            trial,
            labels=replace(trial.labels, suite=suite),
            model=replace(trial.model, name=str(suite)),
        )
        for suite in ("first", "second", None)
    ]
    records = [make_record(trial=trial, speedups=[1.0]) for trial in trials[:2]]
    records.append(make_record(trial=trials[2], speedups=[2.0, 2.01, 1.99]))
    (again,) = report_on(
        tmp_path, records, "python -m sweeper -m model=a/net,b/net,net"
    ).verdict.again
    (model,) = (word for word in again.command.split() if word.startswith("model="))
    assert model in ("model=a/net,b/net", "model=b/net,a/net")


def test_how_long_the_command_takes_follows_from_the_trials(tmp_path: Path) -> None:
    """Five processes of 60 s each, of both models; two in a mode that was not tried."""
    command = "python -m sweeper -m model=resnet50,vgg16 sweep=night"
    unsure = [replace(make_record(name, speedups=[7.0]), wall_s=60.0) for name in ("a", "b")]
    (again,) = report_on(tmp_path, unsure, command).verdict.again
    assert again.why == "more processes on an idle machine can make it sure (about 10 min 00 s)"
    untried = replace(make_record(speedups=[1.0, 1.0]), wall_s=60.0)
    (first,) = report_on(tmp_path / "untried", [untried], command).verdict.again
    assert first.why == "reduce-overhead not tried (about 1 min 00 s)"


def test_the_time_is_that_of_all_trials_that_the_command_runs(tmp_path: Path) -> None:
    """An unsure case of three, one of which failed; each process took 60 s."""
    command = "python -m sweeper -m model=resnet50 compile.dynamic=null,true,false sweep=night"
    records = []
    for dynamic, speedups in ((None, [7.0]), (True, [1.5, 1.51, 1.49]), (False, [])):
        trial = make_trial()
        trial = replace(trial, compile=replace(trial.compile, dynamic=dynamic))
        record = make_record(trial=trial, speedups=speedups, status="ok" if speedups else "oom")
        records.append(replace(record, wall_s=60.0 * max(len(speedups), 1)))
    (again,) = report_on(tmp_path, records, command).verdict.again
    assert again.why == "more processes on an idle machine can make it sure (about 15 min 00 s)"


def test_the_command_for_the_default_of_an_ablation_leaves_the_features_out(tmp_path: Path) -> None:
    command = "python -m sweeper experiment=ablation model=resnet50"
    (again,) = report_on(tmp_path, [make_record(speedups=[7.0])], command).verdict.again
    assert " feature=null " in again.command


def test_the_command_has_the_features_of_an_ablation_that_are_not_sure(tmp_path: Path) -> None:
    """On a CPU one process says of a small difference nothing, of a large one enough."""
    plain = make_trial(device="cpu")
    records = [make_record(trial=plain, speedups=[1.0])]
    for feature, speedup in (("lowerings", 0.2), ("dynamic", 1.02), ("decompositions", 0.98)):
        records.append(make_record(trial=change(plain, feature), speedups=[speedup]))
    minutes = zip(records, (1, 30, 2, 3), strict=True)
    records = [replace(record, wall_s=60.0 * number) for record, number in minutes]
    command = "python -m sweeper experiment=ablation model=resnet50 sweep=night"
    (again,) = report_on(tmp_path, records, command).verdict.again
    assert " feature=null,decompositions,dynamic " in again.command
    assert again.why.endswith(" (about 30 min 00 s)"), "five processes of 1 + 2 + 3 minutes"


def test_a_sure_default_runs_again_for_features_that_are_not(tmp_path: Path) -> None:
    """The interrupted one too, though more processes would not have mended it alone."""
    plain = make_trial()
    records = [make_record(trial=plain, speedups=[2.0, 2.0, 2.0])]
    for feature, speedups in (("cuda_graphs", [2.1, 2.12]), ("lowerings", [0.2, 0.2])):
        records.append(make_record(trial=change(plain, feature), speedups=speedups))
    interrupted = make_record(trial=change(plain, "dynamic"), status="interrupted")
    command = "python -m sweeper experiment=ablation model=resnet50"
    (again,) = report_on(tmp_path, [*records, interrupted], command).verdict.again
    assert again.why.startswith("more processes on an idle machine may settle its features")
    assert " feature=null,cuda_graphs,dynamic " in again.command
    settled = [*records[::2], interrupted]
    assert not report_on(tmp_path / "settled", settled, command).verdict.again
