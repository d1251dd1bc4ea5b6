"""Activations, losses, pooling and normalisation with kernels of their own, and their gradients."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import FLOATS, check, make

pytestmark = pytest.mark.usefixtures("no_fallback")

ACTIVATIONS = {
    "softplus": lambda x: F.softplus(x, beta=2, threshold=3),
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
    "transposed": lambda x: F.softplus(x.transpose(1, 2)),
    "flip": lambda x: x.flip(0, 2),
    "roll": lambda x: x.roll((3, -1), (1, 2)).roll(4),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activations(name, dtype):
    if name == "hardsigmoid" and dtype == torch.float64:
        pytest.skip("the CPU's sixth is a float's")
    check(ACTIVATIONS[name], make(dtype, 3, 5, 7))
    check(ACTIVATIONS[name], make(dtype, 0, 5, 7))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_prelu(dtype):
    check(F.prelu, make(dtype, 2, 5, 3), make(dtype, 5, seed=1))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_pointwise_losses(dtype, reduction):
    x, y = make(dtype, 4, 6), make(dtype, 4, 6, seed=1).detach()
    check(lambda a, b: F.mse_loss(a, b, reduction=reduction), x, y)
    check(lambda a, b: F.smooth_l1_loss(a, b, beta=0.7, reduction=reduction), x, y)
    check(lambda a, b: F.huber_loss(a, b, delta=0.7, reduction=reduction), x, y)
    check(lambda a, b: F.l1_loss(a, b, reduction=reduction), x, y)
    p, q = x.detach().sigmoid().requires_grad_(), y.sigmoid()
    weight = torch.linspace(0.5, 2, 6).to(dtype)
    check(lambda a, b, w: F.binary_cross_entropy(a, b, w, reduction=reduction), p, q, weight)
    check(lambda a, b: F.binary_cross_entropy_with_logits(a, b, reduction=reduction), x, q)


def test_binary_cross_entropy_refuses_what_is_no_probability():
    x = torch.tensor([0.5, 1.5], device="npu")
    F.binary_cross_entropy(x, torch.ones(2, device="npu"))
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        torch.npu.synchronize()
    extreme = torch.tensor([0.0, 1.0], device="npu")
    assert F.binary_cross_entropy(extreme, 1 - extreme).item() == 100


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_classes_of_places(reduction):
    scores = make(torch.float32, 2, 5, 3, 4)
    target = torch.randint(5, (2, 3, 4), generator=torch.Generator().manual_seed(0))
    target[0, 1] = -100
    weight = torch.linspace(0.5, 2, 5)
    check(lambda s, t, w: F.cross_entropy(s, t, w, reduction=reduction), scores, target, weight)
    with pytest.raises(RuntimeError, match=r"N, H, W"):
        torch.ops.aten.nll_loss2d_forward(scores.npu(), target[:, :2].npu(), None, 1, -100)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_pooling(dtype):
    x = make(dtype, 2, 3, 9, 8)
    check(lambda t: F.max_pool2d(t, 3, 2, 1), x)
    check(lambda t: F.max_pool2d(t, (2, 3), (1, 2), (0, 1), dilation=(3, 2), ceil_mode=True), x)
    check(lambda t: F.max_pool1d(t[0], 3), x)
    check(lambda t: F.avg_pool2d(t, 3, 2, 1), x)
    check(lambda t: F.avg_pool2d(t, 3, 2, 1, ceil_mode=True, count_include_pad=False), x)
    check(lambda t: F.avg_pool2d(t, (2, 3), divisor_override=5), x)
    check(lambda t: F.adaptive_avg_pool2d(t, (4, 3)), x)
    check(lambda t: F.adaptive_avg_pool2d(t[0], 1), x)
    channels_last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    check(lambda t: F.max_pool2d(t, 2), channels_last)
    values, places = F.max_pool2d(x.npu(), 2, return_indices=True)
    expected, expected_places = F.max_pool2d(x, 2, return_indices=True)
    assert torch.equal(places.cpu(), expected_places) and torch.equal(values.cpu(), expected)


def test_pooling_of_nan_and_of_no_room():
    x = torch.tensor([[[1.0, float("nan"), 3.0, -float("inf")]]], device="npu")
    assert F.max_pool2d(x, (1, 2)).isnan().tolist() == [[[True, False]]]
    with pytest.raises(RuntimeError, match=r"[Oo]utput size is too small"):
        F.max_pool2d(x, 3)
    with pytest.raises(RuntimeError, match=r"two, not negative"):
        torch.ops.aten._adaptive_avg_pool2d(x, [-1, 2])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients_of_normalisation(dtype, training):
    x, weight, bias = make(dtype, 4, 6, 5), make(dtype, 6, seed=1), make(dtype, 6, seed=2)
    mean, variance = make(dtype, 6, seed=3).detach(), make(dtype, 6, seed=4).detach().abs()

    def batch_norm(x, weight, bias, mean, variance):
        return F.batch_norm(x, mean.clone(), variance.clone(), weight, bias, training)

    check(batch_norm, x, weight, bias, mean, variance)
    check(lambda x, w, b: F.group_norm(x, 3, w, b), x, weight, bias)
    check(lambda x: F.group_norm(x, 2), x)
    check(lambda x: torch.cat([t.flatten() for t in torch.var_mean(x, (0, 2), correction=0)]), x)
    check(lambda x: torch._weight_norm(x, x.norm(dim=(1, 2), keepdim=True), 0), x)
