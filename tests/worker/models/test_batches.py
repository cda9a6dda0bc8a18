"""Copies of batches."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.compile


def test_copy_of_a_slice_lies_as_the_slice_does() -> None:
    import torch

    from sweeper.worker.models.batches import copy_tensor, mix_samples, roll_samples

    sliced = torch.randn(4, 16)[:, :9]
    for copied in (copy_tensor(sliced), roll_samples(sliced), mix_samples(sliced)):
        assert copied.stride() == sliced.stride() == (16, 1)
        assert copied.data_ptr() != sliced.data_ptr()
    assert torch.equal(copy_tensor(sliced), sliced)
    assert torch.equal(copy_tensor(torch.ones(1, 3).expand(4, 3)), torch.ones(4, 3))
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(copy_tensor(sparse).to_dense(), torch.eye(3))
