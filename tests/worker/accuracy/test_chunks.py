"""Sums over tensors that lie end to end."""

import pytest
import torch

from sweeper.worker.accuracy import chunks
from sweeper.worker.accuracy.chunks import Chunk, sum_up


def sum_products(chunk: Chunk) -> torch.Tensor:
    return chunk.sum_pieces(torch.stack(chunk.tensors).prod(0).sum(1))


def test_small_and_large_tensors_of_any_layout_have_the_sums_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunks, "MAX_ROWS", {"cpu": 4})  # 256 elements
    given = {
        "number": (torch.tensor(3.0), torch.tensor(2.0)),
        "nothing": (torch.zeros(0, 5), torch.zeros(0, 5)),
        "turned": (torch.randn(7, 9).t(), torch.randn(9, 7)),
        "half": (torch.randn(70).bfloat16(), torch.randn(70).double()),
        "eighth": (torch.randn(9).to(torch.float8_e4m3fn), torch.ones(9)),
        "large": (torch.randn(30, 37), torch.randn(30, 37)),
        "repeated": (torch.ones(1).expand(65), torch.full((65,), 2.0)),
    }
    for count in (1, 2):
        beside = {name: tensors[:count] for name, tensors in given.items()}
        found = sum_up(beside, sum_products)
        assert found.keys() == given.keys()
        for name, tensors in beside.items():
            expected = tensors[0].double()
            for tensor in tensors[1:]:
                expected = expected * tensor.double()
            torch.testing.assert_close(found[name], expected.sum(), msg=name)


def test_values_of_pieces_lie_beside_all_their_rows() -> None:
    def sum_limits(chunk: Chunk) -> torch.Tensor:
        limits = {"short": 1.0, "long": 10.0}
        return chunk.sum_pieces(chunk.repeat(limits[name] for name in chunk.names))

    found = sum_up({"short": (torch.ones(3),), "long": (torch.ones(65),)}, sum_limits)
    assert {name: float(value) for name, value in found.items()} == {"short": 1.0, "long": 20.0}


def test_tensors_of_other_shapes_do_not_lie_beside_each_other() -> None:
    with pytest.raises(AssertionError, match="bias"):
        sum_up({"bias": (torch.ones(3), torch.ones(4))}, sum_products)


def test_nothing_has_no_sums() -> None:
    assert sum_up({}, sum_products) == {}
