"""The accuracy check of a script's modules, on what the script gave them, when the script is needed
no more.

A module is judged by itself: its outputs, and the gradients of its own loss where it computes one,
else of a weighted mean of its outputs. The script's loss and its optimizer are eager in both arms.

Where a script trains in several ranks, each judges its modules on its own part of the batch, and
sends nothing to the others meanwhile. What the ranks do together is judged before, in the same
steps in all of them: `DistributedDataParallel` reduces gradients to the mean of those that the
ranks compute by themselves. So gradients after the reduction are compared with the mean of fp64
gradients in two parts, and the first part says in which rank one is wrong.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel

from sweeper.core.protocol import Job
from sweeper.core.record import Accuracy
from sweeper.worker.accuracy import rule
from sweeper.worker.accuracy.check import AccuracyCheck, Judged
from sweeper.worker.accuracy.mismatch import require_right
from sweeper.worker.accuracy.verdict import severity
from sweeper.worker.compilation.compiler import Function
from sweeper.worker.failures import Missing, try_reading
from sweeper.worker.measurement.bench import Arm, ModelBench
from sweeper.worker.measurement.capture import (
    HOST,
    Keep,
    Named,
    OutputCapture,
    StepTensors,
    name_gradients,
)
from sweeper.worker.measurement.step import Numerics, make_training_step
from sweeper.worker.models import Built
from sweeper.worker.models.batches import Batch, OwnLossOrMean, copy_batch, weighted_mean_of_floats
from sweeper.worker.models.formats import FormatWatch, find_precision, read_autocast
from sweeper.worker.process_log import ProcessLog

from .arms import call_eager
from .ranks import ALONE, Ranks
from .watch.modules import find_kind
from .watch.patches import Patches

MAX_BATCHES = 2  # that are judged, of each module
# of `fully_shard`, of the first FSDP, and batch normalisation over ranks: their forward waits for
# the other ranks
JOINT = {"FSDPModule", "FullyShardedDataParallel", "SyncBatchNorm"}
Forms = Mapping[torch.nn.Module, Function]  # the compiled form of each module


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
    forms: Forms,
    wrappers: Mapping[DistributedDataParallel, Function],
    patches: Patches,
    log: ProcessLog,
    ranks: Ranks = ALONE,
) -> Iterator[None]:
    """Record what each module is called with in two more steps, then judge its compiled form. Of
    several ranks, judge the reduction of `wrappers`, too.

    Raises MismatchError for one that is wrong in any rank.
    """
    recorded: dict[torch.nn.Module, list[ModuleCall]] = {
        module: [] for module in (*forms, *wrappers)
    }

    def record(
        module: torch.nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        calls = recorded[module]
        if torch.is_grad_enabled() and len(calls) < MAX_BATCHES + 1:
            calls.append(ModuleCall(copy_batch(Batch(arguments, options)), read_autocast(device)))

    hooks = patches.part()
    for module in recorded:
        handle = module.register_forward_pre_hook(record, with_kwargs=True)
        hooks.own("hook before the forward of a module", handle.remove)
    yield
    yield
    hooks.undo()
    joint = filter(None, (find_kind(module, JOINT) for module in recorded))
    if ranks.size > 1 and (kind := next(joint, None)):
        why = f"{kind} computes in all ranks at once, and no rank can be judged by itself"
        log.add(accuracy=Accuracy(None, None, why))
        return
    # an optimizer's step may be called by a hook of the backward pass, where gradients are off
    with torch.enable_grad(), _leave_out_hooks(recorded), ExitStack() as alone:
        together = [
            _judge_reduction(JudgedModule(job, device, module, compiled, calls), module, ranks)
            for module, compiled in wrappers.items()
            if all(ranks.share("recorded", bool(calls := recorded[module])))
        ]
        for module in recorded:
            for part in module.modules():
                if isinstance(part, DistributedDataParallel):
                    alone.enter_context(part.no_sync())
        found = [
            AccuracyCheck(JudgedModule(job, device, module, compiled, calls)).judge(log.enter)
            for module, compiled in forms.items()
            if (calls := recorded[module])
        ]
    if not forms:
        why = "the script compiles functions, and no module that could be judged by itself"
        found = [Accuracy(None, None, why)]
    elif not all(recorded.values()):
        why = "a compiled module was not called in the steps that were recorded"
        found.append(Accuracy(None, None, why))
    _conclude((*found, *together), ranks, log)


def _conclude(found: Sequence[Accuracy], ranks: Ranks, log: ProcessLog) -> None:
    """Keep the worst verdict of all ranks. Raises MismatchError where one is wrong."""
    worst = max(found, key=lambda one: severity(one.passed))
    verdicts = ranks.share("verdict", worst)
    wrong = [number for number, one in enumerate(verdicts) if one.passed is False]
    worst = max(verdicts, key=lambda one: severity(one.passed))
    log.add(accuracy=worst)
    require_right(worst, f"rank {wrong[0]}: " if 0 < len(wrong) < ranks.size else "")


def _judge_reduction(
    judged: JudgedModule, wrapper: DistributedDataParallel, ranks: Ranks
) -> Accuracy:
    """Judge the gradients of a compiled step after their reduction, by the mean of those that the
    ranks compute without. All ranks take the same steps; where one raises in a reduction, the
    others wait for it.
    """
    check, module = AccuracyCheck(judged), wrapper.module
    tolerance = rule.choose_tolerance(judged.trial, module)

    def take_gradients(arm: Arm) -> Named:
        check.restore()
        judged.bench.run_on(arm, copy_batch(judged.built.unseen))
        return name_gradients(module)

    def judge(arm: Arm) -> Accuracy:
        with wrapper.no_sync():
            own = [Keep().copy(take_gradients(arm)) for _ in range(2)]
        reduced = dict(take_gradients(arm))
        means, again = (_average(one, reduced, wrapper) for one in own)
        reference = StepTensors(means, "float64")
        repeated = rule.compare(again.items(), reference)  # attention on a GPU sums in any order
        bounds = rule.set_bounds(reference, (repeated,), None, tolerance)
        return rule.judge(rule.compare(reduced.items(), reference), bounds).accuracy

    eager, unknown = try_reading(partial(judge, judged.eager)), ""
    if isinstance(eager, Missing):
        unknown = f"no eager step in all ranks: {eager.reason}"
    elif not eager.passed:
        unknown = "in eager, reduced gradients are not the mean of the ranks'"
    if unknown := max(ranks.share("eager reduction", unknown)):  # of any rank
        return Accuracy(None, None, unknown)
    return replace(judge(judged.compiled), case="reduced over the ranks")


def _average(
    own: Mapping[str, torch.Tensor],
    reduced: Mapping[str, torch.Tensor],
    wrapper: DistributedDataParallel,
) -> dict[str, torch.Tensor]:
    """The mean over ranks of each gradient that a reduction gives, in fp64 on the host."""
    means = {}
    for name, tensor in reduced.items():
        mean = torch.zeros_like(tensor, dtype=torch.float64)
        if name in own:  # another rank may have it alone
            mean += own[name].to(mean)
        torch.distributed.all_reduce(mean, group=wrapper.process_group)
        means[name] = mean.to(HOST) / wrapper.process_group.size()
    return means


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
