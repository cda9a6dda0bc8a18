"""Importing this makes torchvision importable beside a CPU build of torch.

torchvision's package on the index is built for CUDA. Without its compiled operators the import fails with "operator
torchvision::nms does not exist", and timm and transformers import it. Two operator schemas are all that is missing
(seen with torchvision 0.28.0 and torch 2.13.0); models that are timed here never call the operators.
"""

from __future__ import annotations

import importlib.util

import torch

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

if torch.version.cuda is None and importlib.util.find_spec("torchvision") is not None:
    # The schemas live as long as this object.
    _library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for _name in ("nms", "qnms"):
        _library.define(_name + _SIGNATURE)  # type: ignore[no-untyped-call]
