"""What parent and worker say to each other: a job on the way in, JSON lines on the way out.

Place in the flow: `runner` writes a `Job` to `trial.json`, the worker answers on a pipe with `Phase` lines and one
`Outcome`. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from sweeper.codec import Json, from_json, to_json
from sweeper.record import Diagnostics, Process
from sweeper.settings import Measure
from sweeper.trial import Trial


@dataclass(frozen=True)
class Job:
    """All that a worker needs to know of a trial: the content of `trial.json`."""

    trial: Trial
    measure: Measure

    def dumps(self) -> str:
        return json.dumps({"trial_id": self.trial.id, **to_json(self)}, indent=1)

    @staticmethod
    def loads(text: str) -> Job:
        """Raises ValueError for text that is no job."""
        data = json.loads(text)
        data.pop("trial_id", None)
        return from_json(Job, data)


@dataclass(frozen=True)
class Phase:
    """The worker has begun this phase."""

    name: str


@dataclass(frozen=True)
class Outcome:
    """The worker's last word. `process` holds what was measured before a failure, if anything."""

    status: str
    phase: str | None = None
    message: str | None = None
    process: Process | None = None
    diagnostics: Diagnostics | None = None
    environment: Mapping[str, Json] = field(default_factory=dict)


def encode(message: Phase | Outcome) -> str:
    """One line of JSON."""
    return json.dumps({"kind": type(message).__name__, **to_json(message)}) + "\n"


def decode(line: str) -> Phase | Outcome:
    """The inverse of `encode`. Raises ValueError for anything else."""
    data = json.loads(line)
    kind = data.pop("kind", None) if isinstance(data, dict) else None
    if kind == "Phase":
        return from_json(Phase, data)
    if kind == "Outcome":
        return from_json(Outcome, data)
    raise ValueError(f"unknown message {kind!r}")
