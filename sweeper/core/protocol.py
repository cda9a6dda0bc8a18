"""Messages between driver and worker.

The driver writes a `Job` to `trial.json`, and gives each worker its `ProcessSlot` on the command
line. The worker answers on a pipe, in JSON lines: a `Phase` for each phase that it enters, a
`LeaseRequest` when it wants the device or gives it back, and one `Outcome` at its end. The driver
writes `LeaseNews` to the worker's standard input: a `LeaseGrant` for each request for the device,
and how long the worker was stopped. A worker that was started ahead has its first request answered
when the process before it has ended.

`decode` checks everything that the driver reads of a worker: types, ranges and words are those of
the dataclasses here and in `core.record`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from .record import PHASES, STATUSES, Amount, Diagnostics, Process
from .serialization import Json, from_json, parse_json, to_json
from .settings import Measure
from .trial import Trial


@dataclass(frozen=True)
class Job:
    """Everything that a worker needs to know about a trial: the content of `trial.json`."""

    RETIRED = ("trial_id",)  # written for people, and not read

    trial: Trial
    measure: Measure

    def dumps(self) -> str:
        return json.dumps({"trial_id": self.trial.id, **to_json(self)}, indent=1)

    @staticmethod
    def loads(text: str) -> Job:
        """Read a job. Raises ValueError for text that is none."""
        return from_json(Job, json.loads(text))


@dataclass(frozen=True)
class ProcessSlot:
    """Which process of a trial a worker is."""

    index: int = 0
    draw: int = 0
    cold: bool = True
    cores: tuple[int, ...] | None = None  # those to run on; None: all

    def dumps(self) -> str:
        return json.dumps(to_json(self))


@dataclass(frozen=True)
class Known:
    """What earlier processes of a trial have found, and the next need not."""

    # the artifact that was judged and not found wrong; a process that loads it skips the check
    checked: str | None = None
    load_checked: bool = False  # whether a process that loaded it was judged after its rounds
    steps_per_block: int | None = None
    timed: str | None = None  # the fingerprint of code that need not be timed again

    @property
    def is_repeated(self) -> bool:
        """Whether an earlier process has checked code of this draw, and measured its memory and the
        time of the host.
        """
        return self.checked is not None


@dataclass(frozen=True)
class Phase:
    """The worker has begun this phase, or goes on with it."""

    name: Annotated[str, PHASES]
    note: str = ""  # what it does for long, e.g. `no step for 60 s: ...`


# What a worker wants. SHARED: the device beside others that compute on it; SOLE: a share of it when
# nobody else has one, for the sake of its memory; DEVICE: that nobody else computes on it; RESUME:
# the same before others, to go on with a compilation or a step; ALONE: that nobody else runs.
NOTHING, SHARED, SOLE, DEVICE = "nothing", "shared", "sole", "device"
RESUME, ALONE = "resume", "alone"
SHARES = (SHARED, SOLE)


@dataclass(frozen=True)
class LeaseRequest:
    """The worker wants the device, or gives it back."""

    wants: Annotated[str, (NOTHING, *SHARES, DEVICE, RESUME, ALONE)]
    # when it asked, by `time.monotonic`, which all processes share; the driver may read it later
    asked_s: Amount | None = None


@dataclass(frozen=True)
class LeaseGrant:
    """The worker has what it wants until it asks for something else."""

    # by `time.monotonic`; later it may be stopped before it reads this. None: when it asked
    granted_s: Amount | None = None
    neighbours: tuple[int, ...] = ()  # process groups of other workers with memory on the device
    known: Known = Known()
    # workers were stopped that shared the device, which may have their work to do yet
    has_stopped_sharers: bool = False


@dataclass(frozen=True)
class LeaseNews:
    """What the driver tells a worker."""

    stopped_s: float = 0.0  # wall seconds for which it was stopped so far, waits left out
    grant: LeaseGrant | None = None

    def dumps(self) -> str:
        """One line of JSON."""
        return json.dumps(to_json(self)) + "\n"

    @staticmethod
    def loads(line: str) -> LeaseNews:
        return from_json(LeaseNews, json.loads(line))


@dataclass(frozen=True)
class Outcome:
    """The worker's last message. `process` holds what was measured before a failure, if
    anything.
    """

    status: Annotated[str, STATUSES]
    phase: Annotated[str, PHASES] | None = None
    message: str | None = None
    process: Process | None = None
    diagnostics: Diagnostics | None = None
    environment: Mapping[str, Json] = field(default_factory=dict)


Message = Phase | LeaseRequest | Outcome
_KINDS: Mapping[str, type[Message]] = {
    kind.__name__: kind for kind in (Phase, LeaseRequest, Outcome)
}


def encode(message: Message) -> str:
    """One line of JSON."""
    return json.dumps({"kind": type(message).__name__, **to_json(message)}) + "\n"


NOT_UNDERSTOOD = "the worker's answer cannot be understood"


class ProtocolError(ValueError):
    """A worker breaks the protocol; the text is a sentence about the worker."""


def decode(line: bytes) -> Message:
    """The inverse of `encode`. Raises ProtocolError for all other bytes."""
    try:
        data = parse_json(line.decode())
        kind = str(data.pop("kind", None)) if isinstance(data, dict) else ""
        if kind not in _KINDS:
            raise ValueError(f"unknown message {kind!r:.40}")
        return from_json(_KINDS[kind], data)
    except ValueError as error:
        raise ProtocolError(f"{NOT_UNDERSTOOD}: {error}") from error


AT = "at"  # the file in which the preflight check names its current model


@dataclass(frozen=True)
class Preflight:
    """The answer of the preflight check."""

    problems: tuple[str, ...]  # what cannot be built
    notes: tuple[str, ...]  # about what the trials will do
    # modes, each with a feature of an ablation that this torch cannot leave out or add in it
    lacking: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Package:
    """A piece of software. `note` says what to install or what is wrong; None when it works."""

    name: str
    version: str | None
    note: str | None = None


@dataclass(frozen=True)
class Software:
    """What the workers' interpreter has installed."""

    parts: tuple[Package, ...]
    torch_works: bool  # it can be imported, and uses the device
    bfloat16_native: bool | None = None  # of the GPU; None on a CPU
