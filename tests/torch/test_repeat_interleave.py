"""Elements repeated as often as a tensor says."""

import pytest
import torch
from against_cpu import equal_on_cpu

pytestmark = pytest.mark.usefixtures("no_fallback")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_repeats(dtype):
    x, repeats = torch.arange(12.0).view(4, 3), torch.tensor([2, 0, 3, 1]).to(dtype)
    equal_on_cpu(torch.repeat_interleave, repeats)
    equal_on_cpu(lambda t, r: t.repeat_interleave(r, 0), x, repeats)
    equal_on_cpu(lambda t, r: t.repeat_interleave(r[:3], 1), x, repeats)
    equal_on_cpu(lambda t, r: t.repeat_interleave(r, 0, output_size=6), x, repeats)
    equal_on_cpu(lambda r: torch.repeat_interleave(r * 0), repeats)
    equal_on_cpu(lambda r: torch.repeat_interleave(r[:0]), repeats)


def test_wrong_repeats_are_refused():
    with pytest.raises(RuntimeError, match="repeats can not be negative"):
        torch.repeat_interleave(torch.tensor([1, -1, 3], device="npu"))
    with pytest.raises(RuntimeError, match="Long or Int"):
        torch.repeat_interleave(torch.ones(2, device="npu"))
    with pytest.raises(RuntimeError, match="1D vector"):
        torch.repeat_interleave(torch.ones(2, 2, dtype=torch.int64, device="npu"))


def test_a_given_size_needs_no_wait():
    repeats, x = torch.tensor([2, 1], device="npu"), torch.tensor([5.0, 6.0], device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = x.repeat_interleave(repeats, output_size=3)
    repeats.copy_(torch.tensor([1, 2]))
    graph.replay()
    assert y.tolist() == [5, 6, 6]
