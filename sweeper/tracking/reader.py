"""`RunReader` reads records back from MLflow, a few at the same time.

Try: `python -m sweeper.report NAME --tracking-uri http://127.0.0.1:5000`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sweeper.core.files import MAX_JSON_BYTES, open_inside
from sweeper.core.system.leftovers import make_temporary

from . import runs, store
from .store import TrackingError, translate_errors

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

# as many as a server answers at the same time by default (`mlflow server --workers`)
CALLS_AT_ONCE = 4
MAX_AHEAD = 32  # results that wait to be taken
CHUNK_BYTES = 1 << 20

T = TypeVar("T")
R = TypeVar("R")


def map_concurrently(call: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield what a call that waits for a server returns for each item, in order. Raises what a call
    raises.
    """
    remaining = iter(items)
    with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
        while batch := list(islice(remaining, MAX_AHEAD)):
            yield from pool.map(call, batch)


class StoredRun(NamedTuple):
    """A run and where its artifacts lie."""

    run_id: str
    name: str  # of a trial's run, the label
    trial_id: str | None  # None: the run of a sweep
    artifacts: str  # URI
    age: tuple[bool, int, int]  # the largest belongs to the run with the newest complete record


class StoredSweep(NamedTuple):
    """The runs of a sweep, one per trial: of several for one trial, the newest complete one."""

    parent: StoredRun | None
    trials: tuple[StoredRun, ...]


class RunReader:
    """An MLflow store, which is only read. All methods raise TrackingError when the store does not
    answer.
    """

    def __init__(self, uri: str) -> None:
        file = store.sqlite_file(uri)
        if file is not None and not file.exists():
            raise TrackingError(f"{file} does not exist")
        self.uri = uri
        self._client, self._experiment = store.connect(uri, runs.find_experiment)

    def sweeps(self) -> list[str]:
        """List the names of all sweeps."""
        filter_ = f"tags.`{runs.KIND}` = 'sweep' and tags.{runs.SWEEP} != ''"
        return sorted({run.data.tags[runs.SWEEP] for run in self._search(filter_)})

    def sweep(self, name: str) -> StoredSweep:
        """Find the runs of a sweep. The result has none when the store does not know the sweep."""
        parent: StoredRun | None = None
        trials: dict[str, StoredRun] = {}
        for run in self._search(runs.build_sweep_filter(name)):
            info, tags = run.info, run.data.tags
            trial_id = tags.get(runs.TRIAL, "") if tags.get(runs.KIND) == "trial" else None
            age = (runs.RECORD in tags, info.end_time or 0, info.start_time or 0)
            found = StoredRun(info.run_id, info.run_name or "", trial_id, info.artifact_uri, age)
            if trial_id is None:
                parent = parent or found
            elif trial_id not in trials or trials[trial_id].age < age:
                trials[trial_id] = found
        return StoredSweep(parent, tuple(trials.values()))

    def read(self, run: StoredRun, name: str) -> str:
        """Read the text of an artifact. Raises OSError where it is missing or too large,
        UnicodeDecodeError.
        """
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        assert self._experiment is not None  # it has a run
        try:
            store.check_artifacts(self.uri, self._experiment.artifact_location, run.artifacts)
        except TrackingError as error:
            raise OSError(str(error)) from error
        try:
            with translate_errors(self.uri):
                # The client's `download_artifacts` first asks whether it is a folder, and keeps a
                # connection per run: 100 records take 14 s with it and 7 s this way.
                repository = get_artifact_repository(run.artifacts, self.uri)
                data = read_artifact(repository, name)
            return data.decode()
        except TrackingError as error:
            with translate_errors(self.uri):  # is the artifact missing, or the store down?
                names = [file.path for file in self._client.list_artifacts(run.run_id)]
            raise OSError(str(error) if name in names else f"no {name}") from error

    def _search(self, filter_: str) -> Iterator[Run]:
        if self._experiment is not None:
            with translate_errors(self.uri):
                yield from runs.search_runs(self._client, self._experiment.experiment_id, filter_)


def read_artifact(repository: ArtifactRepository, name: str) -> bytes:
    """Read a file of a run. Raises OSError where it is too large, which whoever writes to the store
    decides.
    """
    from mlflow.store.artifact.http_artifact_repo import HttpArtifactRepository
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
    from mlflow.utils.rest_utils import http_request

    too_large = OSError(f"{name} has more than {MAX_JSON_BYTES:,} bytes")
    if isinstance(repository, LocalArtifactRepository):
        with open_inside(Path(repository.artifact_dir), name, MAX_JSON_BYTES) as file:
            return file.read()
    # a server may say any size, and send another
    if isinstance(repository, HttpArtifactRepository):
        data = bytearray()
        asked: Any = http_request(repository._host_creds, f"/{name}", "GET", stream=True)  # type: ignore[no-untyped-call]
        with asked as response:
            response.raise_for_status()
            for chunk in response.iter_content(CHUNK_BYTES):
                data += chunk
                if len(data) > MAX_JSON_BYTES:
                    raise too_large
        return bytes(data)
    sizes = {file.path: file.file_size or 0 for file in repository.list_artifacts()}
    if sizes.get(name, 0) > MAX_JSON_BYTES:
        raise too_large
    with make_temporary() as folder:
        copy = folder / name
        repository._download_file(name, str(copy))  # type: ignore[no-untyped-call]
        return copy.read_bytes()
