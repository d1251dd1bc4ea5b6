"""searchsorted and bucketize."""

import pytest
import torch
from against_cpu import FLOATS, INTEGERS


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_sorted_search(dtype, right):
    bounds = torch.tensor([[1, 3, 3, 7], [0, 2, 5, 5]]).to(dtype)
    x = torch.tensor([[0, 1, 3, 4, 9], [5, 2, 2, 6, 0]]).to(dtype)
    for b, v in ((bounds, x), (bounds[0], x), (bounds[0], x[0, 2]), (bounds[:, :0], x)):
        for int32 in (False, True):
            expected = torch.searchsorted(b, v, right=right, out_int32=int32)
            got = torch.searchsorted(b.npu(), v.npu(), right=right, out_int32=int32)
            assert got.dtype == expected.dtype and torch.equal(got.cpu(), expected)
    expected = torch.bucketize(x, bounds[0], right=right)
    assert torch.equal(torch.bucketize(x.npu(), bounds[0].npu(), right=right).cpu(), expected)
    assert torch.searchsorted(bounds[0].npu(), 3, right=right).item() == (3 if right else 1)
    order = torch.tensor([2, 0, 3, 1])
    shuffled = torch.empty_like(bounds[0])
    shuffled[order] = bounds[0]
    got = torch.searchsorted(shuffled.npu(), x[0].npu(), sorter=order.npu(), right=right)
    assert torch.equal(got.cpu(), torch.searchsorted(bounds[0], x[0], right=right))


@pytest.mark.usefixtures("no_fallback")
def test_sorted_search_refuses_bad_arguments():
    bounds = torch.arange(4.0, device="npu")
    nan = torch.tensor([float("nan")])
    assert torch.searchsorted(bounds, nan.npu()).item() == 4
    for arguments, message in (
        ({"side": "middle"}, "side can only be"),
        ({"side": "left", "right": True}, "opposites"),
        ({"sorter": torch.zeros(3, dtype=torch.int64).npu()}, "same size"),
        ({"sorter": torch.zeros(4).npu()}, "long dtype"),
        ({"sorter": torch.full((4,), 9).npu()}, "sorter index out of range"),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch.searchsorted(bounds, bounds, **arguments)
            torch.npu.synchronize()


@pytest.mark.no_values
def test_searchsorted_warns_of_copies():
    sorted_rows = torch.arange(6.0).view(3, 2).npu().t()
    with pytest.warns(UserWarning, match="boundary tensor is non-contiguous"):
        torch.searchsorted(sorted_rows, torch.zeros(2, 2).npu())
