from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import make_record, write_sweep
from reports import load
from summary_records import with_busy_host

from sweeper.core.errors import ConfigError
from sweeper.core.record import SCHEMA_VERSION, Record
from sweeper.core.trial import Labels, Model, Text, Trial, name_variants
from sweeper.loading.sources import find_sweep
from sweeper.report.answers.trials import name_sweep


def broken(runs: Path, text: str) -> Path:
    """A sweep of two trials, of which one has `text` for a record."""
    folder = write_sweep(runs, [make_record("good"), make_record("bad")])
    next(folder.glob("bad-*/record.json")).write_text(text)
    return folder


def changed(**values: Any) -> str:
    return json.dumps(json.loads(make_record("bad").dumps()) | values)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON, or cut short"),
        (make_record().dumps()[:300], "not JSON, or cut short"),
        ("[]", "not a record: no schema_version"),
        ('{"schema_version": 6}', "missing"),
        ('{"schema_version": 1}', f"is older than {SCHEMA_VERSION}: read"),
        (changed(schema_version=SCHEMA_VERSION + 1), f"is newer than {SCHEMA_VERSION}: upgrade"),
        (changed(schema_version="1"), "cannot be read"),
        (changed(invented=1), "unknown key invented"),
        (changed(status="fine"), "status: 'fine' is not one of"),
        (changed(label="x", flags=[1]), "wrong type"),
        (changed(flags=None), "cannot be read"),
        (
            changed(processes=[{"index": 0, "draw": 0, "cold": True, "compile_s": "long"}] * 2),
            "cannot be read",
        ),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_a_record_that_cannot_be_read_is_a_line_and_the_rest_is_loaded(
    tmp_path: Path, text: str, reason: str
) -> None:
    loaded = load([broken(tmp_path, text)])
    assert [entry.record.trial.labels.model for entry in loaded.entries] == ["good"]
    assert len(loaded.problems) == 1
    assert reason in loaded.problems[0]
    assert "/bad-" in loaded.problems[0]


def test_a_record_that_is_not_text_is_a_line(tmp_path: Path) -> None:
    folder = broken(tmp_path, "")
    next(folder.glob("bad-*/record.json")).write_bytes(b"\xff\xfe")
    assert "not JSON" in load([folder]).problems[0]


def test_a_sweep_that_is_a_link_has_the_name_of_its_folder(tmp_path: Path) -> None:
    link = tmp_path / "latest"
    link.symlink_to(write_sweep(tmp_path, [make_record()]))
    assert list(map(name_sweep, load([link]).entries)) == ["night"]


def test_a_trial_without_a_record_is_a_line(tmp_path: Path) -> None:
    folder = broken(tmp_path, "")
    next(folder.glob("bad-*/record.json")).unlink()
    assert "no record.json" in load([folder]).problems[0]


def test_other_folders_of_a_sweep_are_no_trials(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, [make_record()])
    (folder / "report").mkdir()
    (folder / "sweep.json").write_text("{}")
    assert load([folder]).problems == ()


def test_samples_are_not_kept_and_equal_environments_are_kept_once(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, [make_record("one", speedups=(2.0, 2.1)), make_record("two")])
    one, two = load([folder]).entries
    assert (one.record.processes, one.result.processes) == ((), 2)
    assert one.record.environment["versions"] == {"torch": "2.13.0"}
    assert one.record.environment is two.record.environment
    assert one.record.trial.labels.model != two.record.trial.labels.model


def test_a_sweep_named_twice_is_read_once(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, [make_record()])
    assert len(load([folder, folder / ".." / folder.name]).entries) == 1


def test_the_device_is_named_only_where_there_are_several(tmp_path: Path) -> None:
    one = load([write_sweep(tmp_path, [make_record(optimizer="sgd")], "one")])
    two = load(
        [write_sweep(tmp_path, [make_record(optimizer="sgd"), make_record(device="cpu")], "two")]
    )
    assert [entry.variant for entry in one.entries] == ["optimizer=sgd"]
    assert {entry.variant for entry in two.entries} == {"optimizer=sgd; device=cuda", "device=cpu"}


def test_a_name_is_looked_for_under_runs_and_then_as_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_sweep(Path("runs"), [make_record()], "night")
    write_sweep(Path(), [make_record()], "night")
    write_sweep(Path(), [make_record()], "copied")
    assert find_sweep("night") == Path("runs/night")
    assert find_sweep("copied") == Path("copied")
    assert find_sweep("./night") == Path("night")


def test_an_unknown_sweep_is_answered_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"nihgt: .*there are no sweeps"):
        find_sweep("nihgt")
    write_sweep(Path("runs"), [make_record()], "night")
    with pytest.raises(ConfigError, match=r"nihgt: .*nearest: night"):
        find_sweep("nihgt")


def test_a_folder_without_trials_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no trials"):
        find_sweep(str(tmp_path))


H200 = {"type": "cuda", "name": "NVIDIA H200", "memory_bytes": 150109880320}
A100 = {"type": "cuda", "name": "NVIDIA A100-SXM4", "memory_bytes": 40 * 2**30}


def on(gpu: dict[str, Any] | None, model: str = "resnet50", **axes: Any) -> Record:
    record = make_record(model, **axes)
    return replace(
        record, environment={"versions": {"torch": "2.13.0"}} | ({"device": gpu} if gpu else {})
    )


def variants(*sweeps: Path) -> list[str]:
    return [entry.variant for entry in load(sweeps).entries]


def test_gpus_are_told_apart_where_there_are_several(tmp_path: Path) -> None:
    one = write_sweep(tmp_path, [on(H200), on(H200, "vgg16")], "one")
    two = write_sweep(tmp_path, [on(A100)], "two")
    assert variants(one) == ["", ""]
    assert variants(one, two) == ["gpu=NVIDIA H200", "gpu=NVIDIA H200", "gpu=NVIDIA A100-SXM4"]


def test_gpus_of_one_name_are_told_apart_by_their_memory(tmp_path: Path) -> None:
    one = write_sweep(tmp_path, [on(A100)], "one")
    two = write_sweep(tmp_path, [on({**A100, "memory_bytes": 80 * 2**30})], "two")
    nearly = write_sweep(tmp_path, [on({**A100, "memory_bytes": 40 * 2**30 - 1000})], "nearly")
    assert variants(one, two) == ["gpu=NVIDIA A100-SXM4 40 GiB", "gpu=NVIDIA A100-SXM4 80 GiB"]
    assert variants(one, nearly) == ["", ""]


def test_a_trial_that_never_saw_its_gpu_has_that_of_its_sweep(tmp_path: Path) -> None:
    one = write_sweep(tmp_path, [on(None, "a", status="crashed"), on(H200)], "one")
    two = write_sweep(tmp_path, [on(A100)], "two")
    mixed = write_sweep(
        tmp_path, [on(None, "a", status="crashed"), on(H200), on(A100, "z")], "mixed"
    )
    assert variants(one, two)[0] == "gpu=NVIDIA H200"
    assert variants(mixed)[0] == "gpu=unknown"


def test_a_cpu_beside_two_gpus_has_no_gpu(tmp_path: Path) -> None:
    sweep = write_sweep(
        tmp_path, [on(H200), on(A100, "vgg16"), on({"type": "cpu"}, "z", device="cpu")]
    )
    assert variants(sweep) == [
        "device=cuda; gpu=NVIDIA H200",
        "device=cuda; gpu=NVIDIA A100-SXM4",
        "device=cpu",
    ]


def test_cpus_are_told_apart_as_well(tmp_path: Path) -> None:
    sweeps = [
        write_sweep(tmp_path, [on({"type": "cpu", "name": name}, device="cpu")], name[:3])
        for name in ("AMD", "Intel")
    ]
    assert variants(*sweeps) == ["cpu=AMD", "cpu=Intel"]


@pytest.mark.parametrize("device", ["cuda", [], {"name": 3}, {"name": "x", "memory_bytes": "much"}])
def test_a_device_may_be_written_in_any_shape(tmp_path: Path, device: Any) -> None:
    assert len(variants(write_sweep(tmp_path, [on(device), on(H200, "vgg16")]))) == 2


def trial_with(library: str, dropout: bool, text: Text = Text(), workload: str = "train") -> Trial:  # noqa: B008
    optimizer = "adam" if workload == "train" else "none"
    model, labels = Model(library, "x", dropout=dropout), Labels("x", "fp32")
    return Trial(model, 2, labels, workload=workload, optimizer=optimizer, text=text)


def test_variants_name_a_step_where_trials_differ_in_it() -> None:
    image, text = trial_with("timm", True), trial_with("transformers", True, Text("auto"))
    assert name_variants([image, text]) == ["", ""]
    old = trial_with("transformers", False)
    assert name_variants([image, text, old]) == [
        "model.dropout=true",
        "model.dropout=true; text=auto",
        "model.dropout=false; text=none",
    ]
    assert name_variants(
        [
            replace(text, mode="reduce-overhead"),
            trial_with("transformers", False, workload="prefill"),
        ]
    ) == ["", ""]


def test_variants_tell_inference_with_labels_from_inference_without() -> None:
    texts = (Text(), Text("none", labels=False), Text("auto", labels=False))
    trials = [trial_with("transformers", False, text, "inference") for text in texts]
    assert name_variants(trials) == ["text=none; text.labels=true", "text=none", "text=auto"]


def test_old_and_new_steps_share_no_row_of_a_mean(tmp_path: Path) -> None:
    old = make_record("bert", "fp32")
    new = make_record(trial=replace(old.trial, model=replace(old.trial.model, dropout=True)))
    entries = load([write_sweep(tmp_path, [old, new])]).entries
    assert {entry.variant for entry in entries} == {"model.dropout=false", "model.dropout=true"}


def test_an_entry_keeps_what_disturbed_its_record(tmp_path: Path) -> None:
    """The share is read from the processes, which an entry does not keep."""
    record = with_busy_host(make_record(flags=("host_busy", "unsteady")))
    (entry,) = load([write_sweep(tmp_path, [record])]).entries
    assert entry.record.processes == ()
    assert entry.disturbances == {"host_busy": pytest.approx(1.0)}
