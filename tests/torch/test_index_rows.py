"""index_add, index_copy and index_fill."""

import pytest
import torch
from against_cpu import FLOATS, INTEGERS, check, make

pytestmark = pytest.mark.usefixtures("no_fallback")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_indexed_rows(dim, dtype):
    x = make(dtype, 4, 5, 6)
    index = torch.tensor([2, 0, 2])
    source = make(dtype, *(3 if d == dim % 3 else n for d, n in enumerate(x.shape)), seed=1)
    check(lambda x, i, s: torch.index_add(x, dim, i, s, alpha=0.5), x, index, source)
    check(
        lambda x, i, s: x.transpose(0, 2).index_add(2 - dim % 3, i, s.transpose(0, 2)),
        x,
        index,
        source,
    )
    check(
        lambda x, i, s: x.index_copy(dim, i[:2], s.narrow(dim, 0, 2).detach()),
        x,
        index,
        source.detach(),
    )
    check(lambda x, i: x.index_fill(dim, i, 3), x, index)
    check(lambda x, i, v: x.index_fill(dim, i, v), x, index, make(dtype).detach())


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool, torch.complex64], ids=str)
def test_indexed_rows_of_other_dtypes(dtype):
    x, source = torch.arange(24).view(4, 6).to(dtype), torch.ones(2, 6).to(dtype)
    for index in (torch.tensor([3, 1]), torch.tensor([3, 1], dtype=torch.int32)):
        there = x.npu()
        if dtype not in (torch.bool, torch.complex64):
            expected = x.index_add(0, index, source)
            assert torch.equal(there.index_add(0, index.npu(), source.npu()).cpu(), expected)
        if index.dtype == torch.int64:
            expected = x.index_copy(0, index, source)
            assert torch.equal(there.index_copy(0, index.npu(), source.npu()).cpu(), expected)
        expected = x.index_fill(0, index.long(), 1)
        assert torch.equal(there.index_fill(0, index.npu(), 1).cpu(), expected)
        there.t().index_fill_(1, index.npu(), 0)
        assert torch.equal(there.cpu(), x.index_fill(0, index.long(), 0))
        assert torch.equal(
            there.index_fill(0, -index.npu(), 1).cpu(),
            x.index_fill(0, index.long(), 0).index_fill(0, -index.long(), 1),
        )
    assert (
        torch.ones((), device="npu").index_add(0, torch.tensor([0]).npu(), torch.ones(()).npu())
        == 2
    )


@pytest.mark.parametrize("operator", ["index_add", "index_copy", "index_fill"])
def test_out_of_range_row_is_a_device_error(operator):
    x = torch.zeros(4, 3, device="npu")
    for wrong in (4, -5 if operator == "index_fill" else -1, 1 << 40):
        index = torch.tensor([wrong], device="npu")
        value = 1 if operator == "index_fill" else torch.ones(1, 3, device="npu")
        with pytest.raises(
            RuntimeError, match=rf"\[{operator}\] expected an index in .*, got {wrong} at "
        ):
            getattr(x, operator)(0, index, value)
            torch.npu.synchronize()
    assert x.sum().item() == 0
    with pytest.raises(IndexError, match="dtype int32/int64"):
        x.index_fill_(0, torch.ones(1, device="npu"), 1)
    with pytest.raises(RuntimeError, match="0-dimensional value"):
        x.index_fill_(0, torch.tensor([1], device="npu"), torch.ones(2, device="npu"))


def test_rows_of_any_type_and_of_a_scalar():
    x = torch.randn(4, 3, dtype=torch.complex128)
    for dtype in (torch.complex64, torch.complex128, torch.float8_e5m2):
        t = (x if dtype.is_complex else x.real).to(dtype)
        got = t.npu().index_select(1, torch.tensor([2, 0]).npu()).cpu()
        assert got.dtype == dtype and torch.equal(got.cfloat(), t.cfloat()[:, [2, 0]])
    scalar = torch.tensor(5, device="npu")
    assert scalar.index_select(0, torch.tensor([0], device="npu")).item() == 5
    with pytest.raises(IndexError, match="expected one index of a scalar"):
        scalar.index_select(0, torch.tensor([0, 0], device="npu"))
