"""Max pools whose windows begin at random places."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import FLOATS, check

pytestmark = pytest.mark.usefixtures("no_fallback")


def distinct(dtype, *shape):
    """Values without ties, exact in every type."""
    count = torch.Size(shape).numel()
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return order.reshape(shape).to(dtype).requires_grad_()


def samples(dtype, images, rank):
    generator = torch.Generator().manual_seed(1)
    drawn = torch.rand(2, images, rank, generator=generator, dtype=torch.float64)
    return drawn.mul(128).floor().div(128).to(dtype)  # exact in every type


@pytest.mark.parametrize("window, size", [(2, 3), ((3, 2), (1, 4)), ((1, 3), (7, 5))], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_over_two_dimensions(dtype, window, size):
    x, drawn = distinct(dtype, 2, 2, 7, 8), samples(dtype, 2, 2)
    check(lambda t, s: F.fractional_max_pool2d(t, window, size, _random_samples=s), x, drawn)
    check(lambda t, s: F.fractional_max_pool2d(t[0], window, size, _random_samples=s[:1]), x, drawn)
    got = F.fractional_max_pool2d(x.npu(), window, size, None, True, drawn.npu())
    if dtype.itemsize > 2:
        for result, want in zip(
            got, F.fractional_max_pool2d(x, window, size, None, True, drawn), strict=True
        ):
            assert torch.equal(result.cpu(), want)


@pytest.mark.parametrize("window, size", [(2, 3), ((3, 2, 1), (1, 4, 6))], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_over_three_dimensions(dtype, window, size):
    x, drawn = distinct(dtype, 2, 1, 5, 6, 7), samples(dtype, 1, 3)
    check(lambda t, s: F.fractional_max_pool3d(t, window, size, _random_samples=s), x, drawn)
    check(lambda t, s: F.fractional_max_pool3d(t[0], window, size, _random_samples=s[:1]), x, drawn)


def test_samples_of_the_device():
    x = torch.rand(3, 4, 32, 32, device="npu")
    torch.npu.manual_seed(5)
    y = F.fractional_max_pool2d(x, 2, output_ratio=(0.7, 0.7))
    torch.npu.manual_seed(5)
    assert y.shape == (3, 4, 22, 22)
    assert torch.equal(F.fractional_max_pool2d(x, 2, output_ratio=(0.7, 0.7)), y)
    assert not torch.equal(F.fractional_max_pool2d(x, 2, output_ratio=(0.7, 0.7)), y)


def test_refused_arguments():
    x, drawn = torch.rand(1, 1, 6, 6, 6, device="npu"), torch.rand(1, 1, 3, device="npu")
    with pytest.raises(RuntimeError, match="too large relative to input"):
        F.fractional_max_pool3d(x, 4, 5, _random_samples=drawn)
    with pytest.raises(RuntimeError, match="expected a gradient and indices"):
        torch.ops.aten.fractional_max_pool3d_backward(
            x[..., :2], x, [2] * 3, [3] * 3, torch.zeros_like(x[..., :2], dtype=torch.int64)
        )
