"""Jagged nested tensors and the same padded."""

import pytest
import torch
from against_cpu import equal_on_cpu

pytestmark = pytest.mark.usefixtures("no_fallback")

aten = torch.ops.aten


def jagged(device, *lengths, width=4):
    count = torch.arange(float(sum(lengths) * width)).view(-1, width)
    parts = [part.contiguous().to(device) for part in count.split(list(lengths))]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)


def padded_and_back(x):
    padded = x.to_padded_tensor(-1.0)
    (padded * 2).sum().backward()
    return padded.detach(), x.grad.values()


def test_padded_tensors_and_gradients():
    expected, got = (padded_and_back(jagged(device, 3, 0, 5)) for device in ("cpu", "npu"))
    for e, g in zip(expected, got, strict=True):
        assert torch.equal(g.cpu(), e)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [0, 2, 5, 7])
def test_lengths_of_padding(length, dtype):
    values, offsets = torch.arange(1, 25).view(8, 3).to(dtype), torch.tensor([0, 3, 3, 8])
    equal_on_cpu(
        lambda v, o: aten._jagged_to_padded_dense_forward(v, [o], [length], 9.0), values, offsets
    )
    dense = torch.arange(3 * length * 2).view(3, length, 2).to(dtype)
    if length >= 5:
        equal_on_cpu(lambda d, o: aten._padded_dense_to_jagged_forward(d, [o], 8), dense, offsets)
        equal_on_cpu(lambda d, o: aten._padded_dense_to_jagged_forward(d, [o]), dense, offsets)


def test_rows_beyond_the_padded_length_are_zero():
    dense, offsets = torch.arange(1.0, 7, device="npu").view(3, 2), torch.tensor([0, 1, 4, 4]).npu()
    got = aten._padded_dense_to_jagged_forward(dense, [offsets], 4)
    assert got.tolist() == [1, 3, 4, 0]
