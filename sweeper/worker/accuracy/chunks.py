"""Pairs of tensors laid end to end, so that sums over each of them take a few operations for all: a
model has hundreds of small tensors, and launching a dozen kernels for each takes the host longer
than they run.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

ROW = 64  # elements
# 32 MiB in fp64, or 512 KiB, which stay in the cache of a CPU
MAX_ROWS = {"cuda": 1 << 16, "cpu": 1 << 10}
# of a tensor that shares its chunk; they are summed one after the other
MAX_SHARED_ROWS = 1 << 12

Pair = tuple[str, torch.Tensor, torch.Tensor]


class Chunk(NamedTuple):
    """A piece of a pair of tensors, or several small pairs end to end, where the first tensors lie.
    Each begins a row, and zeros fill its last one.
    """

    names: list[str]  # of the tensor that each piece is of
    counts: torch.Tensor  # rows of each piece, int64 [pieces]
    one: torch.Tensor  # float64 [rows, ROW]
    other: torch.Tensor

    def sum_pieces(self, values: torch.Tensor) -> torch.Tensor:
        """Sum values of rows over each piece, without waiting for the device: float64 [rows, ...]
        to [pieces, ...].
        """
        if len(self.names) == 1:
            return values.sum(0, keepdim=True)
        return torch.segment_reduce(values, "sum", lengths=self.counts, axis=0, unsafe=True)

    def repeat(self, values: Iterable[float]) -> torch.Tensor:
        """Lay values of the pieces beside their rows: float64 [rows, 1]."""
        each = torch.tensor([*values], dtype=torch.float64).to(self.one.device, non_blocking=True)
        return each.repeat_interleave(self.counts, output_size=len(self.one)).unsqueeze(1)


def sum_up(pairs: Iterable[Pair], find: Callable[[Chunk], torch.Tensor]) -> dict[str, torch.Tensor]:
    """Add what `find` gives for the pieces of each tensor: float64 [n] on the host, which waits for
    all of them once.
    """
    names = []
    waiting: list[torch.Tensor] = []
    for chunk in _pack(pairs):
        names += chunk.names
        found = find(chunk)
        waiting.append(found.to(waiting[0].device) if waiting else found)
    totals: dict[str, torch.Tensor] = {}
    if waiting:
        for name, sums in zip(names, torch.cat(waiting).cpu(), strict=True):
            totals[name] = totals[name] + sums if name in totals else sums
    return totals


def _pack(pairs: Iterable[Pair]) -> Iterator[Chunk]:
    """Lay pairs of tensors of equal shapes into chunks; a large one is in several, small ones of
    the same devices share theirs.
    """
    shared: dict[tuple[torch.device, torch.device], list[Pair]] = defaultdict(list)
    rows: dict[tuple[torch.device, torch.device], int] = defaultdict(int)
    for name, one, other in pairs:
        assert one.shape == other.shape, name
        devices, more = (one.device, other.device), _count_rows(one)
        most = MAX_ROWS[one.device.type]
        if more > min(MAX_SHARED_ROWS, most):
            size = most * ROW
            parts = torch.split(one.flatten(), size), torch.split(other.flatten(), size)
            for part, beside in zip(*parts, strict=True):
                yield _join([(name, part, beside)])
            continue
        if rows[devices] + more > most:
            yield _join(shared.pop(devices))
            rows[devices] = 0
        shared[devices].append((name, one.flatten(), other.flatten()))
        rows[devices] += more
    for pieces in shared.values():
        yield _join(pieces)


def _count_rows(tensor: torch.Tensor) -> int:
    return math.ceil(tensor.numel() / ROW)


def _join(pieces: list[Pair]) -> Chunk:
    names, ones, others = zip(*pieces, strict=True)
    device = ones[0].device
    counts = torch.tensor([_count_rows(part) for part in ones]).to(device, non_blocking=True)
    return Chunk([*names], counts, _lay_out(ones), _lay_out(others).to(device))


def _lay_out(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Floating-point tensors end to end, where they lie."""
    filled = []
    for part in parts:
        # torch joins no formats of 8 bits
        filled.append(part.float() if part.dtype.itemsize == 1 else part)
        if missing := -part.numel() % ROW:
            filled.append(filled[-1].new_zeros(missing))
    joined = filled[0] if len(filled) == 1 else torch.cat(filled)
    return joined.double().view(joined.numel() // ROW, ROW)
