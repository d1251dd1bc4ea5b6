"""cumprod, cummax and cummin."""

import pytest
import torch
from against_cpu import FLOATS, check, make

pytestmark = pytest.mark.usefixtures("no_fallback")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_cumprod_cummax_and_cummin(dtype):
    x = make(dtype, 3, 5, 4)
    for dim in (0, 1, -1):
        check(lambda t, d=dim: t.cumprod(d), x)
        check(lambda t, d=dim: t.transpose(0, 1).cummax(d).values, x)
        check(lambda t, d=dim: t.cummin(d).values, x)
    host = torch.tensor([1, 3, 3, float("nan"), 9, 2]).to(dtype)
    for name in ("cummax", "cummin"):
        got, expected = getattr(host.npu(), name)(0), getattr(host, name)(0)
        assert torch.equal(got.indices.cpu(), expected.indices), name
        assert torch.equal(got.values.cpu().isnan(), expected.values.isnan())
    assert torch.tensor([3, 2, 4]).npu().cumprod(0).tolist() == [3, 6, 24]
    assert torch.tensor([False, True, False]).npu().cummax(0).values.tolist() == [False, True, True]
