"""starts.csv: a row for each trial and state of its caches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from records import make_record, write_sweep
from reports import load

from sweeper.core.record import PerArm, Process, Record
from sweeper.core.trial import Compile
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.starts import conclude, list_starts
from sweeper.report.tables.starts import StartsTable


def start_record(start: str, **changes: object) -> Record:
    record = make_record(speedups=(2.0, 2.5), compile=Compile(start=start))
    cold, warm = record.processes
    cold = replace(
        cold,
        time_to_first_step_s=30.0,
        first_steps_s=(20.0, 1.0, 0.5),
        autograd_cache={"hits": 0, "misses": 0, "bypassed": 1},
        cache_bypasses={"Bypassing autograd cache due to: autocast": 1},
    )
    device_s = PerArm(0.02, 0.006)
    warm = replace(warm, time_to_first_step_s=9.0, first_steps_s=(4.0,), device_step_s=device_s)
    return replace(record, processes=(cold, warm), **changes)


def rows(folder: Path) -> list[dict[str, str]]:
    lines = StartsTable().csv(Findings(load([folder]).entries)).splitlines()
    names = lines[0].split(",")
    return [dict(zip(names, line.split(","), strict=True)) for line in lines[1:]]


def test_each_trial_has_its_seconds_and_its_step_in_each_state(tmp_path: Path) -> None:
    lost = start_record("aot_compile", status="unavailable", message="no graph")
    lost = replace(lost, processes=(Process(0, 0, True),))
    folder = write_sweep(tmp_path, [start_record("local_cache"), start_record("mega_cache"), lost])
    found = {(row["variant"], row["starts_from"]): row for row in rows(folder)}
    cold = found["compile.start=mega_cache", "nothing cached"]
    assert (cold["first_step_s"], cold["steady_s"]) == ("30.0", "31.5")
    assert (float(cold["step_ms"]), cold["device_step_ms"]) == (10.0, "")
    assert cold["autograd_cache"] == "0/0/1"
    assert cold["bypasses"] == "Bypassing autograd cache due to: autocast"
    warm = found["compile.start=mega_cache", "mega_cache"]
    assert (warm["first_step_s"], warm["steady_s"], float(warm["step_ms"])) == ("9.0", "9.0", 8.0)
    assert float(warm["device_step_ms"]) == 6.0
    assert found["", "local_cache"]["first_step_s"] == "9.0"
    failed = found["compile.start=aot_compile", "nothing cached"]
    assert (failed["status"], failed["message"]) == ("unavailable", "no graph")
    assert failed["first_step_s"] == ""


def test_a_sweep_with_one_kind_of_start_has_no_row(tmp_path: Path) -> None:
    assert rows(write_sweep(tmp_path, [start_record("local_cache")])) == []


def test_the_verdict_has_the_seconds_to_the_first_step(tmp_path: Path) -> None:
    blocks = Compile(start="mega_cache", scope="blocks")
    by_blocks = start_record("mega_cache")
    trial = replace(by_blocks.trial, compile=blocks)
    by_blocks = replace(by_blocks, trial=trial, trial_id=trial.id)
    records = [start_record("local_cache"), start_record("mega_cache"), by_blocks]
    found = list_starts(load([write_sweep(tmp_path, records)]).entries)
    model = records[0].trial.labels.model
    assert sorted(conclude(found)) == [
        f"the first step of {model} by blocks ends after 30.0 s with nothing cached, "
        "9.00 s from mega_cache",
        f"the first step of {model} ends after 30.0 s with nothing cached, "
        "9.00 s from local_cache, 9.00 s from mega_cache",
    ]
