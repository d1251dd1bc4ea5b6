"""Activations with kernels of their own, and their gradients."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import FLOATS, check, make

pytestmark = pytest.mark.usefixtures("no_fallback")

ACTIVATIONS = {
    "softplus": lambda x: F.softplus(x, beta=2, threshold=3),
    "threshold": lambda x: F.threshold(x, 0.1, -2.0),
    "threshold_in_place": lambda x: F.threshold(x * 1, 0.1, -2.0, inplace=True),
    "elu": lambda x: F.elu(x, 0.7),
    "elu_in_place": lambda x: F.elu(x * 1, 0.7, inplace=True),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 1.3),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "mish": F.mish,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardswish_in_place": lambda x: F.hardswish(x * 1, inplace=True),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.8),
    "relu6": F.relu6,
    "logsigmoid": F.logsigmoid,
    "hardshrink": lambda x: F.hardshrink(x, 0.7),
    "softshrink": lambda x: F.softshrink(x, 0.7),
    "rrelu_in_eval": lambda x: F.rrelu(x, 0.1, 0.4),
    "transposed": lambda x: F.softplus(x.transpose(1, 2)),
    "flip": lambda x: x.flip(0, 2),
    "roll": lambda x: x.roll((3, -1), (1, 2)).roll(4),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activations(name, dtype):
    if name == "hardsigmoid" and dtype == torch.float64:
        pytest.skip("the CPU computes 1/6 in float32")
    check(ACTIVATIONS[name], make(dtype, 3, 5, 7))
    check(ACTIVATIONS[name], make(dtype, 0, 5, 7))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_prelu(dtype):
    check(F.prelu, make(dtype, 2, 5, 3), make(dtype, 5, seed=1))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_glu(dtype):
    check(lambda t: F.glu(t, 1), make(dtype, 3, 6, 5))
    check(lambda t: F.glu(t.transpose(0, 2)), make(dtype, 4, 6, 5))
    check(F.glu, make(dtype, 0, 6))
    with pytest.raises(RuntimeError, match="must be even"):
        F.glu(torch.ones(3, device="npu"))


def test_mish_and_logits_loss_round_once():
    x = (torch.randn(1000) * 20).half()
    wide, narrow = x.float().requires_grad_(), x.npu().requires_grad_()
    torch.nn.functional.mish(wide).sum().backward()
    torch.nn.functional.mish(narrow).sum().backward()
    # The two tanh differ in the last bit of a float32, which can change a rounding.
    assert (narrow.grad.cpu() != wide.grad.half()).sum() <= 2
    y, p = torch.rand(1000).half(), (torch.rand(1000) * 10).half()
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    got = loss(x.npu(), y.npu(), reduction="none", pos_weight=p.npu())
    expected = loss(x.float(), y.float(), reduction="none", pos_weight=p.float()).half()
    assert (got.cpu() != expected).sum() <= 2


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_shrinks_keep_nan(dtype):
    x = torch.tensor([float("nan"), float("inf"), -0.5, 0.5, 0.25, -float("inf")], dtype=dtype)
    for shrink in (F.hardshrink, F.softshrink):
        torch.testing.assert_close(shrink(x.npu()).cpu(), shrink(x), equal_nan=True)
    with pytest.raises(RuntimeError, match="lambda must be in range"):
        F.softshrink(x.npu(), -1)


def test_random_slopes_of_rrelu():
    x = torch.linspace(-2, 2, 2001, device="npu")[:-1].requires_grad_()
    torch.npu.manual_seed(3)
    y = F.rrelu(x, 0.1, 0.4, training=True)
    y.sum().backward()
    slopes = (y / x).detach()
    assert torch.equal(y[x > 0], x[x > 0])
    below = slopes[x < 0]
    assert below.min().item() >= 0.1 and below.max().item() <= 0.4 + 1e-6
    assert below.std().item() == pytest.approx(0.3 / 12**0.5, rel=0.1)
    torch.testing.assert_close(x.grad[x != 0], slopes[x != 0])
    torch.npu.manual_seed(3)
    again = x.detach().clone()
    assert torch.equal(F.rrelu_(again, 0.1, 0.4, training=True), y) and torch.equal(again, y)


def test_shuffled_channels():
    x = torch.arange(48.0).view(2, 6, 2, 2)
    assert torch.equal(F.channel_shuffle(x.npu(), 3).cpu(), F.channel_shuffle(x, 3))
    with pytest.raises(RuntimeError, match="must be divisible by groups"):
        F.channel_shuffle(x.npu(), 4)
