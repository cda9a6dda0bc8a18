"""The commands of a sweep, as its `sweep.json` keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeper.core.errors import explain_unreadable
from sweeper.core.serialization import get_mapping, parse_json
from sweeper.core.text import printable

from .sources import Source


@dataclass(frozen=True)
class Invocation:
    """A command of a sweep; what the manifest does not say is empty."""

    command: str
    started: str
    trial_ids: tuple[str, ...]  # that it planned
    measure: Mapping[str, Any]  # its settings of measuring

    @property
    def rounds(self) -> str | None:
        """How many rounds it asked for."""
        found = self.measure.get("rounds")
        return None if found is None else str(found)


@dataclass(frozen=True)
class Manifest:
    """The commands of a sweep in their order; `problem` says why `sweep.json` cannot be read."""

    sweep: str
    invocations: tuple[Invocation, ...] = ()
    problem: str = ""


def read_manifest(source: Source) -> Manifest:
    """Read `sweep.json`; a folder of records without one is not a sweep of ours."""
    sweep = printable(source.folder.resolve().name)
    try:
        manifest = parse_json(source.read_manifest())
    except FileNotFoundError:
        return Manifest(sweep)
    except (OSError, ValueError) as error:
        why = explain_unreadable(error)
        problem = f"sweep.json of {sweep}: {why}; when and how it was measured is not known"
        return Manifest(sweep, problem=printable(problem))
    found = manifest.get("invocations") if isinstance(manifest, Mapping) else None
    if not isinstance(found, list):
        return Manifest(sweep)
    return Manifest(sweep, tuple(_read(item) for item in found if isinstance(item, Mapping)))


def _read(invocation: Mapping[str, Any]) -> Invocation:
    command, plan = invocation.get("command"), invocation.get("plan")
    planned = plan if isinstance(plan, list) else []
    return Invocation(
        command if isinstance(command, str) else "",
        str(invocation.get("started", "")),
        tuple(str(item.get("trial_id")) for item in planned if isinstance(item, Mapping)),
        get_mapping(invocation, "settings", "measure"),
    )
