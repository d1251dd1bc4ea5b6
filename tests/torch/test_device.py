"""Device integration in torch: files, DLPack, random numbers, gradients, autocast, compilation."""

import copy
import io
import subprocess
import sys
import threading

import onnxruntime_npu
import pytest
import torch
import torch.nn.functional as F
from null_backend import computed
from onnxruntime_npu import torch_device
from torch.utils import dlpack


def values(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def reload(value, **kwargs):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **kwargs)


def train(device: str) -> tuple[float, list[torch.Tensor]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(11, 8, padding_idx=0),
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16),
        torch.nn.Linear(16, 16), torch.nn.SiLU(), torch.nn.Linear(16, 8), torch.nn.Sigmoid(),
        torch.nn.Linear(8, 5), torch.nn.Tanh(), torch.nn.ReLU(),
    ).to(device)  # fmt: skip
    tokens = torch.randint(0, 11, (4, 6), generator=torch.Generator().manual_seed(1)).to(device)
    target = (tokens.flatten() % 5).masked_fill(tokens.flatten() == 3, -100)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, foreach=False)
    for _ in range(3):
        loss = F.cross_entropy(model(tokens).flatten(0, 1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item(), [p.detach().cpu() for p in model.parameters()]


SEVERAL_DEVICES = """
import onnxruntime_npu, torch
a = torch.arange(6.0).npu(1)
assert a.device.index == 1 and a.to("npu:0").device.index == 0
assert torch.equal(a.to("npu:0").cpu(), torch.arange(6.0))
with torch.device("npu:1"):
    assert torch.ones(2).device.index == 1
# Scalars move to the tensors' device, whichever device is current.
b = (((a + 2) * 0.5 - 1).clamp(0.25, 2) % 1.5).masked_fill(a > 4, 7)
b = torch.where(a < 1, b, 3.0) + torch.tensor(1.0)
assert b.device.index == 1 and b.tolist() == [1.25, 4, 4, 4, 4, 4], b
assert torch.add(a, a, alpha=2).device.index == 1
assert torch.rand(3, device="npu:1").device.index == 1
assert (a @ a).device.index == 1 and a.half().mul(0.5).sum().item() == 7.5 and a[a > 2].sum() == 12
try:
    a + torch.ones(6, device="npu:0")
except RuntimeError as error:
    assert "same device" in str(error), error
else:
    raise AssertionError("tensors of two devices in one operator")
"""

ANOTHER_TORCH = """
import warnings, sys
import onnxruntime_npu._torch_build as build
build.TORCH_VERSION = "1.0.0"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import onnxruntime_npu, torch
assert any("built for torch 1.0.0, got" in str(w.message) for w in caught), caught
assert onnxruntime_npu.npu_silu(torch.ones(2)).shape == (2,)
"""

THE_REAL_ONE = """
import sys, types, warnings
real = sys.modules["torch_npu"] = types.ModuleType("torch_npu")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import onnxruntime_npu, torch
assert sum("torch_npu is loaded" in str(w.message) for w in caught) == 1, caught
assert not hasattr(torch, "npu")
"""

DEVICE_BEFORE_TORCH = """
import warnings
warnings.simplefilter("error")
from onnxruntime_npu import torch_device
torch_device.default_generator()
import torch
assert torch_device.is_registered() and torch.ones(2, device="npu").sum().item() == 2
"""

FALLBACK = """
import torch, onnxruntime_npu
x = torch.ones(4, 4, device="npu")
assert (x @ x + x).sum().item() == 80
try:
    print(torch.special.airy_ai(x))
except NotImplementedError as error:
    print("refused:", error)
"""


@pytest.mark.no_values
def test_save_and_load():
    host = values(4, 6)
    device = host.npu()
    loaded = reload({"a": device, "view": device.t()[1:], "storage twice": device})
    assert loaded["a"].device == device.device
    assert torch.equal(loaded["a"].cpu(), computed(host))
    assert torch.equal(loaded["view"].cpu(), computed(host.t()[1:]))
    assert loaded["a"].data_ptr() == loaded["storage twice"].data_ptr()
    assert reload(device, map_location="cpu").device.type == "cpu"
    for target in ("npu", "npu:0", torch.device("npu", 0)):
        there = reload(host, map_location=target)
        assert there.device == device.device and torch.equal(there.cpu(), computed(host))


def test_modules_move_and_keep_their_state():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))
    moved = copy.deepcopy(model).npu()
    assert all(p.device.type == "npu" for p in moved.parameters())
    model.load_state_dict(reload(moved.state_dict(), map_location="cpu"))
    x = values(2, 4)
    torch.testing.assert_close(moved(x.npu()).cpu(), model(x))
    twin = copy.deepcopy(moved[0].weight)
    assert twin.data_ptr() != moved[0].weight.data_ptr() and torch.equal(twin, moved[0].weight)


@pytest.mark.no_values
def test_shared_parameters_stay_shared_on_the_device():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(5, 4)
            self.head = torch.nn.Linear(4, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x):
            return self.head(self.embedding(x))

    model = Tied()
    moved = copy.deepcopy(model).npu()
    assert moved.head.weight is moved.embedding.weight and len(list(moved.parameters())) == 1
    tokens = torch.tensor([1, 3])
    model(tokens).sum().backward()
    moved(tokens.npu()).sum().backward()
    expected = computed(model.head.weight.grad)
    torch.testing.assert_close(moved.head.weight.grad.cpu(), expected)
    back = moved.cpu()
    assert back.head.weight is back.embedding.weight and back.head.weight.device.type == "cpu"


@pytest.mark.no_values
def test_dlpack_shares_memory_in_both_directions():
    device = values(3, 4).npu()
    kind, index = device.__dlpack_device__()
    assert kind == dlpack.DLDeviceType.kDLExtDev and index == 0
    for other in (torch.from_dlpack(device), dlpack.from_dlpack(dlpack.to_dlpack(device.t()))):
        assert other.device == device.device and other.data_ptr() == device.data_ptr()
    torch.from_dlpack(device).fill_(3)
    assert bool((device == 3).all()) == computed(True)


@pytest.mark.no_values
def test_names_and_storages():
    device = values(2).npu()
    assert device.is_npu and not device.cpu().is_npu and torch.device("npu").type == "npu"
    assert device.untyped_storage().is_npu and device.untyped_storage().device == device.device
    assert torch.npu is onnxruntime_npu.npu
    assert torch.accelerator.current_accelerator() == torch.device("npu")


@pytest.mark.usefixtures("no_fallback")
def test_random_numbers_are_reproducible():
    torch.manual_seed(5)
    first = torch.randn(1000, device="npu")
    torch.manual_seed(5)
    assert torch.equal(torch.randn(1000, device="npu"), first)
    assert not torch.equal(torch.randn(1000, device="npu"), first)

    generator = torch.Generator("npu").manual_seed(7)
    state = generator.get_state()
    before = torch.npu.get_rng_state()
    first = torch.rand(1001, device="npu", generator=generator)
    assert torch.equal(torch.npu.get_rng_state(), before)  # a separate generator
    generator.set_state(state)
    assert torch.equal(torch.rand(1001, device="npu", generator=generator), first)
    other = torch.Generator("npu").manual_seed(8)
    assert not torch.equal(torch.rand(1001, device="npu", generator=other), first)
    with pytest.raises(RuntimeError, match="16 bytes, got 3"):
        generator.set_state(torch.zeros(3, dtype=torch.uint8))


@pytest.mark.usefixtures("no_fallback")
def test_random_distributions():
    torch.manual_seed(1)
    n = 200_000
    error = 5 / n**0.5  # five standard errors of a unit variance

    def moments(t):
        assert bool(t.isfinite().all())
        return t.double().mean().item(), t.double().var().item()

    mean, variance = moments(torch.randn(n, device="npu"))
    assert abs(mean) < error and abs(variance - 1) < 2 * error
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        uniform = torch.empty(n, device="npu", dtype=dtype).uniform_(2, 4)
        mean, variance = moments(uniform)
        assert abs(mean - 3) < error + 0.01 and abs(variance - 4 / 12) < error + 0.01
        assert uniform.min().item() >= 2 and uniform.max().item() < 4
    mean, variance = moments(torch.empty(n, device="npu").exponential_(2))
    assert abs(mean - 0.5) < error and abs(variance - 0.25) < 2 * error
    counts = torch.bincount(torch.randint(3, 8, (n,), device="npu").cpu(), minlength=8).tolist()
    assert counts[:3] == [0, 0, 0] and all(abs(c / n - 0.2) < error for c in counts[3:])
    kept = F.dropout(torch.ones(n, device="npu"), 0.25)
    assert abs(kept.mean().item() - 1) < error
    assert sorted(torch.randperm(50, device="npu").tolist()) == list(range(50))
    weights = torch.tensor([0.1, 0.0, 0.9], device="npu")
    drawn = torch.bincount(torch.multinomial(weights, n, True).cpu(), minlength=3).tolist()
    assert drawn[1] == 0 and abs(drawn[0] / n - 0.1) < error
    assert sorted(torch.multinomial(weights + 1, 3).tolist()) == [0, 1, 2]


@pytest.mark.usefixtures("no_fallback")
def test_training_matches_cpu_parameters():
    torch_device.reset_fallback_counts()
    (loss, parameters), (expected_loss, expected) = train("npu"), train("cpu")
    assert abs(loss - expected_loss) < 1e-5
    for p, e in zip(parameters, expected, strict=True):
        # Adam divides by the root of tiny second moments, which magnifies rounding.
        torch.testing.assert_close(p, e, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_classification_loss(reduction):
    logits, weight = values(6, 4), torch.rand(4)
    target = torch.tensor([0, 3, -100, 1, 2, 2])

    def run(device):
        x = logits.to(device).requires_grad_()
        loss = F.cross_entropy(x, target.to(device), weight.to(device), reduction=reduction)
        (loss * loss).sum().backward()
        return loss.detach().cpu(), x.grad.cpu()

    for result, expected in zip(run("npu"), run("cpu"), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions(backend):
    def function(x, w):
        return (F.silu(x @ w) + x.mean(-1, keepdim=True)).softmax(-1).square().sum()

    x, w = values(4, 4).npu(), values(4, 4).npu().requires_grad_()
    torch.compile(function, backend=backend)(x, w).backward()
    gradient, w.grad = w.grad, None
    function(x, w).backward()
    torch.testing.assert_close(gradient.cpu(), w.grad.cpu())


def test_inductor_uses_aot_eager_for_npu_graphs():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.inside(x).relu() * torch.arange(4.0, device=x.device)

    model = Scaled().npu()
    compiled = torch.compile(model, mode="reduce-overhead")
    x = values(4, 4).npu()
    with pytest.warns(UserWarning, match="inductor writes no code for npu"):
        result = compiled(x)
    torch.testing.assert_close(result.detach().cpu(), model(x).detach().cpu())
    result.sum().backward()
    assert model.inside.weight.grad.abs().sum() > 0
    made = torch.compile(lambda: torch.ones(3, device="npu") * 2)  # a graph without inputs
    with pytest.warns(UserWarning, match="inductor writes no code for npu"):
        assert made().tolist() == [2, 2, 2]


@pytest.mark.no_values
def test_autocast():
    a = values(4, 4).npu()
    with torch.autocast("npu", dtype=torch.bfloat16):
        product = a @ a
        assert product.dtype == torch.bfloat16 and product.exp().dtype == torch.float32
        assert F.linear(a, a).dtype == torch.bfloat16
    assert (a @ a).dtype == torch.float32
    # Operands and result are rounded to bfloat16, by up to 2^-9 of each; four products are added.
    torch.testing.assert_close(product.float().cpu(), a.cpu() @ a.cpu(), rtol=3e-2, atol=3e-2)


def test_operators_of_torch_npu_run_on_the_stream():
    x, gamma = values(4, 64), torch.ones(64)
    y, _ = onnxruntime_npu.npu_rms_norm(x.npu(), gamma.npu())
    assert y.device.type == "npu"
    torch.testing.assert_close(y.cpu(), onnxruntime_npu.npu_rms_norm(x, gamma)[0])
    with pytest.raises(
        ValueError, match=r"expected gamma on npu:0 like the other tensors, got cpu"
    ):
        onnxruntime_npu.npu_rms_norm(x.npu(), gamma)
    # Ordered after the stream's pending work.
    square = torch.eye(512, device="npu")
    for _ in range(20):
        square = square @ square
    result = onnxruntime_npu.npu_rms_norm(square, torch.ones(512, device="npu"))[0]
    expected = onnxruntime_npu.npu_rms_norm(torch.eye(512), torch.ones(512))[0]
    torch.testing.assert_close(result.cpu(), expected)


@pytest.mark.no_values
@pytest.mark.usefixtures("still_memory")
def test_memory_comes_from_the_runtime():
    torch.npu.synchronize()
    before = torch.npu.memory_allocated()
    block = torch.empty(1 << 20, device="npu")
    assert torch.npu.memory_allocated() >= before + (4 << 20)
    assert torch.accelerator.memory_allocated() == torch.npu.memory_allocated()
    del block
    assert torch.npu.memory_allocated() == before
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(1 << 50, device="npu", dtype=torch.uint8)
    assert torch.ones(3, device="npu").sum().item() == computed(3)


@pytest.mark.no_values
@pytest.mark.parametrize("kind", ["torch.Stream", "torch.npu.Stream"])
def test_memory_in_use_by_another_stream_is_not_reused(kind):
    of_torch = kind == "torch.Stream"
    side = torch.Stream("npu") if of_torch else torch.npu.Stream()
    current = torch.accelerator.current_stream if of_torch else torch.npu.current_stream
    for i in range(20):
        block = torch.full((1 << 18,), float(i), device="npu")
        side.wait_stream(current())
        with side if of_torch else torch.npu.stream(side):
            copied = block.clone()
        block.record_stream(side)
        del block
        other = torch.full((1 << 18,), -1.0, device="npu")
        side.synchronize()
        assert copied[0].item() == copied[-1].item() == computed(i)
        del other


@pytest.mark.no_values
@pytest.mark.usefixtures("no_fallback")
def test_eight_threads_with_a_stream_each():
    results: dict[int, float] = {}

    def work(number: int) -> None:
        with torch.Stream("npu"):
            a = torch.full((64, 64), float(number), device="npu")
            for _ in range(50):
                a = a.t().contiguous() * 2 - a
                a[:, ::2].sum(1)
            results[number] = a.amax().item()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: computed(float(i)) for i in range(8)}


def test_several_devices(monkeypatch):
    monkeypatch.setenv("ORT_NPU_DEVICE_COUNT", "2")
    subprocess.run([sys.executable, "-c", SEVERAL_DEVICES], check=True, timeout=900)


@pytest.mark.parametrize(
    "script",
    [ANOTHER_TORCH, THE_REAL_ONE, DEVICE_BEFORE_TORCH],
    ids=["another torch", "the real torch_npu", "device before torch"],
)
def test_registration(script):
    subprocess.run([sys.executable, "-c", script], check=True, timeout=900)


def test_attention_compiles_with_dynamic_shapes():
    attention = torch.compile(F.scaled_dot_product_attention, backend="aot_eager", dynamic=True)
    for batch, rows in ((1, 5), (2, 7)):
        q = values(batch, 4, rows, 8).npu()
        torch.testing.assert_close(attention(q, q, q), F.scaled_dot_product_attention(q, q, q))


@pytest.mark.parametrize("value_size", [8, 6])
@pytest.mark.parametrize("rows", [1, 5])
def test_attention_layout_matches_its_meta_kernel(rows, value_size):
    qkv = values(2, rows, 3, 4, 8).npu()
    q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
    v = v[..., :value_size]

    def attend(q, k, v):
        y = F.scaled_dot_product_attention(q, k, v)
        return y.transpose(1, 2).contiguous().view(2, rows, 4 * value_size)

    assert F.scaled_dot_product_attention(q, k, v).transpose(1, 2).is_contiguous()
    torch.testing.assert_close(attend(q, k, v).cpu(), attend(q.cpu(), k.cpu(), v.cpu()))
    compiled = torch.compile(attend, backend="aot_eager")(q, k, v)
    torch.testing.assert_close(compiled, attend(q, k, v))


def test_who_asks_for_torch_before_its_import_does_not_lose_the_device(run_python):
    """As transformers does when it is imported."""
    script = """
import importlib.util, sys
import onnxruntime_npu
assert importlib.util.find_spec("torch").origin and importlib.util.find_spec("torch").loader
assert "torch" not in sys.modules
import torch
assert torch.ones(2, device="npu").sum().item() == 2 and torch.ops.npu.npu_rms_norm
assert not any(getattr(finder, "name", None) == "torch" for finder in sys.meta_path)
"""
    assert run_python(script) == (0, "")


def test_cpu_fallback_can_be_disabled(run_python):
    def output(script, value):
        return run_python(script, TORCH_NPU_FALLBACK_CPU_DISABLE=value, ORT_NPU_LOG="warning")[1]

    refused = output(FALLBACK, "1")
    assert "refused: [aten::special_airy_ai" in refused
    assert "TORCH_NPU_FALLBACK_CPU_DISABLE=1 forbids" in refused
    assert "will fall back" not in refused
    allowed = output(FALLBACK, "0")
    assert "refused" not in allowed and allowed.count("will fall back to run on the CPU") == 1
    wrong = output(FALLBACK.replace("NotImplementedError", "(ValueError, RuntimeError)"), "yes")
    assert "refused" in wrong and "TORCH_NPU_FALLBACK_CPU_DISABLE" in wrong


@pytest.mark.no_values
def test_wrong_device_type_is_reported_as_written():
    with pytest.raises(ValueError, match="Expected a npu device, but got: cpu;"):
        torch.npu.current_stream(torch.device("cpu"))
