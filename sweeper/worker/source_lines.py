"""Places in a user's own files, where something happens that a report names."""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.core.record import IN_WRAPPER, TORCH_NN, WRAPPER
from sweeper.core.text import clean_text

from .failures import Failure, describe_error, read_text

if TYPE_CHECKING:
    import torch

OWN = Path(__file__).parents[1]  # not resolved, as code objects name their files
_TORCH = importlib.util.find_spec("torch")
TORCH = str(Path(_TORCH.origin).parent) if _TORCH and _TORCH.origin else "no torch"
# torch's own folder may be any one, and a path may lead through a link
_FOLDERS = {
    *(sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib", "platstdlib")),
    *(path for path in sys.path if path.endswith(("site-packages", "dist-packages", ".zip"))),
    site.getusersitepackages(),
    str(Path(TORCH).parent) if _TORCH else TORCH,
}
LIBRARIES = tuple(_FOLDERS | set(map(os.path.realpath, _FOLDERS)))
CACHES = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"  # sweeper sets them in each worker
# torch's cudagraph_trees.py
OVERWRITTEN = "accessing tensor output of CUDAGraphs that has been overwritten"
_BEGIN = Path.cwd()


def is_users(file: str) -> bool:
    """Whether a file, as code objects name it, is the script's own: not a library's, not ours and
    not a compiler's.
    """
    caches = [os.environ[name] for name in CACHES if name in os.environ]
    return not file.startswith(("<", *LIBRARIES, *caches)) and OWN not in Path(file).parents


def is_users_class(value: object) -> bool:
    """Whether a value's class is written in the script's own files."""
    module = sys.modules.get(type(value).__module__)
    file = getattr(module, "__file__", None)
    return file is not None and is_users(file)


def name_place(name: str, line: int | None) -> str:
    """`file:line`, relative to the folder in which the script began where it lies in there."""
    file = Path(name)
    return f"{file.relative_to(_BEGIN) if file.is_relative_to(_BEGIN) else file}:{line}"


def name_class(module: torch.nn.Module) -> str:
    """The class of a module as a record keeps it, with `torch.nn.` where it is torch's own, e.g.
    `Net in DistributedDataParallel`.
    """
    module = getattr(module, "_orig_mod", module)
    kind = type(module)
    if kind.__name__ == WRAPPER:
        inner: Any = module.module
        return f"{name_class(inner)}{IN_WRAPPER}"
    name = clean_text(kind.__name__)
    return f"{TORCH_NN}{name}" if kind.__module__.startswith(TORCH_NN) else name


def name_call(name: str, line: str) -> str:
    """Name a module by its class and the line that calls it, where there is one."""
    return f"{name} ({line})" if line else name


def find_own_line(error: BaseException) -> str:
    """Find the innermost of the user's own lines that an error came through, e.g. `train.py:7`, or
    that Dynamo was at, e.g. `model.py:9 in forward`; empty where there is none.
    """
    # of Dynamo's errors; the model may be a library's
    if compiled := getattr(error, "real_stack", None):
        own = [frame for frame in compiled if is_users(frame.filename)]
        frame = (own or compiled)[-1]
        return f"{name_place(frame.filename, frame.lineno)} in {frame.name}"
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)
    ]
    return name_place(frames[-1].filename, frames[-1].lineno) if frames else ""


def describe_in_script(error: BaseException) -> str:
    """Say what went wrong, and on which of the user's own lines, where it is the error of a user's
    script or model.
    """
    where = find_own_line(error)
    if isinstance(error, Failure) or not where:
        return describe_error(error)
    if OVERWRITTEN in read_text(error):
        return (
            f"{where} reads a tensor that the script has kept from an earlier step, and a CUDA "
            "graph has overwritten it since; keep a copy, e.g. loss.detach().clone(), or take "
            "mode=default"
        )
    return f"{where}: {describe_error(error)}"
