"""Trials without a record that can be read: what they are, so that they are not taken for trials that are gone.

Place in the flow: `FoundRecord -> Lost`; `sides` makes sides of them. The runner writes `trial.json` before anything
runs, and the folder's name ends in the trial's id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.paths import TrialPaths
from sweeper.core.trial import Trial
from sweeper.loading.entries import BROKEN
from sweeper.loading.sources import FoundRecord

UNREADABLE, UNFINISHED = "unreadable", "unfinished"  # in place of a status
REASONS: Mapping[str, str] = {UNREADABLE: "its record in {} cannot be read", UNFINISHED: "has not ended in {}"}
TRIAL_ID = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True)
class Lost:
    """A trial that left no record, or one that cannot be read."""

    trial_id: str
    status: str  # a key of `REASONS`
    trial: Trial | None = None  # None where trial.json does not say


def lost_in(found: FoundRecord) -> Lost | None:
    """The trial of a folder; None where neither the folder's name nor `trial.json` says which."""
    told = _trial_told(found.folder)
    named = TRIAL_ID.fullmatch(found.folder.name.rpartition("-")[2])
    trial_id = named[0] if named else told.id if told else None
    if trial_id is None:
        return None
    # After an out of memory trial.json holds the smaller batch, so a trial of another id.
    same = told is not None and told.id == trial_id
    return Lost(trial_id, UNREADABLE if found.ended else UNFINISHED, told if same else None)


def _trial_told(folder: Path) -> Trial | None:
    try:
        return Trial.from_json(json.loads(TrialPaths(folder).trial.read_text(encoding="utf-8"))["trial"])
    except (OSError, LookupError, TypeError, *BROKEN):
        return None
