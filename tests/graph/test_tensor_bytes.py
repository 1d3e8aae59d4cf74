"""The bytes of tensors, however they lie in memory."""

import torch

from tamis.graph import tensor_bytes


def test_bytes_are_those_of_the_entries_in_order() -> None:
    for value in (
        torch.randn(3, 4),
        torch.randn(4, 3).T,
        torch.tensor(2.5),
        torch.zeros(0),
        torch.tensor([True, False]),
    ):
        assert bytes(tensor_bytes(value).tolist()) == value.numpy().tobytes()


def test_a_single_entry_may_have_any_stride() -> None:
    expanded = torch.tensor(1.5).expand(1)
    assert expanded.stride() == (0,)
    assert torch.equal(tensor_bytes(expanded), tensor_bytes(torch.tensor([1.5])))
