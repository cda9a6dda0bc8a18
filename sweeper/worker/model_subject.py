"""A model as a subject of measurement: its steps in both arms, and what is asked of them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from sweeper.core.protocol import ALONE, SHARED, Job
from sweeper.core.serialization import Json

from .accuracy.check import AccuracyCheck, Judged
from .accuracy.mismatch import require_right
from .compilation import compiler
from .compilation.counters import CompileCounters
from .compilation.lease_breaks import LeaseBreaks
from .compilation.start import keep_start
from .failures import EagerError, Failure, MismatchError, NotCompiledError, try_reading
from .lease import Lease
from .measurement import memory, step
from .measurement.bench import Arm, ModelBench, Steps, freeze_objects
from .measurement.capture import OutputCapture
from .measurement.readings import note_memory
from .models import Built, build, read_attention
from .models.batches import find_tensors, name_loss
from .models.decoding import CachedDecoder
from .monitoring.round_monitor import RoundMonitor
from .process_log import ProcessLog
from .subject import Subject

# before anything is compiled; the warm-up follows when this process has the device alone
EAGER_STEPS = 3
FLEX_ATTENTION = "flex_attention"  # compiled by transformers itself at its first call in eager


class ModelSubject(Judged, Subject):
    """A model whose steps are calls of ours, on batches of ours.

    Both arms have one optimizer and one scaler; where the optimizer's step is compiled, each arm
    has its own, because Dynamo changes how an optimizer keeps its state.
    """

    bench: ModelBench

    def __init__(self, job: Job, device: torch.device, monitor: RoundMonitor, lease: Lease) -> None:
        self.trial, self.measure = job.trial, job.measure
        self.device, self.monitor, self._lease = device, monitor, lease
        self.meter = memory.Meter(device, monitor.gpu.own_bytes)
        self.numerics = step.Numerics.choose(self.trial, device)
        monitor.set_baseline()
        built = build(self.trial, self.measure.seed, device)
        if isinstance(built.module, CachedDecoder):
            with self.numerics.context():  # which chooses the number format of the cache
                built.module.fill()
        self._set_by_model = monitor.read_changed_flags()
        monitor.set_baseline()  # what the model's own code sets counts in both arms
        self.capture = OutputCapture()
        self._loss = built.loss
        # the loss is compiled with the step, so it is not wrapped
        whole_step = self.trial.compile.scope == "step"
        self.built = built if whole_step else replace(built, loss=self.capture.wrap(built.loss))
        self.bench = ModelBench(built.batches, device, lease.clock, built.num_sizes)
        self._trains = self.trial.workload == "train"
        self.optimizers: list[torch.optim.Optimizer | None] = []
        self._scalers: list[torch.amp.GradScaler | None] = []
        self._add_optimizer()
        monitor.read_gradient_scales = self.read_gradient_scales
        compiles_kernels = read_attention(built.module) == FLEX_ATTENTION
        eager_step = self._make_step(built.module)
        self.eager = Arm("eager", eager_step, True, compiles_kernels=compiles_kernels)

    def _add_optimizer(self) -> None:
        optimizer = None
        if self._trains:
            optimizer = step.make_optimizer(self.trial, self.built.module, self.numerics.scaler)
        self.optimizers.append(optimizer)
        self._scalers.append(self.numerics.make_scaler())

    def _make_step(
        self, module: Callable[..., object], built: Built | None = None
    ) -> Callable[..., object]:
        """A step of the module, or of its compiled form, with the optimizer that was added last.

        `built` has the loss where that is another one.
        """
        return step.make_step(
            self.trial,
            built or self.built,
            module,
            self.optimizers[-1],
            self._scalers[-1],
            self.numerics.context,
        )

    def keep_state(self) -> None:
        """Keep the state in which the model was built, before any step changes it."""
        self.check = AccuracyCheck(self)

    def run_eager(self, log: ProcessLog) -> Steps[None]:
        self.bench.keeps_result = self._trains
        yield from self.bench.run(self.eager, 1)
        self.bench.keeps_result = False
        self.bench.first_loss = self.bench.take_size()
        yield from self.bench.run(self.eager, self.bench.round_up(EAGER_STEPS) - 1)
        self._require_finite(self.eager, EagerError)
        # which one an output decides shows in the first step
        log.settings["loss"] = name_loss(self._loss) if self._trains else None
        if not log.known.is_repeated:
            self._measure_memory(self.eager, log)

    def compile(self, log: ProcessLog) -> None:
        log.counters = CompileCounters(keep_compiled=self.eager.compiles_kernels)
        self.compile_arm(log.counters)
        LeaseBreaks(log.lease).begin()

    def compile_arm(self, counters: CompileCounters) -> None:
        """Make the compiled arm, which is eager as well with mode=eager; the compiler itself runs
        in its first step.
        """
        self.counters = counters
        self.monitor.read_programs = lambda: counters.programs
        counters.begin()
        trial, module = self.trial, self.built.module
        if trial.compile.has_optimizer:
            self._add_optimizer()
        match trial.compile.scope:
            case "step":
                compiled_step = compiler.compile_function(self._make_step(module), trial, counters)
            case "optimizer":
                compiler.compile_update(self.optimizers[-1], trial, counters)
                compiled_step = self._make_step(module)
            case "loss":
                loss = self.capture.wrap(compiler.compile_function(self._loss, trial, counters))
                compiled_step = self._make_step(module, replace(self.built, loss=loss))
            case _:
                # a program that is loaded here has guards for the contexts in which it is loaded
                with torch.inference_mode(trial.workload == "inference"), self.numerics.context():
                    compiled = compiler.compile_function(module, trial, counters)
                compiled_step = self._make_step(compiled)
        marks_steps = compiler.uses_cuda_graphs(trial, self.device)
        self.compiled = Arm(
            "compiled",
            compiled_step,
            trial.mode == "eager",
            marks_steps,
            self.eager.compiles_kernels,
        )

    def check_first_steps(self) -> None:
        self.counters.reset_run_counts()
        keep_start(self.trial.compile.start)
        self._require_finite(self.compiled, MismatchError, ", eager does not")

    def require_compiled(self) -> None:
        if self.trial.mode != "eager" and (reason := self.counters.explain_not_compiled()):
            raise NotCompiledError(reason)

    def check_before_rounds(self, log: ProcessLog) -> None:
        """Judge the compiled step, unless an earlier process has judged the same code."""
        freeze_objects()
        if log.known.checked is None or log.known.checked != log.process.artifact:
            self._require_right(log)
        self._checked = self.counters.programs
        compiler.end_compile_workers()
        log.lease.take(ALONE)

    def time_rounds(self, log: ProcessLog) -> Steps[None]:
        """Raise EagerError where both arms diverge in training, MismatchError where compiled does.

        Training on random labels may diverge. The arms share their parameters, so eager restarts
        from the initial state, and takes twice as many steps: rounding decides when it diverges.
        """
        yield from super().time_rounds(log)
        if self.is_finite(self.compiled):
            return
        steps = 2 * self.bench.num_steps
        self.check.restore()
        for scaler in filter(None, self._scalers):
            scaler.update(step.SCALE)  # at zero it leaves out every step
        self.bench.run(self.eager, steps)
        if not self.is_finite(self.eager):
            raise EagerError(f"the loss of eager alone is NaN or infinite after {steps} steps")
        raise MismatchError(
            "the compiled step gives NaN or infinity after the rounds, eager alone does not"
        )

    def finish_rounds(self, log: ProcessLog) -> None:
        """Measure the compiled arm's memory."""
        if log.known.is_repeated:
            return
        with log.enter("memory"):
            # what only the eager arm keeps is not the compiled arm's memory
            if self.trial.compile.has_optimizer and self.optimizers[0] is not None:
                self.optimizers[0].state.clear()
            self._measure_memory(self.compiled, log)

    def check_at_end(self, log: ProcessLog) -> Iterable[None]:
        """Judge in the state after all steps, and all again where what was timed is not what was
        judged.
        """
        was_left_out = log.process.accuracy is None
        is_other = was_left_out and log.known.checked != log.process.artifact
        again = is_other or self.counters.programs != self._checked
        if again or not was_left_out or not log.known.load_checked:
            log.lease.take(SHARED)
            self._require_right_later(log)  # first: the check leaves the model as it was built
        if again:
            self._require_right(log)
        return ()

    def _require_right(self, log: ProcessLog) -> None:
        """Raise MismatchError unless the compiled step passes the check, or cannot be judged."""
        with _watching_memory(log):
            accuracy = self.check.judge(log.enter)
        log.add(accuracy=accuracy)
        if accuracy.random_in_step and not self.trial.model.dropout:
            log.settings["random_numbers"] = "drawn in a step, although dropout is off"
        require_right(accuracy)

    def _require_right_later(self, log: ProcessLog) -> None:
        """Raise MismatchError where the compiled step is wrong in the state that it is in."""
        with _watching_memory(log):
            accuracy = self.check.judge_later(log.enter)
        if accuracy.passed is False:
            log.add(accuracy=accuracy)
            require_right(accuracy)

    def _measure_memory(self, arm: Arm, log: ProcessLog) -> None:
        self.monitor.gpu.take_reading()
        is_shared = self.monitor.gpu.is_shared()

        def run(steps: int) -> None:
            self.bench.run(arm, self.bench.round_up(steps))

        reading = try_reading(partial(self.meter.measure, run))
        note_memory(log, arm.name, reading, is_shared)

    def read_gradient_scales(self) -> tuple[float, ...]:
        return tuple(scaler.get_scale() for scaler in self._scalers if scaler is not None)

    def compiled_optimizer(self, arm: Arm) -> torch.optim.Optimizer | None:
        """The optimizer of an arm where it is part of what is compiled; else None."""
        if not self.trial.compile.has_optimizer:
            return None
        return self.optimizers[0 if arm is self.eager else -1]

    def heeds_switches(self) -> bool:
        """Whether the compiled step calls torch's convolutions, which read torch's switches in each
        call.
        """
        return self.device.type == "cuda" and compiler.calls_convolutions(self.trial, self.device)

    def has_neighbours(self) -> bool:
        return self._lease.may_have_neighbours

    def make_room(self) -> bool:
        return self._lease.take_sole_share()

    def gradient_factor(self) -> float:
        """Return the factor by which gradients are still scaled after a step, where no optimizer
        unscales them.
        """
        scales = self.read_gradient_scales()
        return scales[-1] if scales and self.optimizers[0] is None else 1.0

    def settings(self) -> dict[str, Json]:
        """The settings that are equal in both arms, with the values that they have on this
        device.
        """
        set_by_model = [f"{name}={value}" for name, value in self._set_by_model.items()]
        return {
            **self.monitor.torch_flags,
            "set_by_model": ", ".join(set_by_model) or None,
            **step.describe_step(self.trial, self.built, self.numerics),
            **({"eager_compiles": FLEX_ATTENTION} if self.eager.compiles_kernels else {}),
            **step.describe_optimizer(self.trial, self.optimizers[0]),
        }

    def is_finite(self, arm: Arm) -> bool:
        """Whether the loss of a step is finite, or in inference its output has no NaN; infinity may
        be a mask.
        """
        wrong = (lambda tensor: ~torch.isfinite(tensor)) if self._trains else torch.isnan
        return not any(wrong(tensor).any() for tensor in find_tensors(self.bench.run_one(arm)))

    def _require_finite(self, arm: Arm, failure: type[Failure], other: str = "") -> None:
        if not self.is_finite(arm):
            place = self.check.find_infinite(arm)
            raise failure(f"the {arm.name} step gives NaN or infinity{place}{other}")


@contextmanager
def _watching_memory(log: ProcessLog) -> Iterator[None]:
    """Note what a check, which is the body, needs, and count the allocations that fail in it as
    its own: it tries again with less memory.
    """
    before = memory.count_failed_allocations() or 0
    memory.reset_peak()
    try:
        yield
    finally:
        log.check_failed_allocations += (memory.count_failed_allocations() or 0) - before
        if peak_bytes := float(torch.cuda.max_memory_allocated()):  # zero on a CPU
            log.add(check_peak_bytes=max(peak_bytes, log.process.check_peak_bytes or 0.0))
