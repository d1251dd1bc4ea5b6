"""Operators that fall back to the CPU: 16-bit floats, views, several devices."""

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_ops_missing_on_cpu_in_16_bit_are_computed_in_float32(dtype):
    x = torch.randn(2, 3, 8, 8, dtype=dtype).npu()
    got = torch.linalg.householder_product(x, x[..., 0])
    wide = x.cpu().float()
    expected = torch.linalg.householder_product(wide, wide[..., 0])
    assert got.dtype == dtype
    assert torch.equal(got.cpu(), expected.to(dtype))  # one rounding, no more
    pooled = torch.nn.functional.avg_pool3d(x, 2)
    assert torch.equal(pooled.cpu(), torch.nn.functional.avg_pool3d(wide, 2).to(dtype))


def test_upcast_fallback_writes_its_out_argument():
    x = torch.randn(6).half()
    out = torch.empty(12, dtype=torch.half, device="npu")[::2]
    assert torch.cumprod(x.npu(), 0, out=out) is out
    assert torch.equal(out.cpu(), torch.cumprod(x.float(), 0).half())
    inplace = x.npu()
    assert inplace.cumprod_(0) is inplace
    assert torch.equal(inplace.cpu(), out.cpu())
    assert torch.cumsum(x.npu(), 0, dtype=torch.float32).dtype == torch.float32
    assert torch.logcumsumexp(x.npu(), 0).dtype == torch.half


def test_fallback_with_out_view_fills_the_view():
    x = torch.zeros(2, 3, device="npu")
    given = torch.tensor([[0.0, 1], [2, 3]])
    torch.special.airy_ai(given.npu(), out=x.narrow(1, 1, 2))
    assert torch.equal(x[:, 1:].cpu(), torch.special.airy_ai(given)) and not x[:, 0].any()


def test_fallback_refuses_tensors_on_two_devices():
    x, n = torch.rand(3).npu(), torch.arange(3)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.special.hermite_polynomial_h(x, n)
