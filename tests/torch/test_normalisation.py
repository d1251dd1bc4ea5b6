"""Batch and group normalisation, and spectral norm."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import FLOATS, check, equal_on_cpu, make


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_normalisation_gradients(dtype, training):
    x, weight, bias = make(dtype, 4, 6, 5), make(dtype, 6, seed=1), make(dtype, 6, seed=2)
    mean, variance = make(dtype, 6, seed=3).detach(), make(dtype, 6, seed=4).detach().abs()

    def batch_norm(x, weight, bias, mean, variance):
        return F.batch_norm(x, mean.clone(), variance.clone(), weight, bias, training)

    check(batch_norm, x, weight, bias, mean, variance)
    check(lambda x, w, b: F.group_norm(x, 3, w, b), x, weight, bias)
    check(lambda x: F.group_norm(x, 2), x)
    check(lambda x: torch.cat([t.flatten() for t in torch.var_mean(x, (0, 2), correction=0)]), x)
    check(lambda x: torch._weight_norm(x, x.norm(dim=(1, 2), keepdim=True), 0), x)


@pytest.mark.parametrize("shape", [(8, 3), (4, 3, 5), (2, 3, 4, 5)])
def test_batch_norm_updates_its_running_statistics(shape):
    x = torch.randn(shape)
    ours = torch.nn.BatchNorm1d(3) if len(shape) < 4 else torch.nn.BatchNorm2d(3)
    theirs = type(ours)(3)
    ours.npu()
    for _ in range(2):
        theirs(x)
        ours(x.npu())
    torch.testing.assert_close(ours.running_mean.cpu(), theirs.running_mean)
    torch.testing.assert_close(ours.running_var.cpu(), theirs.running_var)
    torch.testing.assert_close(ours.eval()(x.npu()).cpu(), theirs.eval()(x))
    with torch.autocast("npu", enabled=False):
        half = ours.half().train()(x.half().npu())
    assert half.dtype == torch.half


def test_batch_norm_has_gradients():
    def gradients(x, weight):
        x, weight = x.requires_grad_(), weight.requires_grad_()
        y = torch.nn.functional.batch_norm(x, None, None, weight, None, training=True)
        (y * y.detach().cos()).sum().backward()
        return y.detach(), x.grad, weight.grad

    # Sums of float32 in another order.
    equal_on_cpu(gradients, torch.randn(4, 3, 5), torch.rand(3), rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(6, 5), (3, 4, 9), (2, 3, 5, 70), (2, 3, 4, 5, 6)])
@pytest.mark.parametrize(
    # Relative norm: rounding of results and of what the reference gets, which is exact before.
    ("dtype", "tolerance"),
    [(torch.float32, 1e-6), (torch.bfloat16, 8e-3), (torch.float16, 1e-3), (torch.float64, 1e-14)],
    ids=str,
)
def test_batch_norm_is_as_exact_as_its_type(dtype, tolerance, shape, training):
    channels = shape[1]
    given = [torch.randn(shape) * 2 + 3, torch.rand(channels) + 0.5, torch.randn(channels)]
    given += [torch.randn(channels), torch.rand(channels) + 0.5, torch.randn(shape)]
    given = [tensor.to(dtype) for tensor in given]

    def results(convert):
        x, weight, bias, mean, variance, grad = (convert(tensor.clone()) for tensor in given)
        parameters = [tensor.requires_grad_() for tensor in (x, weight, bias)]
        y = torch.nn.functional.batch_norm(x, mean, variance, weight, bias, training, 0.3, 1e-3)
        y.backward(grad)
        return [y.detach(), mean, variance, *(tensor.grad for tensor in parameters)]

    expected = results(lambda tensor: tensor.double())
    for got, exact in zip(results(lambda tensor: tensor.npu()), expected, strict=True):
        assert (got.cpu().double() - exact).norm() <= tolerance * exact.norm()


@pytest.mark.parametrize("parameters", [0, 1, 2])
@pytest.mark.parametrize(
    ("shape", "axes"), [((33, 7), 1), ((4, 300), 1), ((3, 5, 70), 2), ((9,), 1)]
)
@pytest.mark.parametrize(
    # Relative norm: rounding of results and of the statistics, which the reference has in float64.
    ("dtype", "tolerance"),
    [(torch.float32, 1e-6), (torch.bfloat16, 8e-3), (torch.float16, 1e-3), (torch.float64, 1e-14)],
    ids=str,
)
def test_layer_norm_gradients_are_as_exact_as_their_type(dtype, tolerance, shape, axes, parameters):
    normalized = shape[-axes:]
    given = [torch.randn(shape) * 2 + 1, torch.rand(normalized) + 0.5, torch.randn(normalized)]
    given = [tensor.to(dtype) for tensor in given[: 1 + parameters]]
    grad = torch.randn(shape).to(dtype)

    def gradients(convert):
        x, *rest = (convert(tensor.clone()).requires_grad_() for tensor in given)
        torch.nn.functional.layer_norm(x, normalized, *rest).backward(convert(grad))
        return [tensor.grad for tensor in (x, *rest)]

    expected = gradients(lambda tensor: tensor.double())
    for got, exact in zip(gradients(lambda tensor: tensor.npu()), expected, strict=True):
        assert (got.cpu().double() - exact).norm() <= tolerance * exact.norm()


def test_distributed_batch_norm_parts_match_the_whole():
    x, grad = torch.randn(6, 3, 4), torch.randn(6, 3, 4)
    halves = [h.npu() for h in x.chunk(2)]
    stats = [torch.batch_norm_stats(h, 1e-5) for h in halves]
    means, deviations = (torch.stack(part) for part in zip(*stats, strict=True))
    running = torch.zeros(3).npu(), torch.ones(3).npu()
    counts = torch.tensor([12.0, 12.0]).npu()
    mean, deviation = torch.batch_norm_gather_stats_with_counts(
        halves[0], means, deviations, *running, 0.1, 1e-5, counts
    )
    twin = torch.nn.BatchNorm1d(3)
    x.requires_grad_()
    expected = twin(x)
    expected.backward(grad)
    torch.testing.assert_close(running[1].cpu(), twin.running_var)
    got = torch.batch_norm_elemt(halves[0], None, None, mean, deviation, 1e-5)
    torch.testing.assert_close(got.cpu(), expected[:3].detach(), rtol=1e-5, atol=1e-5)
    grads = [g.npu() for g in grad.chunk(2)]
    sums = [
        torch.batch_norm_backward_reduce(g, h, mean, deviation, None, True, True, True)
        for g, h in zip(grads, halves, strict=True)
    ]
    total, centred = sums[0][0] + sums[1][0], sums[0][1] + sums[1][1]
    dx = torch.batch_norm_backward_elemt(
        grads[0], halves[0], mean, deviation, None, total, centred, counts.int()
    )
    # Sums of float32 in another order.
    torch.testing.assert_close(dx.cpu(), x.grad[:3], rtol=1e-5, atol=5e-6)
    torch.testing.assert_close((sums[0][2] + sums[1][2]).cpu(), twin.weight.grad)
    torch.testing.assert_close((sums[0][3] + sums[1][3]).cpu(), twin.bias.grad)


@pytest.mark.parametrize("affine", [True, False])
def test_group_norm_rounds_once(affine):
    x = (torch.rand(20, 6, 10, 10) * 200 - 100).half()
    scale = torch.randn(2, 6).half() if affine else (None, None)

    def normal(device, dtype):
        weights = [None if s is None else s.to(device, dtype) for s in scale]
        return torch.nn.functional.group_norm(x.to(device, dtype), 2, *weights).cpu()

    assert (normal("npu", torch.half) != normal("cpu", torch.double).half()).sum() <= 12  # of 12000


@pytest.mark.no_values
def test_group_norm_refuses_mismatched_arguments():
    x, three = torch.randn(2, 6, 4).npu(), torch.randn(3).npu()
    with pytest.raises(RuntimeError, match="Expected weight"):
        torch.native_group_norm(x, three, None, 2, 6, 4, 2, 1e-5)
    with pytest.raises(RuntimeError, match="divisible by num_groups"):
        torch.native_group_norm(x, None, None, 2, 6, 4, 4, 1e-5)
    with pytest.raises(RuntimeError, match="expected 2 x 6 x 5 elements"):
        torch.native_group_norm(x, None, None, 2, 6, 5, 2, 1e-5)
    empty = torch.native_group_norm(x[:0], None, None, 0, 6, 4, 2, 1e-5)
    assert empty[0].shape == (0, 6, 4) and empty[1].shape == (0, 2)


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("kept", [True, False])
def test_compiled_batch_norm_trains_without_cpu_fallback(kept, momentum):
    module = torch.nn.BatchNorm2d(3, momentum=momentum, track_running_stats=kept).npu()
    twin = torch.nn.BatchNorm2d(3, momentum=momentum, track_running_stats=kept)
    x = torch.randn(4, 3, 5, 5)
    compiled = torch.compile(module, backend="aot_eager")
    for _ in range(2):
        compiled(x.npu()).square().sum().backward()
        twin(x).square().sum().backward()
    # Sums of 200 products of float32, in another order.
    torch.testing.assert_close(module.weight.grad.cpu(), twin.weight.grad, rtol=1e-5, atol=1e-5)
    if kept:
        torch.testing.assert_close(module.running_var.cpu(), twin.running_var)


@pytest.mark.usefixtures("no_fallback")
def test_spectral_norm_stays_on_the_device():
    layer = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(6, 4))
    twin = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(6, 4).npu())
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(3, 6)
    torch.testing.assert_close(twin(x.npu()).cpu(), layer(x))
