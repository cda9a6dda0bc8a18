"""Sums that are accumulated in bfloat16, as operators of torch, which every backend can run.

Each term is rounded, and so is the sum after each addition. What is summed in lanes is summed over
lanes afterwards.
"""

from __future__ import annotations

import math

import torch

MAX_STEPS = 1024  # additions one after the other


@torch.library.custom_op("mutants::sum", mutates_args=())
def sum_in_bfloat16(x: torch.Tensor, dims: list[int], keepdim: bool) -> torch.Tensor:
    """`aten.sum(x, dims, keepdim)`; no dims are all dims."""
    dims = [dim % x.dim() for dim in dims] or list(range(x.dim()))
    kept = [dim for dim in range(x.dim()) if dim not in dims]
    terms = x.permute(*dims, *kept).reshape(-1, *(x.shape[dim] for dim in kept))
    total = _accumulate(terms.to(torch.bfloat16)).to(x.dtype)
    return (
        total.reshape([1 if dim in dims else x.shape[dim] for dim in range(x.dim())])
        if keepdim
        else total
    )


@sum_in_bfloat16.register_fake
def _(x: torch.Tensor, dims: list[int], keepdim: bool) -> torch.Tensor:
    return x.new_empty(torch.ops.aten.sum.dim_IntList(x, dims, keepdim).shape)


@torch.library.custom_op("mutants::bmm", mutates_args=())
def bmm_in_bfloat16(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`aten.bmm(a, b)`."""
    left, right = a.to(torch.bfloat16), b.to(torch.bfloat16)
    total = left.new_zeros(a.shape[0], a.shape[1], b.shape[2])
    for index in range(a.shape[2]):
        total += left[:, :, index, None] * right[:, index, None, :]
    return total.to(a.dtype)


@bmm_in_bfloat16.register_fake
def _(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty(a.shape[0], a.shape[1], b.shape[2])


def _accumulate(terms: torch.Tensor) -> torch.Tensor:
    """The sum over the first dimension."""
    lanes = math.ceil(len(terms) / MAX_STEPS)
    total = terms.new_zeros(lanes, *terms.shape[1:])
    for chunk in terms.split(lanes):
        total[: len(chunk)] += chunk
    return total[0] if lanes == 1 else _accumulate(total)
