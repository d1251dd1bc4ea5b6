"""bincount and histc."""

import math

import pytest
import torch
from against_cpu import FLOATS, INTEGERS

pytestmark = pytest.mark.usefixtures("no_fallback")


def test_bincount():
    x = torch.tensor([3, 1, 1, 5])
    assert torch.equal(x.npu().bincount().cpu(), x.bincount())
    assert x.npu().bincount(minlength=9).tolist() == x.bincount(minlength=9).tolist()
    for dtype in (torch.float32, torch.float64, torch.int64):
        weights = torch.tensor([1, 2, 3, 4]).to(dtype)
        expected = x.bincount(weights)
        got = x.npu().bincount(weights.npu())
        assert got.dtype == expected.dtype and torch.equal(got.cpu(), expected)
    assert torch.ones(0, dtype=torch.int64).npu().bincount().tolist() == []
    for wrong in (torch.tensor([-1]), torch.tensor([1.0]), torch.tensor([[1]])):
        with pytest.raises(RuntimeError, match="bincount"):
            wrong.npu().bincount()


@pytest.mark.parametrize("dtype", [d for d in FLOATS + INTEGERS if d != torch.bfloat16], ids=str)
def test_histograms(dtype):
    x = torch.tensor([0, 1, 1, 2, 5, 7, 7, 9]).to(dtype)
    for bins, low, high in ((4, 0, 8), (3, 0, 0), (10, 2, 7), (1, 3, 3)):
        expected = torch.histc(x.double(), bins, low, high).to(dtype)
        assert torch.equal(torch.histc(x.npu(), bins, low, high).cpu(), expected)
    assert torch.histc(x.npu()[:0], 2).tolist() == [0, 0]
    for bad in ((0, 0, 1), (2, 3, 1), (2, 0, math.inf)):
        with pytest.raises(RuntimeError, match=r"torch\.histc"):
            torch.histc(x.npu(), *bad)
