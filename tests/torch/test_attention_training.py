"""scaled_dot_product_attention with gradients: the engine against the CPU's composition."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from against_cpu import check, make
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

npu = torch.npu
ENGINE = "ScaledDotProductFusedAttentionOverrideableBackward0"
HALVES_AND_FLOAT = [torch.float32, torch.float16, torch.bfloat16]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: Any, **given: Any) -> Any:
    """Attention; on the CPU composed of matmuls, as the reference for the engine."""
    with sdpa_kernel(SDPBackend.MATH) if q.is_cpu else nullcontext():
        y = F.scaled_dot_product_attention(q, k, v, *mask, **given)
    if q.numel() and k.numel() and not q.is_cpu:  # torch itself handles empty tensors
        assert y.grad_fn.name() == ENGINE
    return y


def bools(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(5)) < 0.6


def floats(*shape: int) -> Callable[[torch.dtype], torch.Tensor]:
    """A mask of finite values with some -inf."""

    def mask(dtype: torch.dtype) -> torch.Tensor:
        values = make(dtype, *shape, seed=6).detach()
        return values.masked_fill(~bools(*shape), -torch.inf)

    return mask


def padding(batch: int, keys: int) -> torch.Tensor:
    lengths = torch.tensor([keys, *([keys // 3] * (batch - 1))])
    return (torch.arange(keys) < lengths[:, None])[:, None, None]


def without_some_rows(*shape: int) -> torch.Tensor:
    mask = bools(*shape)
    mask[..., ::3, :] = False
    return mask


class Case(NamedTuple):
    q: tuple[int, ...] = (2, 3, 9, 16)
    k: tuple[int, ...] = (2, 3, 11, 16)
    v: tuple[int, ...] | None = None
    mask: Any = None
    given: dict[str, Any] = {}  # noqa: RUF012 - read only


LONG = {"q": (1, 2, 150, 8), "k": (1, 2, 200, 8)}  # several blocks of queries and of keys
CASES = {
    "plain": Case(),
    "several blocks": Case(**LONG),
    "scale": Case(given={"scale": 0.3}),
    "negative scale": Case(given={"scale": -0.3}),
    "no scale at all": Case(given={"scale": 0.0}),
    "value size": Case(v=(2, 3, 11, 5)),
    "large heads": Case(q=(1, 1, 5, 300), k=(1, 1, 7, 300)),
    "causal": Case(k=(2, 3, 9, 16), given={"is_causal": True}),
    "causal of several blocks": Case(**LONG, given={"is_causal": True}),
    "causal with few keys": Case(q=(1, 2, 9, 8), k=(1, 2, 4, 8), given={"is_causal": True}),
    "causal row": Case(q=(2, 3, 1, 16), given={"is_causal": True}),
    "groups": Case(q=(2, 6, 9, 16), k=(2, 2, 11, 16), given={"enable_gqa": True}),
    "groups and causal": Case(
        q=(1, 4, 90, 8), k=(1, 2, 90, 8), given={"enable_gqa": True, "is_causal": True}
    ),
    "a head for all": Case(k=(2, 1, 11, 16)),
    "bool mask": Case(mask=bools(9, 11)),
    "bool mask of several blocks": Case(**LONG, mask=bools(150, 200)),
    "bool mask of heads": Case(mask=bools(2, 3, 9, 11)),
    "padding": Case(mask=padding(2, 11)),
    "masked rows": Case(mask=without_some_rows(2, 1, 9, 11)),
    "masked rows of groups": Case(
        q=(2, 6, 9, 16), k=(2, 2, 11, 16), mask=without_some_rows(9, 11), given={"enable_gqa": True}
    ),
    "float mask": Case(mask=floats(9, 11)),
    "float mask of heads": Case(mask=floats(3, 9, 11)),
    "float mask of entries": Case(mask=floats(2, 1, 9, 11)),
    "float mask of keys": Case(mask=floats(11)),
    "float mask of rows": Case(mask=lambda dtype: make(dtype, 9, 1).detach()),
    "no batch": Case(q=(0, 3, 9, 16), k=(0, 3, 11, 16)),
    "no rows": Case(q=(2, 3, 0, 16)),
    "no keys": Case(k=(2, 3, 0, 16)),
}


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_gradients(case: Case, dtype: torch.dtype, no_fallback: None):
    q, k = make(dtype, *case.q), make(dtype, *case.k, seed=1)
    v = make(dtype, *(case.v or case.k), seed=2)
    mask = case.mask(dtype) if callable(case.mask) else case.mask
    masks = [] if mask is None else [mask]
    check(lambda *inputs: attend(*inputs, **case.given), q, k, v, *masks)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_float32_mask_with_half_precision_inputs(dtype: torch.dtype):
    q, mask = make(dtype, 2, 3, 9, 16), floats(9, 9)(torch.float32)
    check(lambda q: attend(q, q, q, mask.to(q.device, torch.float32)), q)


def test_inputs_without_gradients():
    q, k, v = (make(torch.float32, 2, 3, 9, 16, seed=i) for i in range(3))
    for wanted in (q, k, v):
        inputs = [t if t is wanted else t.detach() for t in (q, k, v)]
        check(attend, *inputs)
    with torch.no_grad():
        y = F.scaled_dot_product_attention(q.npu(), k.npu(), v.npu())
    assert not y.requires_grad


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT, ids=str)
def test_inputs_and_gradients_keep_the_model_layout(dtype: torch.dtype):
    qkv = make(dtype, 2, 9, 3, 4, 16)

    def layer(qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
        return attend(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 9, 64)

    check(layer, qkv)
    check(lambda x: attend(x, x, x).sum((0, 2)).expand(5, 4, 16), qkv[:, :, 0].transpose(1, 2))


def of_the_engine(*inputs: torch.Tensor, **given: Any) -> bool:
    choice = torch._fused_sdp_choice(*inputs, **given)
    return {SDPBackend.OVERRIDEABLE.value: True, SDPBackend.MATH.value: False}[choice]


def test_unsupported_options_use_the_composite_path():
    q, k = make(torch.float32, 2, 3, 9, 16).npu(), make(torch.float32, 2, 3, 11, 16).npu()
    mask = make(torch.float32, 9, 11).npu()
    assert of_the_engine(q, k, k) and of_the_engine(q, k, k, mask.detach())
    assert not of_the_engine(q, k, k, mask)  # the mask requires a gradient
    assert not of_the_engine(q.double(), k.double(), k.double())
    assert not of_the_engine(q[0], k[0], k[0])
    assert not of_the_engine(q, k[:1], k[:1])
    wide = make(torch.float32, 1, 1, 3, 800).npu()
    assert not of_the_engine(wide, wide, wide)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q.detach(), q.detach())
        assert not of_the_engine(dual, k, k)
    with sdpa_kernel(SDPBackend.MATH):
        assert not of_the_engine(q, k, k)
    for backend in (
        SDPBackend.OVERRIDEABLE, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
    ):  # fmt: skip
        with sdpa_kernel([backend, SDPBackend.MATH]):
            assert of_the_engine(q, k, k) and not of_the_engine(q[0], k[0], k[0])
        with sdpa_kernel(backend):
            assert of_the_engine(q, k, k)
            with pytest.raises(RuntimeError, match="No viable backend"):
                F.scaled_dot_product_attention(q[0], k[0], k[0])


def test_mask_with_gradient():
    def composed(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q, mask)

    check(composed, make(torch.float32, 2, 3, 9, 16), make(torch.float32, 3, 9, 9, seed=1))


def test_float64_passes_gradcheck():
    q, k = (make(torch.float64, 1, 2, 3, 4, seed=i).detach().npu().requires_grad_() for i in (0, 1))

    def composed(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, k, is_causal=True)

    assert torch.autograd.gradcheck(composed, (q, k))
    assert torch.autograd.gradgradcheck(composed, (q, k))


def test_second_derivatives_come_from_the_composition_or_are_refused():
    q = make(torch.float32, 1, 2, 5, 8).detach().npu().requires_grad_()
    (grad,) = torch.autograd.grad(attend(q, q, q).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="attention_overrideable_backward is not implemented"):
        grad.sum().backward()
    with sdpa_kernel(SDPBackend.MATH):
        y = F.scaled_dot_product_attention(q, q, q)
    (grad,) = torch.autograd.grad(y.square().sum(), q, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), q)
    assert second.isfinite().all()


TRANSFORMS = {
    "grad": torch.func.grad,
    "grads of samples": lambda f: torch.func.vmap(torch.func.grad(f)),
    "batch": torch.func.vmap,
    "forward derivative": lambda f: lambda x: torch.func.jvp(f, (x,), (x,)),
    "jacobian": torch.func.jacrev,
    "second derivatives": torch.func.hessian,
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_torch_func_transforms(transform: Callable[..., Callable[[torch.Tensor], Any]]):
    x = make(torch.float32, 3, 1, 2, 5, 4).detach() / 4

    def function(x: torch.Tensor) -> torch.Tensor:
        x = x.view(-1, 2, 5, 4)
        return F.scaled_dot_product_attention(x, x, x, is_causal=True).square().sum()

    with sdpa_kernel(SDPBackend.MATH):
        expected = transform(function)(x)
    torch.testing.assert_close(transform(function)(x.npu()), expected, check_device=False)


@pytest.mark.no_values
def test_caller_errors():
    q, k = make(torch.float32, 1, 4, 5, 8).npu(), make(torch.float32, 1, 2, 5, 8).npu()
    with pytest.raises(RuntimeError, match="must match"):
        F.scaled_dot_product_attention(q, k, k)  # grouped heads without enable_gqa
    with pytest.raises(RuntimeError, match=r"(?i)mask"):
        F.scaled_dot_product_attention(q, q, q, torch.ones(5, 5, device="npu"), is_causal=True)
    with pytest.raises(RuntimeError, match=r"\(7\).* must match|must match .*\(7\)"):
        F.scaled_dot_product_attention(q, q, q, torch.ones(5, 7, device="npu"))


# Dropout: attention over the rows of a unit matrix shows which weights are dropped.

SHAPE, KEYS, DROPOUT = (2, 4, 9, 16), (2, 2, 70, 16), 0.3


def draw(seed: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> Any:
    npu.manual_seed(seed)
    return attend(q, k, v, dropout_p=DROPOUT, enable_gqa=True, **given)


def kept(seed: int, **given: Any) -> torch.Tensor:
    """The dropout mask that the generator gives for tensors of these shapes."""
    zeros = torch.zeros(SHAPE, device="npu", requires_grad=True)
    keys = torch.zeros(KEYS, device="npu")
    unit = torch.eye(KEYS[2], device="npu").expand(*KEYS[:2], -1, -1)
    return draw(seed, zeros, keys, unit, **given).detach().cpu() != 0


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_backward_uses_the_forward_dropout_mask(dtype: torch.dtype, masked: bool):
    keep = kept(7)
    assert keep.float().mean() == pytest.approx(1 - DROPOUT, abs=0.05)
    assert not torch.equal(keep, kept(8))
    mask = bools(SHAPE[2], KEYS[2]) if masked else torch.ones(SHAPE[2], KEYS[2], dtype=torch.bool)

    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if not q.is_cpu:
            return draw(7, q, k, v, attn_mask=mask.npu() if masked else None)
        k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        weights = (q @ k.mT / 4).masked_fill(~mask, -torch.inf).softmax(-1)
        return (weights * keep / (1 - DROPOUT)) @ v

    check(layer, make(dtype, *SHAPE), make(dtype, *KEYS, seed=1), make(dtype, *KEYS, seed=2))


def test_dropout_probability_of_one():
    q = make(torch.float32, 1, 2, 5, 8).detach().npu().requires_grad_()
    y = attend(q, q, q, dropout_p=1.0)
    y.sum().backward()
    assert not y.any() and not q.grad.any()


@pytest.mark.no_values
def test_no_random_numbers_are_drawn_without_dropout():
    q, before = torch.ones(1, 2, 5, 8, device="npu", requires_grad=True), npu.get_rng_state()
    attend(q, q, q).sum().backward()
    assert torch.equal(npu.get_rng_state(), before)


@pytest.mark.parametrize(
    "drop",
    [lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=DROPOUT), F.dropout],
    ids=["attention", "elements"],
)
def test_checkpoint_reuses_the_dropout_mask(drop: Callable[[torch.Tensor], torch.Tensor]):
    q = make(torch.float32, 2, 2, 9, 8).detach().npu()

    def layer(q: torch.Tensor) -> torch.Tensor:
        return drop(q).square()

    grads = []
    for run in (layer, lambda q: checkpoint(layer, q, use_reentrant=False)):
        leaf = q.clone().requires_grad_()
        npu.manual_seed(3)
        run(leaf).sum().backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)


# Memory, graphs and compilers.


def peak(length: int, **given: Any) -> int:
    """Bytes that a training step takes in addition to its leaves."""
    q, k, v = (torch.randn(1, 2, length, 16, device="npu", requires_grad=True) for _ in range(3))
    npu.synchronize()
    npu.reset_peak_memory_stats()
    before = npu.memory_allocated()
    attend(q, k, v, **given).sum().backward()
    npu.synchronize()
    return npu.max_memory_allocated() - before


@pytest.mark.no_values
@pytest.mark.parametrize("given", [{}, {"is_causal": True}, {"dropout_p": 0.1}], ids=str)
def test_memory_is_linear_in_sequence_length(given: dict[str, Any]):
    short, long = peak(512, **given), peak(2048, **given)
    assert long <= 4 * short
    assert long < 2048 * 2048 * 4  # one head's scores

    mask = torch.ones(1, 1, 1, 2048, dtype=torch.bool, device="npu")
    if not given:  # a mask of keys is not expanded to rows and keys either
        assert peak(2048, attn_mask=mask) < long + 2**16


@pytest.mark.parametrize("given", [{"is_causal": True}, {"dropout_p": DROPOUT}], ids=str)
def test_graph_of_forward_and_backward(given: dict[str, Any]):
    data = [make(torch.float32, 2, 3, 9, 16, seed=i).detach().npu() for i in range(3)]

    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = x.detach().requires_grad_()
        y = attend(leaf, leaf, leaf, **given)
        return y.detach(), *torch.autograd.grad(y.square().sum(), leaf)

    x = data[0].clone()
    step(x)
    graph = npu.NPUGraph()
    with npu.graph(graph):
        results = step(x)
    npu.manual_seed(3)
    expected = [step(d) for d in data]
    npu.manual_seed(3)
    for values, wanted in zip(data, expected, strict=True):
        x.copy_(values)
        graph.replay()
        for got, value in zip(results, wanted, strict=True):
            torch.testing.assert_close(got, value, rtol=0, atol=0)


@pytest.mark.parametrize("given", [{"is_causal": True}, {"dropout_p": DROPOUT}], ids=str)
def test_compiled_training_step(given: dict[str, Any]):
    qkv = make(torch.float32, 2, 9, 3, 4, 16).detach().npu()

    def layer(qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
        y = F.scaled_dot_product_attention(q, k, v, **given)
        return y.transpose(1, 2).contiguous().view(2, 9, 64)

    results = []
    for run in (layer, torch.compile(layer, backend="aot_eager")):
        leaf = qkv.clone().requires_grad_()
        npu.manual_seed(3)
        y = run(leaf)
        y.square().sum().backward()
        results.append((y.detach(), leaf.grad))
    torch.testing.assert_close(*results)
