"""Records back from MLflow, a few files at a time.

Place in the flow: `tracking` has sent them; `report` reads them here when it is given `--tracking-uri`.

Try: `python -m sweeper.report NAME --tracking-uri http://127.0.0.1:5000`
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sweeper.tracking.runs import EXPERIMENT, KIND, RECORD, SWEEP, TRIAL, id_of, of_sweep, search
from sweeper.tracking.store import TrackingError, connect, explained, sqlite_file

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


# A server answers so many at once by default (`mlflow server --workers`).
CALLS_AT_ONCE = 4
MAX_AHEAD = 32  # results that wait to be taken

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(call: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """The results of a call that waits for a server, in the order of the items; what a call raises is raised."""
    pool = ThreadPoolExecutor(CALLS_AT_ONCE)
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(call, item))
            if len(waiting) > MAX_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class StoredRun:
    """A run, and the artifacts that it has."""

    run_id: str
    name: str  # of a trial, its label
    trial_id: str | None  # None: a sweep's run
    artifacts: str  # URI
    age: tuple[bool, int, int]  # the larger, the newer is what the run shows

    @staticmethod
    def of(run: Run) -> StoredRun:
        info, tags = run.info, run.data.tags
        trial_id = tags.get(TRIAL, "") if tags.get(KIND) == "trial" else None
        age = (RECORD in tags, info.end_time or 0, info.start_time or 0)
        return StoredRun(info.run_id, info.run_name or "", trial_id, info.artifact_uri, age)


@dataclass(frozen=True)
class StoredSweep:
    """The runs of a sweep; of several for one trial, the one that shows its newest state."""

    parent: StoredRun | None
    trials: tuple[StoredRun, ...]


class Store:
    """An MLflow store that is only read. Whatever is asked of it raises TrackingError when it does not answer."""

    def __init__(self, uri: str) -> None:
        file = sqlite_file(uri)
        if file is not None and not file.exists():
            raise TrackingError(f"{file} does not exist")
        self.uri = uri
        self._client, self._experiment_id = connect(uri, lambda client: (client, _experiment_id(client)))

    def sweeps(self) -> list[str]:
        """The names of all sweeps."""
        return sorted({run.data.tags[SWEEP] for run in self._search(f"tags.`{KIND}` = 'sweep' and tags.{SWEEP} != ''")})

    def sweep(self, name: str) -> StoredSweep:
        """The runs of a sweep; there are none when the store does not know it."""
        parent: StoredRun | None = None
        trials: dict[str, StoredRun] = {}
        for run in map(StoredRun.of, self._search(of_sweep(name))):
            if run.trial_id is None:
                parent = parent or run
            else:
                trials[run.trial_id] = max(trials.get(run.trial_id, run), run, key=lambda run: run.age)
        return StoredSweep(parent, tuple(trials.values()))

    def read(self, run: StoredRun, name: str) -> str:
        """The text of an artifact. Raises OSError when it is not there, UnicodeDecodeError when it is no text."""
        with tempfile.TemporaryDirectory() as folder:
            return self._download(run, name, Path(folder)).read_text(encoding="utf-8")

    def _download(self, run: StoredRun, name: str, folder: Path) -> Path:
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        file = folder / Path(name).name
        try:
            with explained(self.uri):
                # What repositories of artifacts are there to implement. Their own `download_artifacts` asks first
                # whether it is a folder, which takes as long again; the client's keeps a connection for each run.
                get_artifact_repository(run.artifacts, self.uri)._download_file(name, str(file))  # type: ignore[no-untyped-call]
        except TrackingError as error:
            with explained(self.uri):  # is it the file or the store?
                names = [file.path for file in self._client.list_artifacts(run.run_id)]
            raise OSError(str(error) if name in names else f"no {name}") from error
        return file

    def _search(self, filter_: str) -> Iterator[Run]:
        if self._experiment_id is not None:
            with explained(self.uri):
                yield from search(self._client, self._experiment_id, filter_)


def _experiment_id(client: MlflowClient) -> str | None:
    experiment = client.get_experiment_by_name(EXPERIMENT)
    return id_of(experiment) if experiment else None
