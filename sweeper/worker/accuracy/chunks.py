"""Tensors laid end to end, beside others of their shapes, so that sums over each take a few
operations for all: a model has hundreds of small tensors, and launching a dozen kernels for each
takes the host longer than they run.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

ROW = 64  # elements
# 32 MiB in fp64, or 512 KiB, which stay in the cache of a CPU
MAX_ROWS = {"cuda": 1 << 16, "cpu": 1 << 10}
# of a tensor that shares its chunk; they are summed one after the other
MAX_SHARED_ROWS = 1 << 12

Beside = Mapping[str, Sequence[torch.Tensor]]  # by name, tensors of one shape
_Piece = tuple[str, Sequence[torch.Tensor]]


class Chunk(NamedTuple):
    """Pieces of tensors end to end, and in the same places those of the tensors beside them. They
    lie where the first tensors do. Each piece begins a row, and zeros fill its last one.
    """

    names: list[str]  # of the tensor that each piece is of
    counts: torch.Tensor  # rows of each piece, int64 [pieces]
    tensors: list[torch.Tensor]  # float64 [rows, ROW] each

    def sum_pieces(self, values: torch.Tensor) -> torch.Tensor:
        """Sum values of rows over each piece, without waiting for the device: float64 [rows, ...]
        to [pieces, ...].
        """
        if len(self.names) == 1:
            return values.sum(0, keepdim=True)
        return torch.segment_reduce(values, "sum", lengths=self.counts, axis=0, unsafe=True)

    def repeat(self, values: Iterable[float]) -> torch.Tensor:
        """Lay values of the pieces beside their rows: float64 [rows, 1]."""
        each = torch.tensor([*values], dtype=torch.float64).to(
            self.counts.device, non_blocking=True
        )
        return each.repeat_interleave(self.counts, output_size=len(self.tensors[0])).unsqueeze(1)


def sum_up(given: Beside, find: Callable[[Chunk], torch.Tensor]) -> dict[str, torch.Tensor]:
    """Add what `find` gives for the pieces of each name: float64 [n] on the host, which waits for
    all of them once.
    """
    names = []
    waiting: list[torch.Tensor] = []
    for chunk in _pack(given):
        names += chunk.names
        found = find(chunk)
        waiting.append(found.to(waiting[0].device) if waiting else found)
    totals: dict[str, torch.Tensor] = {}
    if waiting:
        for name, sums in zip(names, torch.cat(waiting).cpu(), strict=True):
            totals[name] = totals[name] + sums if name in totals else sums
    return totals


def _pack(given: Beside) -> Iterator[Chunk]:
    """Lay tensors into chunks; a large one is in several, small ones of the same devices share
    theirs.
    """
    shared: defaultdict[tuple[torch.device, ...], list[_Piece]] = defaultdict(list)
    rows = Counter[tuple[torch.device, ...]]()
    for name, tensors in given.items():
        assert len({tensor.shape for tensor in tensors}) == 1, name
        devices, more = tuple(tensor.device for tensor in tensors), _count_rows(tensors[0])
        most = MAX_ROWS[devices[0].type]
        flat = [tensor.flatten() for tensor in tensors]
        if more > min(MAX_SHARED_ROWS, most):
            for parts in zip(*(torch.split(tensor, most * ROW) for tensor in flat), strict=True):
                yield _join([(name, parts)])
            continue
        if rows[devices] + more > most:
            yield _join(shared.pop(devices))
            rows[devices] = 0
        shared[devices].append((name, flat))
        rows[devices] += more
    for pieces in shared.values():
        yield _join(pieces)


def _count_rows(tensor: torch.Tensor) -> int:
    return math.ceil(tensor.numel() / ROW)


def _join(pieces: Sequence[_Piece]) -> Chunk:
    names, tensors = zip(*pieces, strict=True)
    columns = [*zip(*tensors, strict=True)]
    device = columns[0][0].device
    counts = torch.tensor([_count_rows(part) for part in columns[0]])
    laid_out = [_lay_out(parts).to(device) for parts in columns]
    return Chunk([*names], counts.to(device, non_blocking=True), laid_out)


def _lay_out(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Floating-point tensors end to end, where they lie."""
    filled = []
    zeros: dict[torch.dtype, torch.Tensor] = {}  # made once, since each launch takes the host time
    for part in parts:
        # torch joins no formats of 8 bits
        known = part.float() if part.dtype.itemsize == 1 else part
        if known.dtype not in zeros:
            zeros[known.dtype] = known.new_zeros(ROW)
        filled += [known, zeros[known.dtype][: -part.numel() % ROW]]
    joined = filled[0] if len(parts) == 1 and not filled[1].numel() else torch.cat(filled)
    return joined.double().view(joined.numel() // ROW, ROW)
