"""What MLflow has of sweeps: runs, their artifacts, and the records that are in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sweeper.core.record import Record
from sweeper.tracking.reader import RunReader
from sweeper.tracking.store import default_uri
from sweeper.tracking.tracker import Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


def client_of(uri: str) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(uri)


def runs_of(client: MlflowClient, kind: str, query: str = "", sweep: str = "night") -> list[Run]:
    experiment = client.get_experiment_by_name("sweeper")
    where = (
        f"tags.sweep = '{sweep}' and tags.`sweeper.kind` = "
        f"'{kind}'{' and ' if query else ''}{query}"
    )
    return list(client.search_runs([experiment.experiment_id], where)) if experiment else []


def child(client: MlflowClient) -> Run:
    (run,) = runs_of(client, "trial")
    return run


def everything(client: MlflowClient, sweep: str) -> list[dict[str, Any]]:
    return [
        run.to_dictionary()
        for kind in ("sweep", "trial")
        for run in runs_of(client, kind, sweep=sweep)
    ]


def records_of(uri: str | None, sweep: str) -> list[Record]:
    """What the store gives back of a sweep, by label."""
    store = RunReader(uri or default_uri())
    found = [Record.loads(store.read(run, "record.json")) for run in store.sweep(sweep).trials]
    return sorted(found, key=lambda record: record.label)


def log(*logged: Record, uri: str | None = None) -> Tracker:
    tracker = Tracker(uri, "night")
    for record in logged:
        tracker.log(record)
    return tracker


def artifacts_of(client: MlflowClient, run: Run, folder: str | None = None) -> list[str]:
    return sorted(file.path for file in client.list_artifacts(run.info.run_id, folder))
