from __future__ import annotations

from dataclasses import replace

import metric_docs
import pytest
from records import make_process, make_record

from sweeper.analysis.derive import derive
from sweeper.analysis.metrics import METRICS
from sweeper.analysis.result import Result
from sweeper.core.record import (
    Latencies,
    Latency,
    LoopRun,
    PerArm,
    Process,
    Record,
    ScriptRun,
)


def record_of(process: Process, status: str = "ok") -> Record:
    return replace(make_record(), processes=(process,), status=status)


def test_the_page_on_metrics_is_made_of_the_registry() -> None:
    assert metric_docs.FILE.read_text() == metric_docs.text(), "make golden"


def test_metrics_have_the_unit_of_their_column() -> None:
    """A step of 20 ms in eager and 10 ms compiled, 3 MiB of memory."""
    process = replace(
        make_process(), memory_bytes=PerArm(3 * 2**20, 2**20), host_step_s=PerArm(0.004, 0.002)
    )
    result = derive(record_of(process))
    columns = {metric.csv_name: metric.column_value(result) for metric in METRICS}
    assert (columns["eager_step_ms"], columns["compiled_step_ms"]) == (
        pytest.approx(20),
        pytest.approx(10),
    )
    assert (columns["eager_peak_memory_mib"], columns["compiled_peak_memory_mib"]) == (3, 1)
    assert (columns["eager_host_step_ms"], columns["compiled_host_step_ms"]) == (4, 2)
    assert (columns["speedup"], columns["interval"]) == (pytest.approx(2.0), "none")


def test_a_metric_is_read_of_processes_or_a_figure_of_the_trial() -> None:
    """Every name is known: no metric is empty because it was misspelt."""
    process = replace(
        make_process(), device_step_s=PerArm(0.02, 0.01), script=ScriptRun(
            loop_eager=LoopRun(9, 0.03, 0.01, 1), loop_compiled=LoopRun(9, 0.02, 0.01, 1)
        )
    )  # fmt: skip
    figures = derive(replace(make_record(), processes=(process, process))).figures
    assert {metric.name for metric in METRICS if not metric.of_process} <= figures.keys()


def test_names_of_readings_are_names_of_metrics() -> None:
    read = set()

    class Readings(dict[str, float]):
        def get(self, name: str) -> None:  # type: ignore[override]
            read.add(name)

    result = Result(1, 1, readings=Readings())
    for name in dir(Result):
        getattr(result, name)
    assert len(read) > 10
    assert read <= {metric.name for metric in METRICS if metric.of_process}


@pytest.mark.parametrize(
    "name",
    ["compile_cold_s", "compile_dynamo_s", "first_step_cold_s", "eager_p50_s", "eager_energy_j"],
)
def test_what_a_wrong_program_was_measured_in_stays_where_it_is_no_speed(name: str) -> None:
    latency = Latency(0.01, 0.02, 0.03, 9)
    process = replace(
        make_process(), compile_parts_s={"dynamo": 1.0}, time_to_first_step_s=2.0,
        energy_j=PerArm(1.0, 1.0),
        latencies=Latencies(latency, latency),
    )  # fmt: skip
    wrong = derive(record_of(process, status="accuracy_mismatch")).readings
    assert name in wrong
    assert not {"compiled_p50_s", "compiled_energy_j"} & wrong.keys()
    assert {"compiled_p50_s", "compiled_energy_j", "compiled_p99_s"} <= derive(
        record_of(process)
    ).readings.keys()
