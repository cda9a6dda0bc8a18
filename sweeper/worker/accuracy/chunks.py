"""Pairs of tensors laid end to end, so that sums over each of them take a few operations for all: a
model has hundreds of small tensors, and the device waits for the host at each.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

BLOCK = 64  # elements of a row
MAX_PIECE = 1 << 12  # rows of a tensor that a device sums one after the other
FEW = 16  # pieces that are summed faster each by itself
# rows: of 32 MiB in fp64, or of 512 KiB, which stay in the cache of a CPU
MAX_ROWS = {"cuda": 1 << 16, "cpu": 1 << 10}

Pair = tuple[str, torch.Tensor, torch.Tensor]


class Chunk(NamedTuple):
    """Pieces of pairs of tensors, where the first ones lie. Each piece begins a row, and zeros fill
    its last one.
    """

    names: list[str]  # of the tensor that each piece is of
    sizes: list[int]  # elements of each piece
    rows: torch.Tensor  # of each piece, int64 [pieces] on the host
    one: torch.Tensor  # float64 [all rows, BLOCK]
    other: torch.Tensor

    def sum_pieces(self, values: torch.Tensor) -> torch.Tensor:
        """Sum values of rows over each piece, without waiting for the device: float64 [all rows,
        n] to [pieces, n].
        """
        if len(self.sizes) <= FEW:
            return torch.stack([part.sum(0) for part in torch.split(values, self.rows.tolist())])
        lengths = self.rows.to(values.device)
        return torch.segment_reduce(values, "sum", lengths=lengths, axis=0, unsafe=True)

    def repeat(self, values: Iterable[float]) -> torch.Tensor:
        """Lay values of the pieces beside their rows: float64 [all rows, 1]."""
        device, total = self.one.device, len(self.one)
        each = torch.tensor([*values], dtype=torch.float64, device=device)
        return each.repeat_interleave(self.rows.to(device), output_size=total).unsqueeze(1)


def pack(pairs: Iterable[Pair]) -> Iterator[Chunk]:
    """Lay pairs of tensors of equal shapes end to end, in order; a large one is in several
    pieces.
    """
    pieces: list[Pair] = []
    rows = 0
    for name, one, other in pairs:
        most = MAX_ROWS[one.device.type]
        size = min(MAX_PIECE, most) * BLOCK
        parts = torch.split(one.flatten(), size), torch.split(other.flatten(), size)
        for part, beside in zip(*parts, strict=True):
            more = _count_rows(part)
            is_elsewhere = bool(pieces) and pieces[0][1].device != part.device
            if is_elsewhere or rows + more > most:
                yield _join(pieces)
                pieces, rows = [], 0
            pieces.append((name, part, beside.to(part.device)))
            rows += more
    if pieces:
        yield _join(pieces)


def gather(sums: list[torch.Tensor]) -> list[torch.Tensor]:
    """The sums of several chunks on the host, which waits for all of them once."""
    if not sums:
        return []
    device = sums[0].device
    joined = torch.cat([item.to(device) for item in sums]).cpu()
    return [*torch.split(joined, [len(item) for item in sums])]


def _count_rows(part: torch.Tensor) -> int:
    return math.ceil(part.numel() / BLOCK)


def _join(pieces: list[Pair]) -> Chunk:
    names, ones, others = zip(*pieces, strict=True)
    sizes = [part.numel() for part in ones]
    rows = torch.tensor([_count_rows(part) for part in ones])
    return Chunk([*names], sizes, rows, _lay_out(ones), _lay_out(others))


def _lay_out(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    filled = []
    for part in parts:
        # torch joins no formats of 8 bits
        filled.append(part.float() if part.dtype.itemsize == 1 else part)
        if missing := -part.numel() % BLOCK:
            filled.append(filled[-1].new_zeros(missing))
    return torch.cat(filled).double().view(-1, BLOCK)
