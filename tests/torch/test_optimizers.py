"""Optimizers on npu match the CPU: fused, capturable, scaled, and without a fallback."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

npu = torch.npu
pytestmark = pytest.mark.usefixtures("no_fallback")

CASES: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "fused": True}),
    (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1, "maximize": True, "fused": True}),
    (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "fused": True}),
    (torch.optim.AdamW, {"lr": 0.01}),
    (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True, "maximize": True, "fused": True}),
    (torch.optim.AdamW, {"lr": 0.01, "foreach": False}),
    (torch.optim.AdamW, {"lr": 0.01, "capturable": True}),
    (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.9}),
    (torch.optim.Adagrad, {"lr": 0.01}),
    (torch.optim.Adagrad, {"lr": 0.01, "lr_decay": 0.1, "weight_decay": 0.1, "fused": True}),
    (torch.optim.Adagrad, {"lr": 0.01, "maximize": True, "eps": 1e-3, "fused": True}),
    (torch.optim.Adadelta, {}),
    (torch.optim.Adamax, {}),
    (torch.optim.NAdam, {}),
    (torch.optim.RAdam, {}),
    (torch.optim.Adafactor, {}),
]


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(5, 6, generator=generator), torch.tensor([0, 2, 1, 1, 0])


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0].__name__}-{'-'.join(c[1])}")
def test_steps_match_cpu(case):
    kind, options = case
    model = make_model()
    on_npu = copy.deepcopy(model).npu()
    host_options = {name: v for name, v in options.items() if name not in ("fused", "capturable")}
    x, y = batch()
    for module, chosen in ((model, host_options), (on_npu, options)):
        optimizer = kind(module.parameters(), **chosen)
        device = next(module.parameters()).device
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(module(x.to(device)), y.to(device)).backward()
            optimizer.step()
    for got, expected in zip(on_npu.parameters(), model.parameters(), strict=True):
        # Gradients are sums of float32 in another order.
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("options", [{"fused": True}, {}], ids=["fused", "foreach"])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_scaler_skips_steps_with_infinities(kind, options):
    model = make_model().npu()
    optimizer = kind(model.parameters(), lr=0.1, **options)
    scaler = torch.amp.GradScaler("npu", init_scale=64.0, growth_interval=2)
    x, y = (t.npu() for t in batch())
    kept, scales = [], []
    for i in range(5):
        before = model[0].weight.detach().clone()
        optimizer.zero_grad()
        with torch.autocast("npu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss * (float("inf") if i == 1 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        kept.append(torch.equal(before, model[0].weight))
        scales.append(scaler.get_scale())
    assert kept == [False, True, False, False, False]
    assert scales == [64, 32, 32, 64, 64]
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_unscaling_accepts_any_layout():
    grads = [
        torch.full((3, 4), 6.0, device="npu"),
        torch.full((4, 3), 6.0, device="npu").t(),
        torch.full((6, 4), 6.0, device="npu")[::2],
        torch.full((5,), 6.0, dtype=torch.float16, device="npu"),
        torch.empty(0, device="npu"),
    ]
    found, inverse = torch.zeros(1, device="npu"), torch.full((1,), 0.5, device="npu")
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
    assert all(bool((g == 3).all()) for g in grads) and found.item() == 0
    grads[1][2, 1] = float("nan")
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
    assert found.item() == 1
    with pytest.raises(RuntimeError, match=r"expected inv_scale to be one"):
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, torch.ones(2, device="npu"))


@pytest.mark.parametrize(
    "options", [{"fused": True}, {"capturable": True}, {"foreach": False, "capturable": True}]
)
def test_captured_adamw_step(options):
    """With bf16 and clipped gradients, as in training loops: replays equal eager steps."""
    eager, captured = make_model().npu(), make_model().npu()
    x, y = (t.npu() for t in batch())
    x_in = x.clone()

    def step(module, optimizer, x):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("npu", dtype=torch.bfloat16, cache_enabled=False):
            loss = F.cross_entropy(module(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
        return loss

    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01, **options) for m in (eager, captured)]
    stream = npu.Stream()
    stream.wait_stream(npu.current_stream())
    with npu.stream(stream):
        step(captured, optimizers[1], x_in)  # creates the optimizer's state
    npu.current_stream().wait_stream(stream)
    step(eager, optimizers[0], x)
    graph = npu.NPUGraph()
    with npu.graph(graph):
        loss = step(captured, optimizers[1], x_in)
    for i in range(3):
        new = x * (i + 1)
        x_in.copy_(new)
        graph.replay()
        assert loss.item() == step(eager, optimizers[0], new).item()
    for got, expected in zip(captured.parameters(), eager.parameters(), strict=True):
        assert torch.equal(got, expected)


def test_fused_step_accepts_any_layout_and_refuses_mismatches():
    def parameters(device):
        weight = torch.arange(12.0).view(3, 4).to(device).t().detach().requires_grad_()
        weight.grad = torch.linspace(-1, 1, 12).view(4, 3).to(device)
        return [weight]

    on_npu, on_cpu = parameters("npu"), parameters("cpu")
    for leaves, fused in ((on_npu, True), (on_cpu, False)):
        optimizer = torch.optim.AdamW(leaves, lr=0.1, fused=fused)
        optimizer.step()
        optimizer.step()
    torch.testing.assert_close(on_npu[0].detach().cpu(), on_cpu[0].detach())
    p, one = torch.ones(3, device="npu"), torch.ones((), device="npu")
    numbers = {
        "lr": 0.1, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False,
        "maximize": False,
    }  # fmt: skip
    for lists, message in (
        (([p], [p[:2]], [p], [p], [], [one]), "expected grads like the parameter"),
        (([p], [p], [], [p], [], [one]), "one of exp_avgs for each of 1"),
        (([p], [p], [p], [p], [], [p]), "state_steps to be one float32"),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch._fused_adamw_(*lists, **numbers)
