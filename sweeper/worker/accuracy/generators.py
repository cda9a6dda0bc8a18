"""Does running something draw random numbers? Read off the states of the random generators before
and after.

A dropout of rate zero or in evaluation mode draws nothing (torch 2.13), so "dropout is off" can be
measured. Not seen: draws whose state is put back (`torch.random.fork_rng`).
"""

import random
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch


class GeneratorStates(NamedTuple):
    """The states of the generators that everything draws from unless it is told otherwise; compare
    with `==`.
    """

    torch_cpu: bytes
    accelerator: bytes  # of one device: its seed and offset; empty on the CPU
    python: object
    numpy: object  # as its dictionary, with lists; None while nothing has imported numpy.random


def read_states(device: torch.device) -> GeneratorStates:
    """Read the states, without a wait for the device; they do not move."""
    accelerator, numpy = b"", None
    if device.type != "cpu":
        accelerator = _to_bytes(torch.get_device_module(device).get_rng_state(device))
    if (module := sys.modules.get("numpy.random")) is not None:
        numpy = _to_plain(module.get_state(legacy=False))
    return GeneratorStates(_to_bytes(torch.get_rng_state()), accelerator, random.getstate(), numpy)


def write_states(states: GeneratorStates, device: torch.device) -> None:
    """Put back what `read_states` has read of the same device."""
    torch.set_rng_state(_to_tensor(states.torch_cpu))
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(_to_tensor(states.accelerator), device)
    random.setstate(states.python)  # type: ignore[arg-type]
    if states.numpy is not None:
        sys.modules["numpy.random"].set_state(states.numpy)


def draws_random(
    run: Callable[[], object], device: torch.device, own: Iterable[torch.Generator] = ()
) -> bool:
    """Run something, and say whether the state of any generator moved, of its `own` too; it stays
    where `run` has left it.

    `run` is to be eager: a recorded CUDA graph counts in its own way.
    """

    def read() -> object:
        return read_states(device), [_to_bytes(generator.get_state()) for generator in own]

    before = read()
    run()
    return read() != before


def _to_bytes(state: torch.Tensor) -> bytes:
    return bytes(state.cpu().tolist())


def _to_tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _to_plain(value: Any) -> object:
    """Nested dictionaries with lists in the place of arrays, which `==` compares as a whole."""
    if isinstance(value, dict):
        return {name: _to_plain(item) for name, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value
