"""Answers of single processes against those of all processes, and of eager against eager, over the
stored records of real sweeps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import archives
import pytest

from sweeper.analysis.derive import derive
from sweeper.analysis.flags import find_disturbances
from sweeper.core.record import Record
from sweeper.core.serialization import get_mapping
from sweeper.loading.entries import Entry
from sweeper.report.answers.decision import COMPILE, NO_LIMITS, OPEN, STAY, Answer, choose


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    folder = tmp_path_factory.mktemp("records")
    for name in archives.names():
        archives.unpack(name, folder)
    found = map(Record.read, sorted(folder.glob("*/*/record.json")))
    return [record for record in found if record.status == "ok"]


def answer(record: Record) -> Answer:
    entry = Entry(record, derive(record), Path("t"), record.trial.variant, record.flags)
    return choose([replace(entry, disturbances=find_disturbances(record))], NO_LIMITS)


def take_each_process(record: Record) -> Iterator[Record]:
    """Yield the record that each process would have left if it had been the only one."""
    for process in record.processes:
        yield replace(record, processes=(replace(process, cold=True),))


def test_one_process_never_contradicts_all_processes_of_its_trial(records: list[Record]) -> None:
    """The processes of a trial are those of all sweeps that measured it on one kind of device."""
    repeats: dict[tuple[str, object], list[Record]] = defaultdict(list)
    for record in records:
        if record.trial.mode != "eager":
            device = get_mapping(record.environment, "device").get("name")
            repeats[record.trial_id, device].append(record)
    decided = 0
    for found in repeats.values():
        processes = [process for record in found for process in record.processes]
        if len(processes) > 1:
            whole = answer(replace(found[0], processes=tuple(processes))).verdict
            for record in found:
                for single in take_each_process(record):
                    verdict = answer(single).verdict
                    decided += OPEN not in (verdict, whole)
                    assert {verdict, whole} != {COMPILE, STAY}, record.label
    assert decided >= 20


def test_eager_is_never_told_to_compile_against_eager(records: list[Record]) -> None:
    found = []
    for record in records:
        if record.trial.mode == "eager":
            found.append(answer(record).verdict)
            found += [answer(single).verdict for single in take_each_process(record)]
    assert len(found) > 10
    assert COMPILE not in found
