"""Importing this makes torchvision importable beside a CPU build of torch.

torchvision's package on the index is built for CUDA. Without its compiled operators the import
fails with "operator torchvision::nms does not exist", and timm and transformers import it. Two
operator schemas are all that is missing (seen with torchvision 0.28.0 and torch 2.13.0); models
that are timed here never call the operators. A torchvision whose operators load has the schemas
itself, and a second definition would be an error.
"""

import importlib.util
from importlib.machinery import PathFinder

import torch

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _lacks_operators() -> bool:
    """Whether torchvision is here and its compiled operators, `torchvision/_C.so`, do not load."""
    package = importlib.util.find_spec("torchvision")
    if torch.version.cuda is not None or package is None:
        return False
    compiled = PathFinder.find_spec("_C", package.submodule_search_locations)
    if compiled is None or compiled.origin is None:
        return True
    try:
        torch.ops.load_library(compiled.origin)  # type: ignore[no-untyped-call]
    except OSError:
        return True
    return False


if _lacks_operators():
    # The schemas live as long as this object.
    _library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for _name in ("nms", "qnms"):
        _library.define(_name + _SIGNATURE)  # type: ignore[no-untyped-call]
