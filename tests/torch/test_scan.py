"""cumprod, cummax, cummin and logcumsumexp."""

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


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_logcumsumexp(dtype):
    x = make(dtype, 3, 5, 4)
    for dim in (0, 1, -1):
        check(lambda t, d=dim: t.logcumsumexp(d), x)
    inf, nan = float("inf"), float("nan")
    rows = torch.tensor([[-inf, -inf, 1, inf, inf, 2], [1, nan, inf, 2, 3, 4]]).to(dtype)
    torch.testing.assert_close(
        rows.npu().logcumsumexp(1).cpu(), rows.logcumsumexp(1), equal_nan=True
    )
    assert torch.tensor(2.0).npu().logcumsumexp(0).item() == 2
    out = torch.empty(6, 2).t().npu()
    torch.logcumsumexp(rows.float().npu(), 1, out=out)
    torch.testing.assert_close(out.cpu(), rows.float().logcumsumexp(1), equal_nan=True)
