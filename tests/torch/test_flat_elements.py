"""take, put and masked_scatter: elements by flat index and by mask."""

import pytest
import torch
from against_cpu import FLOATS, check, equal_on_cpu, make

pytestmark = pytest.mark.usefixtures("no_fallback")

dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)


@dtypes
def test_take_put_and_masked_elements(dtype):
    x, source = make(dtype, 3, 4), make(dtype, 3, 4, seed=1)
    index = torch.tensor([[0, 11, -3], [5, 5, -12]])
    check(lambda x, i: x.t().take(i), x, index)
    check(lambda x, i, s: x.put(i[0], s[0, :3]), x, index, source)
    check(lambda x, i, s: x.put(i, s.view(2, 6)[:, :3], accumulate=True), x, index, source)
    mask = torch.tensor([[True, False, True, True]])
    check(lambda x, m, s: x.masked_scatter(m, s), x, mask, source)
    check(lambda x, m, s: x.t().masked_scatter(m.t(), s.flatten()[:9]), x, mask, source)
    there = torch.zeros(4, 3, dtype=dtype, device="npu")
    there.t().put_(torch.tensor([1], device="npu"), torch.ones(1, dtype=dtype, device="npu"))
    assert there.nonzero().tolist() == [[1, 0]]


def test_out_of_range_elements_are_errors():
    x, mask = torch.zeros(4, device="npu"), torch.ones(4, dtype=torch.bool, device="npu")
    assert x.masked_scatter(mask.logical_not(), x[:0]).tolist() == [0] * 4
    for call, message in (
        (lambda: x.masked_scatter(mask, torch.ones(3, device="npu")), "index|indices"),
        (lambda: x.masked_scatter(mask, x[:0]), "as many elements"),
        (lambda: x.masked_scatter(mask, x.double()), "same dtypes"),
        (lambda: x.take(torch.tensor([4], device="npu")), "index"),
        (lambda: x[:0].take(torch.tensor([0], device="npu")), "empty tensor"),
        (lambda: x.take(torch.zeros(1, device="npu")), "long tensor"),
        (lambda: x.put_(torch.tensor([0, 1], device="npu"), x[:1]), "same number of elements"),
    ):
        with pytest.raises((RuntimeError, IndexError), match=message):
            call()
            torch.npu.synchronize()


def test_a_fixed_number_of_positions():
    mask = torch.tensor([[0, 2, 0], [3, 0, 1]])
    for size in (0, 2, 3, 5):
        equal_on_cpu(lambda t, n=size: torch.nonzero_static(t, size=n, fill_value=-7), mask)
    out = torch.empty(0, dtype=torch.long, device="npu")
    torch.nonzero_static(mask.npu(), size=4, out=out)
    assert out.tolist() == [[0, 1], [1, 0], [1, 2], [-1, -1]]
