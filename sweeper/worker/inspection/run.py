"""Inspects what the compiler does with a trial: a report by tlparse and a summary, as files.

Nothing is timed here, so torch may write all that it can tell.
"""

import os
import shutil
from pathlib import Path

from sweeper.core.files import write_text
from sweeper.core.protocol import Job
from sweeper.worker.compilation import artifacts
from sweeper.worker.failures import describe_error
from sweeper.worker.measurement.bench import complete
from sweeper.worker.model_subject import EAGER_STEPS
from sweeper.worker.process_log import ProcessLog
from sweeper.worker.session import begin, build

from . import trace
from .summary import Inspected, write_summary


def inspect(folder: Path, job: Job, log: ProcessLog) -> None:
    """Run the phases of an inspection, and write its files to `folder`."""
    from torch._dynamo.utils import get_compilation_metrics, set_compilation_metrics_limit

    # torch is imported: processes that are started later write elsewhere
    traced = Path(os.environ.pop("TORCH_TRACE"))
    begin(job, log)
    with log.enter("building"):
        subject = build(job, log)
    with log.enter("eager"):
        subject.bench.run(subject.eager, subject.bench.round_up(EAGER_STEPS))
    with log.enter("compiling"):
        set_compilation_metrics_limit(1000)  # of compilations that torch keeps, instead of 64
        failure: str | None = None
        try:
            subject.compile(log)
            complete(subject.bench.first_steps_s(subject.compiled))
            subject.counters.reset_run_counts()
            subject.bench.run(subject.compiled, 1)
        except Exception as error:
            failure = describe_error(error)
            raise
        finally:
            log.add(**artifacts.read_fingerprints())
            metrics = [item for item in get_compilation_metrics() if item.recompile_reason]
            folder.mkdir(parents=True, exist_ok=True)
            found = Inspected(
                job.trial,
                log.environment["versions"],
                subject.counters.report(),
                log.process.code_fingerprint,
                log.known.timed,
                [f"{item.compile_id} since {item.recompile_reason}" for item in metrics],
                None if failure else subject.counters.explain_not_compiled(),
                failure,
                trace.write_report(traced, folder / "tlparse"),
            )
            write_text(folder / "summary.md", write_summary(found))
            shutil.rmtree(traced)
