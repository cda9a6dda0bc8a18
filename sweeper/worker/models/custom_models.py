"""A user's own model: `factory(batch_size, device) -> (module, inputs)` or `(module, inputs,
loss_fn)`.

`inputs` is a tuple or dict of tensors (or one tensor), or a list of such tuples or dicts, which are
batches of the same shapes: with three or more the last is kept for the check, and the others are
timed in turn. Of a single batch sweeper makes others, by moving and mixing the samples of floats
with two dimensions or more; whatever may carry structure stays as it is: whole numbers, booleans,
vectors, and masks with infinity.

`loss_fn(output)` gives a scalar. Without one the loss is `output.loss` where the model computes one
by itself, as those of transformers do from labels, and otherwise the mean of the floating-point
output.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from sweeper.core.trial import Model, Trial
from sweeper.worker.source_lines import describe_in_script

from . import Built, Examined, build_from_batches
from .batches import (
    MEAN,
    OUTPUT_LOSS,
    Batch,
    Loss,
    OwnLossOrMean,
    describe_tensors,
    make_batch,
    name_loss,
)

SHAPE = (
    "(module, inputs) or (module, inputs, loss_fn), inputs a tensor, a tuple or a dict of tensors, "
    "or a list of such tuples or dicts"
)


def names() -> None:
    """Return None: there is no list of factories."""


def examine(trial: Trial) -> Examined:
    """Call the factory once with the trial's batch size and device.

    Finds what is wrong with it or with what it returns, and on which loss the model of a user's own
    factory trains, as far as that shows before a first step.
    """
    name = trial.model.name
    try:
        factory = find_factory(name)
        try:
            returned = factory(trial.batch_size, torch.device(trial.device))
        except torch.OutOfMemoryError:
            return Examined()  # that is what the trial is for: it has a status
        except BaseException as error:  # noqa: BLE001  # a user's factory may do anything, that is the answer
            return Examined(
                [f"model.factory={name}: calling it failed: {describe_in_script(error)}"]
            )
        module, batches, loss = take_apart(returned, name)
    except ValueError as error:
        return Examined([str(error)])
    # factories of sweeper are those of conf/
    if trial.workload != "train" or name.startswith("sweeper."):
        return Examined()
    if (known := name_loss(loss)) is not None:
        return Examined(loss=known)
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(module, transformers.PreTrainedModel):
        return Examined(loss=f"{OUTPUT_LOSS} if the model gives one, else {MEAN}")
    # with one of these arguments a model of transformers computes its loss
    computes_loss = {"labels", "start_positions", "return_loss"} & batches[0].kwargs.keys()
    return Examined(loss=OUTPUT_LOSS if computes_loss else MEAN)


def load(model: Model) -> None:
    find_factory(model.name)


def build(trial: Trial, device: torch.device) -> Built:
    """Call the factory once, for a module and its batches.

    Raises ValueError when it returns anything but `SHAPE`.
    """
    name = trial.model.name
    module, batches, loss = take_apart(find_factory(name)(trial.batch_size, device), name)
    return build_from_batches(module, batches, loss, device)


def find_factory(name: str) -> Callable[[int, torch.device], Any]:
    """Import `package.module:function`. Raises ValueError when there is no such function."""
    module_name, _, function = name.partition(":")
    if not module_name or not function:
        raise ValueError(f"model.factory={name}: write package.module:function")
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:  # a user's module may do anything
        why = describe_in_script(error)
        raise ValueError(f"model.factory={name}: cannot import {module_name}: {why}") from error
    factory = getattr(module, function, None)
    if not callable(factory):
        raise ValueError(f"model.factory={name}: {module_name} has no function {function}")
    return factory  # type: ignore[no-any-return]


def take_apart(returned: Any, name: str) -> tuple[torch.nn.Module, list[Batch], Loss]:
    """Take apart what the factory returned.

    Raises ValueError for anything but `SHAPE`, and for batches that differ in more than their
    values.
    """
    demand = f"model.factory={name}: it must return {SHAPE}"
    if (
        not isinstance(returned, tuple)
        or len(returned) not in (2, 3)
        or not isinstance(returned[0], torch.nn.Module)
    ):
        raise ValueError(f"{demand}; it returned {_describe(returned)}")
    module, inputs, *rest = returned
    given, batches = [inputs], []
    # a list with a tensor in it is one batch
    if (
        isinstance(inputs, list)
        and inputs
        and all(isinstance(item, (tuple, Mapping)) for item in inputs)
    ):
        given = inputs
    for item in given:
        if (batch := make_batch(item)) is None:
            raise ValueError(f"{demand}; its inputs are {_describe(item)}")
        batches.append(batch)
    if isinstance(inputs, list) and given is not inputs:
        _require_arguments(module, batches[0], name)
    _require_equal_shapes(batches, name)
    if not rest or rest[0] is None:
        return module, batches, OwnLossOrMean()
    loss_fn = rest[0]
    if not callable(loss_fn):
        raise ValueError(f"{demand}; its loss_fn is {_describe(loss_fn)}")
    return module, batches, lambda output, _batch: loss_fn(output)


def _require_arguments(module: torch.nn.Module, batch: Batch, name: str) -> None:
    """Raise ValueError where a list that was meant as several batches is one that `forward` cannot
    take.
    """
    if type(module).__call__ is not torch.nn.Module.__call__:
        return
    try:
        takes = inspect.signature(module.forward)
    except ValueError:  # a program in TorchScript has none
        return
    try:
        takes.bind(*batch.args)
    except TypeError as error:
        raise ValueError(
            f"model.factory={name}: its inputs are a list with a tensor in it, which is one batch "
            f"of {len(batch.args)} arguments, and forward does not take them ({error}); several "
            "batches are a list of tuples or dicts, e.g. [(x1,), (x2,), (x3,)]"
        ) from error


def _require_equal_shapes(batches: list[Batch], name: str) -> None:
    first = describe_tensors(batches[0])
    for number, batch in enumerate(batches[1:], 2):
        other = describe_tensors(batch)
        for place in {**first, **other}:
            here, there = first.get(place, "nothing"), other.get(place, "nothing")
            if here != there:
                raise ValueError(
                    f"model.factory={name}: the batches of its inputs must have the same "
                    f"arguments, shapes and formats (vary.* is for sizes that change); at {place}, "
                    f"batch 1 has {here} and batch {number} has {there}"
                )


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(item).__name__ for item in value) or 'nothing'}"
    return f"a {type(value).__name__}"
