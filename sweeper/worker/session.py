"""One worker process from building to the last reading.

Where both arms are timed, the order is fixed: eager, with nothing compiled yet; compile; check;
then, with the device alone, warm up, time both arms in turn, and take the readings that belong to
no round; check the state after them. What a model and a script do differently are methods of
`Subject`. Until the warm-up of a model and in its last check, other workers may compile on the
host, and share the device from the first compiled step on. A script has the device alone
throughout, and is checked last.

The runs of a script's loop (`scripts.phases`), its trajectory and an inspection time no rounds, and
have short orders of their own.
"""

import torch

from sweeper.core.protocol import SHARED, Job
from sweeper.core.record import HostState

from . import models
from .compilation import artifacts, backends
from .measurement import memory
from .measurement.bench import Steps, complete
from .measurement.idle import IdleWait
from .model_subject import ModelSubject
from .models.formats import count_parameters
from .monitoring import environment
from .monitoring.host_monitor import HostMonitor
from .monitoring.round_monitor import RoundMonitor
from .process_log import ProcessLog
from .subject import Subject

# of the compile time: after a longer wait, the compiler's own timings are wrong
MAX_AWAY_FRACTION = 0.01


def measure_model(job: Job, log: ProcessLog) -> None:
    """Build a model and measure it."""
    begin(job, log)
    try:
        with log.enter("building"):
            subject = build(job, log)
            log.add(tokens_per_step=models.tokens_per_step(subject.built))
            subject.keep_state()
        complete(measure(subject, log))
    finally:
        failed = memory.count_failed_allocations()
        if failed is not None:
            log.add(failed_allocations=failed - log.check_failed_allocations)


def begin(job: Job, log: ProcessLog) -> None:
    """Import what the model needs, and wait for the device."""
    log.environment |= environment.describe()
    models.builder(job.trial.model.library).load(job.trial.model)
    # on a GPU Dynamo's `reset` imports it, for seconds in which nobody else would have the device
    import torch._inductor.cudagraph_trees

    log.lease.take()
    log.environment["device"] = environment.describe_device(torch.device(job.trial.device))


def build(job: Job, log: ProcessLog) -> ModelSubject:
    """Put the model on the device. Raises UnavailableError where the trial's backend or mode is not
    available.
    """
    device, lease = torch.device(job.trial.device), log.lease
    # the model's module has been imported: it may register a backend of its own
    backends.require_all(job.trial, device)
    monitor = RoundMonitor(device, lambda: lease.neighbours)
    subject = ModelSubject(job, device, monitor, lease)

    def leave_device() -> None:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        subject.meter.leave_device()
        if held_bytes := float(torch.cuda.memory_reserved()):  # zero on a CPU
            lease.held_bytes = max(held_bytes, lease.held_bytes or 0.0)

    lease.before_leaving = leave_device
    lease.after_returning = subject.meter.return_to_device
    lease.may_share = subject.meter.knows_own
    lease.await_idle = IdleWait(device).wait
    log.settings |= subject.settings()
    log.parameters |= count_parameters(subject.built.module)
    return subject


def measure(subject: Subject, log: ProcessLog) -> Steps[None]:
    """Time both arms of a subject that is built: the order of events for models and scripts."""
    with log.enter("eager"):
        yield from subject.run_eager(log)
    with log.enter("compiling"):
        yield from _run_first_steps(subject, log)
    if log.known.timed and log.known.timed == log.process.code_fingerprint:
        return
    subject.check_before_rounds(log)
    with log.enter("warming"):
        yield from subject.warm_up(log)
    with log.enter("measuring"):
        yield from subject.time_rounds(log)
    subject.finish_rounds(log)
    yield from subject.take_readings(log)
    yield from subject.check_at_end(log)


def _run_first_steps(subject: Subject, log: ProcessLog) -> Steps[None]:
    """Compile, and time the first compiled steps until they are steady."""
    lease, eager_s = log.lease, log.process.phases_s.get("eager", 0.0)
    subject.compile(log)
    lease.take(SHARED)
    host, away_s = HostMonitor(), lease.away_s

    def note(times_s: list[float]) -> None:
        log.add(first_steps_s=tuple(times_s))
        if subject.is_whole_process and len(times_s) == 1:
            since_start_s = environment.process_age_s() - lease.away_s
            log.add(time_to_first_step_s=since_start_s - eager_s)

    first_steps_s = yield from subject.bench.first_steps_s(subject.compiled, note)
    away_s = lease.away_s - away_s
    log.add(host=HostState(host.share_busy_by_others(away_s)))
    log.add(**artifacts.read_fingerprints())
    # otherwise the compiler's timings include the wait
    if away_s <= MAX_AWAY_FRACTION * sum(first_steps_s):
        log.add(compile_parts_s=artifacts.read_parts_s())
    subject.check_first_steps()
    subject.require_compiled()
