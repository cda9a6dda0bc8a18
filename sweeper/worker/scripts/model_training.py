"""Trains a model of sweeper's in one of several processes (`parallel`), in a plain loop on batches
that are on the device. It stands in the place of a script, and is measured as one.

Each rank draws from a seed of its own, so its batches are its own; the weights are those of rank 0.
"""

import itertools
import os

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from sweeper.core.protocol import Job
from sweeper.worker import models
from sweeper.worker.compilation import backends
from sweeper.worker.compilation.compiler import find_repeated
from sweeper.worker.failures import EagerError
from sweeper.worker.measurement import step
from sweeper.worker.models.batches import name_loss
from sweeper.worker.models.formats import count_parameters
from sweeper.worker.process_log import ProcessLog

from .ranks import Ranks
from .watch.script_runner import EndOfScript


def train(job: Job, log: ProcessLog, ranks: Ranks) -> None:
    """Train the model of a job until the loop is ended from outside.

    Raises UnavailableError for what is not here, EagerError for a model without parameters to
    train, and whatever building or wrapping the model raises.
    """
    device = torch.device(job.trial.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    models.builder(job.trial.model.library).load(job.trial.model)
    backends.require_all(job.trial, device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        _run_steps(job, device, log, ranks)
    except EndOfScript:
        # not after a failure, of which the others should not hear first
        distributed.destroy_process_group()
        raise


def _run_steps(job: Job, device: torch.device, log: ProcessLog, ranks: Ranks) -> None:
    trial = job.trial
    with log.enter("building"):
        numerics = step.Numerics.choose(trial, device)
        built = models.build(trial, job.measure.seed + distributed.get_rank(), device)
        log.parameters |= count_parameters(built.module)
        if tokens := models.tokens_per_step(built):
            log.add(tokens_per_step=sum(ranks.share("tokens", tokens)))
        module = _wrap(trial.parallel, built.module)
        optimizer = step.make_optimizer(trial, module, numerics.scaler)
    if optimizer is None:
        raise EagerError("the model has no parameters to train")
    log.settings |= step.describe_step(trial, built, numerics)
    log.settings |= step.describe_optimizer(trial, optimizer)
    scaler = numerics.make_scaler()
    run = step.make_training_step(built, module, optimizer, scaler, numerics.context)
    batches = itertools.cycle(built.batches)
    run(next(batches))
    log.settings["loss"] = name_loss(built.loss)  # which one an output decides shows in a step
    for batch in batches:
        run(batch)


def _wrap(parallel: str, module: torch.nn.Module) -> torch.nn.Module:
    """Wrap a module for all ranks, and give them the weights and buffers of rank 0."""
    if parallel == "ddp":
        return DistributedDataParallel(module)
    from torch.distributed.fsdp import fully_shard

    for tensor in (*module.parameters(), *module.buffers()):
        distributed.broadcast(tensor.detach(), 0)
    for part in (*find_repeated(module), module):
        fully_shard(part)
    return module
