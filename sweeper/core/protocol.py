"""Messages between driver and worker.

The driver writes a `Job` to `trial.json`. The worker answers on a pipe, in JSON lines: a `Phase` for each phase that it
enters, a `LeaseRequest` when it wants the device or gives it back, and one `Outcome` at its end. The driver answers
each request for the device with a `LeaseGrant` on the worker's standard input.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeper.core.host import Part
from sweeper.core.record import PHASES, STATUSES, Diagnostics, PerArm, Process
from sweeper.core.serialization import Json, from_json, to_json
from sweeper.core.settings import Measure
from sweeper.core.trial import Trial


@dataclass(frozen=True)
class Job:
    """Everything that a worker needs to know about a trial: the content of `trial.json`."""

    trial: Trial
    measure: Measure

    def dumps(self) -> str:
        return json.dumps({"trial_id": self.trial.id, **to_json(self)}, indent=1)

    @staticmethod
    def loads(text: str) -> Job:
        """Read a job. Raises ValueError for text that is none."""
        data = json.loads(text)
        data.pop("trial_id", None)
        return from_json(Job, data)


@dataclass(frozen=True)
class Phase:
    """The worker has begun this phase."""

    name: str


NOTHING, DEVICE, ALONE = "nothing", "device", "alone"


@dataclass(frozen=True)
class LeaseRequest:
    """The worker wants to share the device, wants it alone, or gives it back."""

    wants: str


@dataclass(frozen=True)
class LeaseGrant:
    """The worker has the device until it gives it back."""

    stopped_s: float = 0.0  # wall seconds for which it was stopped since it last gave the device back, waits left out
    neighbours: tuple[int, ...] = ()  # process groups of other workers with memory on the device

    def dumps(self) -> str:
        """One line of JSON."""
        return json.dumps(to_json(self)) + "\n"

    @staticmethod
    def loads(line: str) -> LeaseGrant:
        return from_json(LeaseGrant, json.loads(line))


@dataclass(frozen=True)
class Outcome:
    """The worker's last message. `process` holds what was measured before a failure, if anything."""

    status: str
    phase: str | None = None
    message: str | None = None
    process: Process | None = None
    diagnostics: Diagnostics | None = None
    environment: Mapping[str, Json] = field(default_factory=dict)


SURROGATES = re.compile("[\ud800-\udfff]")  # JSON can name them, but they are no characters
MAX_DEPTH = 30  # of nested values; a usual answer has eight
TOO_DEEP = f"its values are nested deeper than {MAX_DEPTH} levels"
MAX_DIGITS = 20  # of whole numbers: 64 bits and a sign
MAX_MEASURED = 1e18  # seconds, bytes, joules or a number of kernels
NOT_NEGATIVE = (
    "index", "draw", "compile_s", "device_time_s", "device_kernels", "device_step_s", "device_gap_s", "host_step_s",
    "failed_allocations", "allocator_peak_bytes", "tokens_per_step", "energy_j", "waited_s",
)  # fmt: skip

Message = Phase | LeaseRequest | Outcome
_KINDS: Mapping[str, type[Message]] = {kind.__name__: kind for kind in (Phase, LeaseRequest, Outcome)}


def encode(message: Message) -> str:
    """One line of JSON."""
    return json.dumps({"kind": type(message).__name__, **to_json(message)}) + "\n"


def decode(line: str) -> Message:
    """The inverse of `encode`. Text that is not valid Unicode is made so.

    Raises ValueError for anything else: other keys and types, numbers that are not finite, measurements that cannot be,
    unknown names, and values that are nested too deep.
    """
    try:
        data = json.loads(line, parse_constant=_parse_float, parse_float=_parse_float, parse_int=_parse_int)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    data = _clean(data)
    kind = str(data.pop("kind", None)) if isinstance(data, dict) else ""
    if kind not in _KINDS:
        raise ValueError(f"unknown message {kind!r:.40}")
    message = from_json(_KINDS[kind], data)
    if isinstance(message, LeaseRequest):
        _require_one_of("wants", message.wants, (NOTHING, DEVICE, ALONE))
    elif isinstance(message, Phase):
        _require_one_of("phase", message.name, PHASES)
    else:
        _check_outcome(message)
    return message


def _parse_float(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"the number {text:.40} is not finite")
    return number


def _parse_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"the number {text:.40} is too large")
    return int(text)


def _clean(value: Any, depth: int = 0) -> Any:
    """Replace what is no valid Unicode, such as file names of other encodings; see that nothing is nested too deep."""
    if depth > MAX_DEPTH:
        raise ValueError(TOO_DEEP)
    if isinstance(value, str):
        return SURROGATES.sub("\ufffd", value)
    if isinstance(value, list):
        return [_clean(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item, depth + 1) for key, item in value.items()}
    return value


def _require_one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} {value!r:.40} is not one of: {', '.join(allowed)}")


def _check_outcome(outcome: Outcome) -> None:
    """Raise ValueError for names that do not exist, and for measurements that cannot be."""
    _require_one_of("status", outcome.status, STATUSES)
    if outcome.phase is not None:
        _require_one_of("phase", outcome.phase, PHASES)
    process = outcome.process
    if process is None:
        return
    if process.steps_per_block is not None and process.steps_per_block < 1:
        raise ValueError(f"steps_per_block {process.steps_per_block} is less than 1")
    for timed in process.rounds:
        for time_s in (timed.eager_s, timed.compiled_s):
            if time_s is not None and not 0 < time_s < MAX_MEASURED:
                raise ValueError(f"a round of {time_s:g} s")
    for name in NOT_NEGATIVE:
        value = getattr(process, name)
        for number in (value.eager, value.compiled) if isinstance(value, PerArm) else (value,):
            if number is not None and not 0 <= number < MAX_MEASURED:
                raise ValueError(f"{name} {number:g} cannot be")


AT = "at"  # the file in which the preflight check names its current model


@dataclass(frozen=True)
class Software:
    """What the workers' interpreter has installed."""

    parts: tuple[Part, ...]
    backends: tuple[str, ...]  # to probe: those that torch lists, and those that a package would add
    torch_works: bool
    bfloat16_native: bool | None = None  # of the GPU; None on a CPU


@dataclass(frozen=True)
class Verdict:
    """The result of a training step compiled by a backend in a mode."""

    backend: str
    mode: str
    verdict: str  # ok, missing or broken
    reason: str | None = None  # what to install, or the first line of what went wrong
    first_step_s: float | None = None  # the first compiled step, compilation included
