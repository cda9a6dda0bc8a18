"""Going on with a sweep: what is on disk of its trials, and whether this command would measure the rest alike."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sweeper.core.errors import ConfigError
from sweeper.core.paths import SweepPaths, TrialPaths
from sweeper.core.record import read_status
from sweeper.core.serialization import from_json, get_mapping
from sweeper.core.settings import Measure


@dataclass(frozen=True)
class Kept:
    """What a record on disk says of its trial; `measure` is None where neither it nor `trial.json` tells."""

    status: str
    measure: Measure | None


def read_kept(paths: SweepPaths, trial_ids: Set[str]) -> dict[str, Kept]:
    """Read what is on disk of the trials; an unreadable record counts as none."""
    kept, known = {}, paths.trials()
    for trial_id in trial_ids & known.keys():
        trial = known[trial_id]
        try:
            status, measure = read_status(trial.record.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except ValueError as error:
            print(f"note: {trial.record} cannot be read ({error}); the trial runs again", file=sys.stderr)
            continue
        kept[trial_id] = Kept(status, read_measure(measure, trial))
    return kept


def read_measure(of_record: Mapping[str, Any], trial: TrialPaths) -> Measure | None:
    """The settings of a record; an older one has none, and `trial.json` beside it has those of its workers."""
    with suppress(OSError, ValueError):
        found = of_record or get_mapping(json.loads(trial.trial.read_text(encoding="utf-8")), "measure")
        return from_json(Measure, found) if found else None
    return None


def is_alike(kept: Kept, measure: Measure) -> bool:
    """Whether a record was measured with the same settings that change figures; an unknown one counts as alike."""
    return kept.measure is None or kept.measure.figure_settings() == measure.figure_settings()


def require_same_settings(sweep: str, kept: Iterable[Kept], measure: Measure) -> None:
    """Raise ConfigError when records that stay were measured with other settings that change figures."""
    now = measure.figure_settings()
    before = [item.measure.figure_settings() for item in kept if item.measure and not is_alike(item, measure)]
    if not before:
        return
    those = "1 of these trials has a record" if len(before) == 1 else f"{len(before)} of these trials have records"
    lines = [f"sweep={sweep}: {those} with other settings, which change figures"]
    for name in (name for name in now if all(name in found for found in before)):  # the others are not used on one side
        was = dict.fromkeys(_show(found.get(name)) for found in before)
        is_now = _show(now.get(name))
        if list(was) != [is_now]:
            lines.append(f"  measure.{name}: {' or '.join(was)} -> {is_now}")
    again = "add retry=changed to measure these trials again, retry=all to measure all again"
    lines.append(f"nothing was started; {again}, or give another sweep=NAME")
    raise ConfigError("\n".join(lines))


def _show(value: object) -> str:
    return json.dumps(value).strip('"')
