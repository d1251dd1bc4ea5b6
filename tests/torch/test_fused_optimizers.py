"""``torch_npu.optim``: the steps match torch's optimizers on the CPU."""

import copy

import pytest
import torch
from onnxruntime_npu import optim

pytestmark = pytest.mark.usefixtures("no_fallback")

PAIRS = [
    (optim.NpuFusedAdam, torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    (optim.NpuFusedAdamW, torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    (optim.NpuFusedAdamW, torch.optim.AdamW, {"betas": (0.8, 0.9), "eps": 1e-6}),
    (optim.NpuFusedSGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (optim.NpuFusedSGD, torch.optim.SGD, {"lr": 0.1, "dampening": 0.1, "momentum": 0.5}),
    (optim.NpuFusedRMSprop, torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    (optim.NpuFusedAdadelta, torch.optim.Adadelta, {"weight_decay": 0.01}),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0].__name__}-{'-'.join(pair[2])}")
def test_fused_steps_match_torch(pair):
    ours, theirs, options = pair
    torch.manual_seed(0)
    host = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    x = torch.randn(5, 6)
    device = copy.deepcopy(host).npu()
    for model, kind in ((host, theirs), (device, ours)):
        optimizer = kind(model.parameters(), **options)
        for _ in range(4):
            optimizer.zero_grad()
            model(x.to(next(model.parameters()).device)).square().sum().backward()
            optimizer.step()
        kind(model.parameters(), **options).load_state_dict(optimizer.state_dict())
    for got, expected in zip(device.parameters(), host.parameters(), strict=True):
        # Steps amplify what sums of float32 in another order differ by.
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)


def test_clipping_spans_all_groups_and_zero_grad_keeps_gradients():
    first, second = (torch.zeros(3, device="npu", requires_grad=True) for _ in range(2))
    optimizer = optim.NpuFusedAdamW([{"params": [first]}, {"params": [second], "lr": 0.1}])
    first.grad, second.grad = torch.full((3,), 3.0).npu(), torch.full((3,), 4.0).npu()
    assert optimizer.clip_grad_norm_fused_(1.0).item() == pytest.approx(75**0.5)
    assert second.grad.cpu().tolist() == pytest.approx([4 / 75**0.5] * 3)
    kept = first.grad
    optimizer.zero_grad()
    assert first.grad is kept and not kept.any()
    optimizer.zero_grad(set_to_none=True)
    assert first.grad is None
    assert isinstance(optimizer, optim.NpuFusedOptimizerBase) and optimizer.is_fused_optimizer


def test_gradient_scaler_skips_steps_with_infinite_gradients():
    weight = torch.ones(2, device="npu", requires_grad=True)
    optimizer = optim.NpuFusedAdamW([weight], lr=0.1)
    scaler = torch.amp.GradScaler("npu", init_scale=4.0)
    for factor, moved in ((float("inf"), False), (1.0, True)):
        before = weight.detach().clone()
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert (not torch.equal(weight, before)) == moved
    assert scaler.get_scale() == 2.0


def test_wrong_options_are_refused():
    weight = torch.ones(2, device="npu", requires_grad=True)
    with pytest.raises(ValueError, match="Invalid learning rate"):
        optim.NpuFusedAdamW([weight], lr=-1.0)
    with pytest.raises(TypeError, match="lr"):
        optim.NpuFusedSGD([weight])
