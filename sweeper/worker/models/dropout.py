"""Turns dropout off, whether it is a module or a rate that a forward hands to a function."""

import argparse
import dataclasses
import inspect
import types
from collections.abc import Iterable

import torch
from torch.nn.modules.dropout import _DropoutNd


def silence_dropout(module: torch.nn.Module) -> None:
    """Set every rate of dropout, drop-path, layer-drop and stochastic depth in the module tree to
    0.

    A rate is a float of a dropout module, or a float with "drop" in its name: of any module (timm's
    ghostnet calls `F.dropout(x, p=self.drop_rate)`) or of a configuration that a module holds.
    """
    seen: set[int] = set()
    for child in module.modules():
        name = type(child).__name__.lower()
        if isinstance(child, _DropoutNd) or "drop" in name or "stochasticdepth" in name:
            _silence(child, ("p", "prob", "rate"))  # beside every name with "drop" in it
        silence_rates(child, seen)


def has_dropout(module: torch.nn.Module) -> bool:
    """Whether a module has a rate of dropout above 0, its parts left out."""
    rates = [name for name in vars(module) if name == "p" or _names_dropout(name)]
    return any(_is_rate(getattr(module, name)) for name in rates)


def silence_rates(holder: object, seen: set[int]) -> None:
    """Silence a module or configuration, and the configurations in its attributes, unless their
    ids are in `seen`.
    """
    if id(holder) in seen:
        return
    seen.add(id(holder))
    values: dict[str, object]
    if isinstance(holder, dict):
        values = holder
        for name in filter(_names_dropout, list(holder)):
            if _is_rate(holder[name]):
                dict.__setitem__(holder, name, 0.0)  # also where a subclass is frozen
    else:
        values = vars(holder)
        _silence(holder, filter(_names_dropout, dir(holder)))
    for value in list(values.values()):
        if _is_configuration(value):
            silence_rates(value, seen)


def _silence(holder: object, names: Iterable[str]) -> None:
    """Set attributes to 0 that are rates; a property, which computes its value, is left alone."""
    for name in names:
        if _is_rate(inspect.getattr_static(holder, name, None)):
            object.__setattr__(holder, name, 0.0)  # also where a dataclass is frozen


def _names_dropout(name: object) -> bool:
    return isinstance(name, str) and "drop" in name.lower() and "keep" not in name.lower()


def _is_rate(value: object) -> bool:
    return isinstance(value, float) and 0 < value <= 1


def _is_configuration(value: object) -> bool:
    """Whether it is a plain holder of settings, and neither a module nor a class."""
    if isinstance(value, (dict, argparse.Namespace, types.SimpleNamespace)):
        return True
    if isinstance(value, (type, torch.nn.Module)) or not hasattr(value, "__dict__"):
        return False
    return dataclasses.is_dataclass(value) or type(value).__name__.lower().endswith("config")
