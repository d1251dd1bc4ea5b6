"""torch.npu.amp.GradScaler: torch's scaler, with torch_npu's differences."""

import pytest
import torch

npu = torch.npu
pytestmark = pytest.mark.usefixtures("no_fallback")


def weights_and_optimizers(count=2, **options):
    weights = [torch.ones(4, device="npu", requires_grad=True) for _ in range(count)]
    return weights, [torch.optim.SGD([weight], 0.5, **options) for weight in weights]


def backward(scaler, weights, factors):
    for weight, factor in zip(weights, factors, strict=True):
        weight.grad = None
        scaler.scale((weight * factor).sum()).backward()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("infinite", [0, 1])
@pytest.mark.parametrize("unscaled", [(), (0,), (0, 1)], ids=str)
def test_one_optimizers_overflow_skips_those_after_it(unscaled, infinite, fused):
    """A step taken before the overflow is found, by a later step(), stays."""
    weights, optimizers = weights_and_optimizers(fused=fused)
    scaler = npu.amp.GradScaler(init_scale=4.0, growth_interval=1)
    factors = [1.0, 1.0]
    factors[infinite] = float("inf")
    backward(scaler, weights, factors)
    for i in unscaled:
        scaler.unscale_(optimizers[i])
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    found_before_the_first_step = infinite == 0 or 1 in unscaled
    assert weights[0][0].item() == (1.0 if found_before_the_first_step else 0.5)
    assert weights[1][0].item() == 1.0
    assert scaler.get_scale() == 2.0

    backward(scaler, weights, [1.0, 1.0])  # the next iteration starts without an overflow
    before = [weight[0].item() for weight in weights]
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert [weight[0].item() for weight in weights] == [value - 0.5 for value in before]
    assert scaler.get_scale() == 4.0


def test_fixed_scale_skips_nothing_in_any_iteration():
    (weight,), (optimizer,) = weights_and_optimizers(1)
    scaler = npu.amp.GradScaler(init_scale=4.0, growth_interval=1, dynamic=False)
    for value in (0.5, 0.0):
        backward(scaler, [weight], [1.0])
        scaler.step(optimizer)
        scaler.update()
        assert weight[0].item() == value
        assert scaler.get_scale() == 4.0
    backward(scaler, [weight], [float("inf")])
    scaler.step(optimizer)
    scaler.update(8.0)
    assert weight[0].item() == float("-inf")
    assert scaler.get_scale() == 8.0


def test_state_tells_whether_the_scale_is_fixed():
    fixed, other = npu.amp.GradScaler(8.0, dynamic=False), npu.amp.GradScaler()
    other.load_state_dict(fixed.state_dict())
    assert other.state_dict() == fixed.state_dict()
    assert other.state_dict()["dynamic"] is False
    other.load_state_dict(torch.amp.GradScaler("npu", 2.0).state_dict())
    assert other.state_dict() == {**fixed.state_dict(), "scale": 2.0}


def test_disabled_scaler_steps_and_has_no_state():
    (weight,), (optimizer,) = weights_and_optimizers(1)
    for dynamic in (True, False):
        scaler = npu.amp.GradScaler(dynamic=dynamic, enabled=False)
        backward(scaler, [weight], [1.0])
        scaler.step(optimizer)
        scaler.update()
        assert scaler.state_dict() == {}
    assert weight[0].item() == 0.0
