"""Backends on this machine: whether one can be asked for, its compiler, and where it silently falls
back.

A name in torch's list proves nothing: its package may be missing or not fit this torch, and
OpenVINO goes on in native PyTorch or Inductor where it fails.
"""

import importlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import lookup_backend
from torch._functorch.compilers import ts_compile

from sweeper.core.backends import GONE, NEEDS, WITHOUT_DYNAMO
from sweeper.core.errors import nearest
from sweeper.core.trial import Trial
from sweeper.worker.failures import UnavailableError, describe_error

from .heard_logs import HeardLogs

OPTIONS = {  # with which a backend is called
    # Without AOTAutograd, OpenVINO leaves symbols in Dynamo's shapes, and torch 2.13 fails to make
    # guards of them.
    "openvino": {"aot_autograd": True},
    # torch_tensorrt/dynamo/backend/backends.py: it would give the graph back where an engine cannot
    # be built.
    "tensorrt": {"pass_through_build_failures": True},
    "torch_tensorrt": {"pass_through_build_failures": True},
}
OPENVINO_LOG = "openvino.frontend.pytorch.torchdynamo"
# the parts of a model that OpenVINO could not run; it goes on without itself
fallback_log = HeardLogs(
    (f"{OPENVINO_LOG}.backend", f"{OPENVINO_LOG}.execute"),
    logging.DEBUG,
    ("OpenVINO execution failed", "Failed in OpenVINO execution"),
)
FOR_DEBUGGING = ("_TESTING_ONLY", "_minifier_backend")  # end the names of torch's own tools
MODE_SINCE = {"lite": "2.10"}  # https://github.com/pytorch/pytorch/pull/167115


def require_all(trial: Trial, device: torch.device) -> None:
    """Raises UnavailableError where the backend or the mode of a trial is not available."""
    if trial.backend is not None:
        require(trial.backend, trial.workload, device.type)
        require_mode(trial.mode)


def require(name: str, workload: str, device: str) -> None:
    """Raises UnavailableError when the backend is missing, or can do nothing with this workload or
    device.
    """
    if name not in NEEDS:
        listed = torch._dynamo.list_backends(None)
        if name in (*WITHOUT_DYNAMO, *listed):
            return
        if name in GONE:
            raise UnavailableError(f"backend {name} is no more: {GONE[name]}")
        known = [one for one in listed if not one.endswith(FOR_DEBUGGING)]
        raise UnavailableError(
            f"torch has no backend {name}, and no installed package registers it; "
            f"{nearest(name, [*known, *WITHOUT_DYNAMO, *NEEDS])}"
        )
    needs = NEEDS[name]
    if needs.device not in (None, device):
        raise UnavailableError(f"backend {name} needs device={needs.device}, this is {device}")
    if needs.workload not in (None, workload):
        raise UnavailableError(
            f"backend {name} is for workload={needs.workload} alone, this is {workload}"
        )
    if needs.module is None:
        return
    try:
        importlib.import_module(needs.module)
    # a package made for another torch raises anything, or leaves
    except (Exception, SystemExit) as error:
        package = needs.module.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name in (package, needs.module):
            raise UnavailableError(f"backend {name} is not installed: {needs.advice}") from error
        first = describe_error(error).splitlines()[0]
        raise UnavailableError(
            f"backend {name}: {needs.module} cannot be imported here: {first}"
        ) from error


def require_mode(mode: str) -> None:
    """Raises UnavailableError when this torch's Inductor has no such mode."""
    if mode not in ("eager", *torch._inductor.list_mode_options()):
        since = f", which torch {MODE_SINCE[mode]} and later have" if mode in MODE_SINCE else ""
        raise UnavailableError(f"torch {torch.__version__} has no mode {mode}{since}")


def find_compiler(name: str) -> Callable[..., Any]:
    """Find the backend's function, called as Dynamo calls it; `require` has been asked before."""
    if name == "ts":
        return lambda graph, inputs: lookup_backend("ts")(_copy_plain(graph), list(inputs))
    if name == "aot_ts":
        return aot_autograd(
            fw_compiler=lambda graph, inputs: ts_compile(_copy_plain(graph), inputs)
        )
    if name == "thunder":
        # It registers no name; its class says that it is a backend: thunder/dynamo/compiler.py.
        return importlib.import_module("thunder.dynamo").ThunderCompiler()  # type: ignore[no-any-return]
    if name in OPTIONS:
        return partial(lookup_backend(name), options=OPTIONS[name])  # type: ignore[call-arg]
    return lookup_backend(name)


def _copy_plain(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy that makes its code at once: TorchScript refuses the lazy graphs that Dynamo makes."""
    return torch.fx.GraphModule(graph, graph.graph)
