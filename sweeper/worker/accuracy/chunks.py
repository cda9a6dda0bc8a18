"""Pairs of tensors laid end to end, so that sums over each of them take a few operations for all: a
model has hundreds of small tensors, and the device waits for the host at each.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

BLOCK = 64  # elements of a row
# rows: of 32 MiB in fp64, or of 512 KiB, which stay in the cache of a CPU
MAX_ROWS = {"cuda": 1 << 16, "cpu": 1 << 10}
# of a tensor that shares its chunk; they are summed one after the other
MAX_SHARED_ROWS = 1 << 12

Pair = tuple[str, torch.Tensor, torch.Tensor]


class Chunk(NamedTuple):
    """A piece of a pair of tensors, or several small pairs end to end, where the first tensors lie.
    Each begins a row, and zeros fill its last one.
    """

    names: list[str]  # of the tensor that each piece is of
    sizes: list[int]  # elements of each piece
    one: torch.Tensor  # float64 [rows, BLOCK]
    other: torch.Tensor

    def sum_pieces(self, values: torch.Tensor) -> torch.Tensor:
        """Sum values of rows over each piece, without waiting for the device: float64 [rows, ...]
        to [pieces, ...].
        """
        if len(self.sizes) == 1:
            return values.sum(0, keepdim=True)
        lengths = self._count_rows().to(values.device)
        return torch.segment_reduce(values, "sum", lengths=lengths, axis=0, unsafe=True)

    def repeat(self, values: Iterable[float]) -> torch.Tensor:
        """Lay values of the pieces beside their rows: float64 [rows, 1]."""
        device, total = self.one.device, len(self.one)
        each = torch.tensor([*values], dtype=torch.float64, device=device)
        rows = self._count_rows().to(device)
        return each.repeat_interleave(rows, output_size=total).unsqueeze(1)

    def _count_rows(self) -> torch.Tensor:
        return torch.tensor([_count_rows(size) for size in self.sizes])


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
    """Lay pairs of tensors of equal shapes into chunks; a large one is in several, small ones of a
    device share theirs.
    """
    shared: dict[torch.device, list[Pair]] = defaultdict(list)
    rows: dict[torch.device, int] = defaultdict(int)
    for name, one, other in pairs:
        device, more = one.device, _count_rows(one.numel())
        most = MAX_ROWS[device.type]
        if more > min(MAX_SHARED_ROWS, most):
            size = most * BLOCK
            parts = torch.split(one.flatten(), size), torch.split(other.flatten(), size)
            for part, beside in zip(*parts, strict=True):
                yield _join([(name, part, beside)])
            continue
        if rows[device] + more > most:
            yield _join(shared.pop(device))
            rows[device] = 0
        shared[device].append((name, one.flatten(), other.flatten()))
        rows[device] += more
    for pieces in shared.values():
        yield _join(pieces)


def _count_rows(elements: int) -> int:
    return math.ceil(elements / BLOCK)


def _join(pieces: list[Pair]) -> Chunk:
    names, ones, others = zip(*pieces, strict=True)
    device = ones[0].device
    sizes = [part.numel() for part in ones]
    beside = [part.to(device) for part in others]
    return Chunk([*names], sizes, _lay_out(ones), _lay_out(beside))


def _lay_out(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    filled = []
    for part in parts:
        # torch joins no formats of 8 bits
        filled.append(part.float() if part.dtype.itemsize == 1 else part)
        if missing := -part.numel() % BLOCK:
            filled.append(filled[-1].new_zeros(missing))
    joined = filled[0] if len(filled) == 1 else torch.cat(filled)
    return joined.double().view(joined.numel() // BLOCK, BLOCK)
