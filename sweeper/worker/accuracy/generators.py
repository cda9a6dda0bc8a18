"""Does running something draw random numbers? Read off the states of the random generators before and after.

A dropout of rate zero or in evaluation mode draws nothing (torch 2.13), so "dropout is off" can be measured. Not seen:
numbers from a generator that the model made for itself, and draws whose state is put back (`torch.random.fork_rng`).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch


class GeneratorStates(NamedTuple):
    """The states of the generators that everything draws from unless it is told otherwise; compare with `==`."""

    torch_cpu: bytes
    accelerator: bytes  # of one device: its seed and offset; empty on the CPU
    python: object
    numpy: object  # None while nothing has imported numpy.random


def read_states(device: torch.device) -> GeneratorStates:
    """Read the states; that neither moves them nor waits for the device."""
    accelerator = b"" if device.type == "cpu" else _to_bytes(torch.get_device_module(device).get_rng_state(device))
    return GeneratorStates(_to_bytes(torch.get_rng_state()), accelerator, random.getstate(), _read_numpy())


def draws_random(run: Callable[[], object], device: torch.device) -> bool:
    """Run something, and say whether the state of any generator moved; it stays where `run` has left it.

    `run` is to be eager: a recorded CUDA graph counts in its own way.
    """
    before = read_states(device)
    run()
    return read_states(device) != before


def _to_bytes(state: torch.Tensor) -> bytes:
    return bytes(state.cpu().tolist())


def _read_numpy() -> object:
    module = sys.modules.get("numpy.random")
    if module is None:
        return None
    state = module.get_state(legacy=False)
    return repr({name: getattr(value, "tolist", lambda value=value: value)() for name, value in _flatten(state)})


def _flatten(state: dict[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """The entries of nested dicts, each by its path."""
    found: list[tuple[str, object]] = []
    for name, value in state.items():
        found += _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)]
    return found
