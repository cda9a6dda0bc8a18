"""Backends as they are here: whether one can be asked for, its compiler, and what it does without a word.

A name in torch's list proves nothing: its package may be missing or not fit this torch, and OpenVINO goes on in native
PyTorch or Inductor where it fails. Place in the flow: `session` asks `require` before it builds the model, and
`diagnostics` takes the compiler from here, as doctor's `probe` does.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import lookup_backend
from torch._functorch.compilers import ts_compile

from sweeper.core.backends import GONE, NEEDS, WITHOUT_DYNAMO, Needs
from sweeper.core.errors import nearest
from sweeper.worker.failures import UnavailableError, message_of

Compiler = Callable[..., Any]
FOR_DEBUGGING = ("_TESTING_ONLY", "_minifier_backend")
OPENVINO_LOG = "openvino.frontend.pytorch.torchdynamo"
GAVE_UP = ("OpenVINO execution failed", "Failed in OpenVINO execution")  # at level DEBUG


def known() -> list[str]:
    """Names of the backends that torch lists, without its own tools for debugging."""
    return [name for name in torch._dynamo.list_backends(None) if not name.endswith(FOR_DEBUGGING)]


def require(name: str, workload: str, device: str) -> None:
    """Raises UnavailableError when the backend is missing, or can do nothing with this workload or device."""
    if name in WITHOUT_DYNAMO:
        return
    if name in NEEDS:
        _require_needs(name, NEEDS[name], workload, device)
    elif name not in torch._dynamo.list_backends(None):
        if name in GONE:
            raise UnavailableError(f"backend {name} {GONE[name]}")
        advice = f"install the package that registers it; {nearest(name, [*known(), *WITHOUT_DYNAMO, *NEEDS])}"
        raise UnavailableError(f"backend {name} is not installed: {advice}")


def _require_needs(name: str, needs: Needs, workload: str, device: str) -> None:
    if needs.device not in (None, device):
        raise UnavailableError(f"backend {name} needs device={needs.device}, this is {device}")
    if needs.workload not in (None, workload):
        raise UnavailableError(f"backend {name} is for workload={needs.workload} alone, this is {workload}")
    if needs.module is None:
        return
    if not _is_there(needs.module):
        raise UnavailableError(f"backend {name} is not installed: {needs.advice}")
    try:
        importlib.import_module(needs.module)
    except (Exception, SystemExit) as error:  # a package made for another torch raises anything, or leaves
        first = message_of(error).splitlines()[0]
        raise UnavailableError(f"backend {name}: {needs.module} cannot be imported here: {first}") from error


def _is_there(module: str) -> bool:
    """Whether a module can be found. Its packages are imported on the way; one that cannot be is there all the same."""
    package, _, rest = module.partition(".")
    if importlib.util.find_spec(package) is None:
        return False
    try:
        return not rest or importlib.util.find_spec(module) is not None
    except (Exception, SystemExit):  # noqa: BLE001  # importing it once more says what is wrong
        return True


def compiler_of(name: str) -> Compiler:
    """The backend's function, called as Dynamo calls it; `require` has been asked before."""
    own = OWN.get(name)
    return own() if own else lookup_backend(name)


def _thunder() -> Compiler:
    """Thunder registers no name; its class says that it is a backend: thunder/dynamo/compiler.py."""
    compiler: Compiler = importlib.import_module("thunder.dynamo").ThunderCompiler()
    return compiler


def _script(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    return lookup_backend("ts")(_plain(graph), list(inputs))


def _compile_script(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    return ts_compile(_plain(graph), inputs)


def _plain(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy that makes its code at once: TorchScript refuses the lazy graphs that Dynamo makes."""
    return torch.fx.GraphModule(graph, graph.graph)


def _with(name: str, **options: object) -> Callable[[], Compiler]:
    """The backend of that name with options of its own."""

    def compiler() -> Compiler:
        found: Compiler = lookup_backend(name)
        return partial(found, options=options)

    return compiler


OWN: dict[str, Callable[[], Compiler]] = {
    # Without AOTAutograd, OpenVINO leaves symbols in Dynamo's shapes, and torch 2.13 fails to make guards of them.
    "openvino": _with("openvino", aot_autograd=True),
    # torch_tensorrt/dynamo/backend/backends.py: it would give the graph back where an engine cannot be built.
    "tensorrt": _with("tensorrt", pass_through_build_failures=True),
    "torch_tensorrt": _with("torch_tensorrt", pass_through_build_failures=True),
    "thunder": _thunder,
    "ts": lambda: _script,
    "aot_ts": lambda: aot_autograd(fw_compiler=_compile_script),
}


class GivingUp(logging.Handler):
    """Collects what OpenVINO tells its log alone: the parts of a model that it could not run."""

    @staticmethod
    def of(name: str) -> GivingUp | None:
        """A collector for a backend that goes on without itself; None for the others."""
        return GivingUp() if name == "openvino" else None

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.reasons: list[str] = []
        for name in ("backend", "execute"):
            log = logging.getLogger(f"{OPENVINO_LOG}.{name}")
            log.setLevel(logging.DEBUG)
            log.propagate = False
            log.addHandler(self)

    def why(self) -> str | None:
        """What it says of the first of them."""
        return f"the backend goes on without itself: {self.reasons[0]}" if self.reasons else None

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING and logging.lastResort is not None:
            logging.lastResort.handle(record)  # where it would have gone without this collector
        text = record.getMessage()
        if text.startswith(GAVE_UP):
            self.reasons.append(text.splitlines()[0])
