"""The accuracy check of a script's modules, on what the script gave them, when the script is needed
no more.

A module is judged by itself: its outputs, and the gradients of its own loss where it computes one,
else of a weighted mean of its outputs. The script's loss and its optimizer are eager in both arms.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from sweeper.core.protocol import Job
from sweeper.core.record import Accuracy
from sweeper.worker.accuracy.check import AccuracyCheck, Judged
from sweeper.worker.accuracy.mismatch import require_right
from sweeper.worker.accuracy.verdict import severity
from sweeper.worker.compilation.compiler import Function
from sweeper.worker.measurement.bench import Arm, ModelBench
from sweeper.worker.measurement.capture import OutputCapture
from sweeper.worker.measurement.step import Numerics, make_training_step
from sweeper.worker.models import Built
from sweeper.worker.models.batches import Batch, OwnLossOrMean, copy_batch, weighted_mean_of_floats
from sweeper.worker.models.formats import FormatWatch, find_precision, read_autocast
from sweeper.worker.process_log import ProcessLog

from .arms import call_eager
from .watch.patches import Patches

MAX_BATCHES = 2  # that are judged, of each module


class ModuleCall(NamedTuple):
    """What a module was called with, and the format of autocast at the time."""

    batch: Batch
    autocast: torch.dtype | None


class JudgedModule(Judged):
    """A module of a script, whose optimizer is eager in both arms."""

    def __init__(
        self,
        job: Job,
        device: torch.device,
        module: torch.nn.Module,
        compiled: Function,
        calls: Sequence[ModuleCall],
    ):
        self.measure, self.device = job.measure, device
        self.capture, autocast = OutputCapture(), calls[0].autocast
        context = Numerics(device, autocast, scaler=False).context
        batches = tuple(call.batch for call in calls)
        loss = self.capture.wrap(OwnLossOrMean(weighted_mean_of_floats))
        self.built = Built(module, batches[:MAX_BATCHES], batches[-1], loss, unseen_origin="given")
        self.bench = ModelBench(self.built.batches, device)
        make_step = partial(
            make_training_step, self.built, optimizer=None, scaler=None, context=context
        )
        self.eager = Arm("eager", make_step(partial(call_eager, module)), eager=True)
        self.compiled = Arm("compiled", make_step(compiled), eager=False)
        self.optimizers = []
        given = copy_batch(batches[0])
        # in which short format an eager call computes, whoever asks for it
        with torch.no_grad(), context(), FormatWatch() as watch:  # type: ignore[no-untyped-call]
            call_eager(module, *given.args, **given.kwargs)
        self.trial = replace(
            job.trial,
            workload="train",
            precision=find_precision(module, autocast, watch.found),
            device=device.type,
            model=replace(job.trial.model, dropout=True),  # as the script has it
        )


def check_modules(
    job: Job,
    device: torch.device,
    pairs: Sequence[tuple[torch.nn.Module, Function]],
    patches: Patches,
    log: ProcessLog,
) -> Iterator[None]:
    """Record what each module is called with in two more steps, then judge its compiled form.

    Raises MismatchError for one that is wrong.
    """
    recorded: dict[torch.nn.Module, list[ModuleCall]] = {module: [] for module, _ in pairs}

    def record(
        module: torch.nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        calls = recorded[module]
        if torch.is_grad_enabled() and len(calls) < MAX_BATCHES + 1:
            calls.append(ModuleCall(copy_batch(Batch(arguments, options)), read_autocast(device)))

    hooks = []
    for module in recorded:
        handle = module.register_forward_pre_hook(record, with_kwargs=True)
        hooks.append(patches.own("hook before the forward of a module", handle.remove))
    yield
    yield
    patches.undo(*hooks)
    # an optimizer's step may be called by a hook of the backward pass, where gradients are off
    with torch.enable_grad(), _leave_out_hooks(recorded):
        found = [
            AccuracyCheck(JudgedModule(job, device, module, compiled, calls)).judge(log.enter)
            for module, compiled in dict(pairs).items()
            if (calls := recorded[module])
        ]
    if not recorded:
        why = "the script compiles functions, and no module that could be judged by itself"
        found = [Accuracy(None, None, why)]
    elif len(found) < len(recorded):
        why = "a compiled module was not called in the steps that were recorded"
        found.append(Accuracy(None, None, why))
    worst = max(found, key=lambda one: severity(one.passed))
    log.add(accuracy=worst)
    require_right(worst)


@contextmanager
def _leave_out_hooks(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Leave out what the script does with a gradient when it is complete: it may train by it, and
    drop it.
    """
    hooks = []
    for module in modules:
        hooks += [one._post_accumulate_grad_hooks or {} for one in module.parameters()]
    kept = [dict(one) for one in hooks]
    for one in hooks:
        one.clear()
    try:
        yield
    finally:
        for one, before in zip(hooks, kept, strict=True):
            one.update(before)
