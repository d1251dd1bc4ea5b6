"""aten operators on npu tensors against the CPU, over element types, layouts and broadcasts.

Tolerances: the device accumulates in another order and uses its own exp, erf and tanh (a few units
in the last place); 16-bit results may differ by one rounding of the result, twice where torch
rounds intermediate results.
"""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime_npu import torch_device

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
TOLERANCE = {
    torch.float32: 2e-5,
    torch.float64: 1e-12,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}


def make(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if not dtype.is_floating_point:
        low = 0 if dtype == torch.uint8 else -9
        return torch.randint(low, 10, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def to_npu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.npu()
    return type(value)(map(to_npu, value)) if isinstance(value, (list, tuple)) else value


def flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in flat(v)]
    return [value]


def check(function: Callable[..., Any], *args: Any, falls_back: bool = False) -> None:
    """Checks for the CPU's results, shapes and dtypes, on the device and without a fallback."""
    expected = flat(function(*args))
    torch_device.reset_fallback_counts()
    results = flat(function(*map(to_npu, args)))
    counts = torch_device.fallback_counts()
    assert bool(counts) == falls_back, counts
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        if not isinstance(wanted, torch.Tensor):
            assert result == wanted
            continue
        assert result.device.type == "npu"
        tolerance = TOLERANCE.get(wanted.dtype, 0)
        torch.testing.assert_close(
            result.cpu(), wanted, rtol=tolerance, atol=tolerance, equal_nan=True
        )


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda t: t,
    "transposed": lambda t: t.transpose(0, -1),
    "every second": lambda t: t[..., ::2],
    "expanded": lambda t: t[:1].expand(t.shape),
    "empty": lambda t: t[:0],
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)

UNARY = {
    name: getattr(torch, name)
    for name in (
        "exp", "sin", "cos", "tanh", "sigmoid", "erf", "neg", "ceil", "floor", "round", "sign",
        "abs", "relu", "isnan", "isinf", "isfinite", "logical_not", "square",
    )
} | {
    "log": lambda t: t.abs().log(),
    "sqrt": lambda t: t.abs().sqrt(),
    "rsqrt": lambda t: (t.abs() + 0.5).rsqrt(),
    "reciprocal": lambda t: (t.abs() + 0.5).reciprocal(),
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu tanh": lambda t: F.gelu(t, approximate="tanh"),
    "leaky_relu": lambda t: F.leaky_relu(t, 0.2),
    "clamp": lambda t: (t.clamp(-0.5, 0.5), t.clamp(min=0), t.clamp(max=1)),
    "number": lambda t: (t + 0.1, 2 - t, t * 3, t / 7, 1 / (t.abs() + 1), t > 0, t == 0.5),
    "power": lambda t: (t**2, t**3, (t.abs() + 1) ** 0.5),
}  # fmt: skip


@layouts
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", UNARY)
def test_unary(op, dtype, layout):
    check(UNARY[op], LAYOUTS[layout](make(dtype, 6, 5, 8)))


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool], ids=str)
def test_integers(dtype):
    a, b = make(dtype, 4, 7), make(dtype, 7, seed=1)
    arithmetic = [lambda a, b: (a + b, a * b, torch.maximum(a, b), torch.minimum(a, b))]
    if dtype != torch.bool:
        arithmetic += [
            lambda a, b: (a - b, a / 3, a + 2, a * 2.5, a.abs(), a.sign()),
            lambda a, b: (a % 3, a.remainder(b.abs() + 1), a.fmod(b.abs() + 1)),
            lambda a, b: (a.argmax(1), a.argmin(0), tuple(a.max(1))),
        ]
    for function in [
        *arithmetic,
        lambda a, b: (a == b, a != b, a < b, a <= b, a > b, a >= b, a == 1),
        lambda a, b: (a & b, a | b, a ^ b, ~a),
        lambda a, b: (a.sum(), a.sum(0), a.amax(1), a.amin(1), a.any(), a.all(0), a.cumsum(0)),
        lambda a, b: (a.max(), a.min()),
    ]:
        check(function, a, b)


@pytest.mark.parametrize("b_dtype", [*FLOATS, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("a_dtype", [*FLOATS, torch.int32], ids=str)
def test_type_promotion(a_dtype, b_dtype):
    a, b = make(a_dtype, 3, 1, 5), make(b_dtype, 4, 1, seed=1)
    check(lambda a, b: (a + b, a * b, a < b, torch.where(a > 0, a, b)), a, b)
    check(lambda a, b: (torch.add(a, b, alpha=2), a + b.flatten()[0]), a, b)


@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64]))
def test_in_place_ops_on_broadcast_views(data, dtype):
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    other = [d if data.draw(st.booleans()) else 1 for d in shape]
    other = other[data.draw(st.integers(0, len(other))) :]
    order = data.draw(st.permutations(range(len(shape))))
    inverse = [order.index(i) for i in range(len(order))]

    def function(a, b):
        view = a.permute(inverse)  # of the drawn shape
        added = view + b
        view.mul_(b).add_(1)
        return added, a

    a = make(dtype, *(shape[i] for i in order))
    check(lambda a, b: function(a.clone(), b), a, make(dtype, *other, seed=1))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fused_elementwise(dtype):
    a, b, c = (make(dtype, 4, 6, seed=i) for i in range(3))
    check(
        lambda a, b, c: (
            torch.addcmul(a, b, c, value=0.5),
            torch.addcdiv(a, b, c.abs() + 1, value=0.5),
            torch.lerp(a, b, 0.3),
            torch.lerp(a, b, 0.8),
            a.masked_fill(b > 0, 2.5),
            torch.where(b > 0, a, 0.5),
        ),
        a, b, c,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64], ids=str)
def test_matmul_and_linear(dtype):
    a, b, v = make(dtype, 5, 7), make(dtype, 7, 3, seed=1), make(dtype, 7, seed=2)
    bias = make(dtype, 3, seed=3)
    check(lambda a, b: (a @ b, b.t() @ a.t(), a[::2] @ b[:, 1:], a[:0] @ b, a[:, :0] @ b[:0]), a, b)
    check(lambda a, b, c: torch.addmm(c, a, b), a, b, bias)
    check(lambda a, v: (a @ v, v.dot(v)), a, v)
    batches = make(dtype, 2, 5, 7), make(dtype, 2, 7, 3, seed=1)
    check(lambda a, b: (a @ b, a.transpose(1, 2).bmm(a), a @ b[0]), *batches)
    if dtype.is_floating_point:
        check(lambda a, b, c: torch.addmm(c, a, b, beta=0.5, alpha=2), a, b, bias)
        check(lambda a, b, c: F.linear(a, b.t(), c), a, b, bias)
        check(lambda a, b, c: torch.baddbmm(c, a, b, beta=0.5, alpha=2), *batches, bias)
        # With beta = 0 the added tensor is ignored.
        check(lambda a, b: torch.addmm(torch.full_like(a @ b, float("nan")), a, b, beta=0), a, b)


@layouts
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_reductions(dtype, layout):
    t = LAYOUTS[layout](make(dtype, 6, 5, 8))
    check(lambda t: (t.sum(), t.sum(1), t.sum((0, -1), keepdim=True), t.mean(-1)), t)
    check(lambda t: (t % 0.7, t.fmod(0.7), t.var(0), t.std((0, 1)), t.var(-1, correction=0)), t)
    check(lambda t: (t.sum(dtype=torch.float64), t.any(), t.all(1), t.cumsum(-1), t.prod(1)), t)
    if t.numel():
        check(lambda t: (t.amax(), t.amax((0, 1)), t.amin(-1, keepdim=True), t.max(), t.min()), t)
        check(lambda t: (tuple(t.max(1)), tuple(t.min(-1, keepdim=True))), t)
        check(lambda t: (t.argmax(), t.argmax(1), t.argmin(0, keepdim=True)), t)


def test_reductions_of_scalars_and_nan():
    check(
        lambda t: (t.sum(), t.mean(), t.amax(), t.max(), t.argmax(), t.softmax(0)), make(FLOATS[0])
    )
    t = make(torch.float32, 4, 5)
    t[1, 2] = float("nan")
    t[2] = -float("inf")
    check(lambda t: (t.sum(1), t.amax(1), t.max(1).values, t.argmax(1), t.sort().values, t > 0), t)


@layouts
@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_softmax_and_norms(dtype, layout):
    t = LAYOUTS[layout](make(dtype, 6, 6, 8))
    check(lambda t: (t.softmax(-1), t.softmax(0), t.log_softmax(1)), t)
    check(lambda t: t.softmax(-1, dtype=torch.float32), t)
    if layout != "empty":
        width = t.shape[-1]
        w, b = make(dtype, width, seed=1), make(dtype, width, seed=2)
        check(lambda t, w, b: F.layer_norm(t, (width,), w, b, 1e-6), t, w, b)
        check(lambda t: F.layer_norm(t, t.shape[1:]), t)
        check(lambda t, w: F.rms_norm(t.float(), (width,), w.float(), 1e-6), t, w)


def test_layer_norm_of_float64_keeps_its_digits_in_gradients():
    host, weight = torch.randn(3, 2, 4, dtype=torch.float64), torch.rand(2, 4, dtype=torch.float64)
    device = host.npu().requires_grad_()
    x = host.requires_grad_()
    expected = torch.native_layer_norm(x, (2, 4), weight, None, 1e-5)
    results = torch.native_layer_norm(device, (2, 4), weight.npu(), None, 1e-5)
    (want,) = torch.autograd.grad(expected[0].pow(3).sum(), x)
    (got,) = torch.autograd.grad(results[0].pow(3).sum(), device)
    # A statistic in float32 is wrong by up to 6e-8 of its value.
    for a, b in zip((*results, got), (*expected, want), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_indexing(dtype):
    t, i = make(dtype, 3, 4, 5), torch.tensor([2, 0, 2])
    mask = make(torch.bool, 3, 4, seed=1)
    check(lambda t, i: (t.index_select(1, i), F.embedding(i, t[:, 0])), t, i)
    check(lambda t, i: t.take_along_dim(i[:, None, None], 1), t, i)
    check(lambda t, i: (t[i], t[:, i], t[i, i], t[i[:, None], i]), t, i)
    check(lambda t, i: (t[i, :, i], t[:, i, i], t[None, i]), t, i)
    check(
        lambda t, m: (t[m], t[m[:, 0]], t[:, m[0]], t[~m & m], t[:, :, 0].masked_select(m)), t, mask
    )
    check(lambda t, i: (t.gather(1, i.view(1, 3, 1)), t[-1], t[..., -1], t[i - 3]), t, i)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_index_put(dtype):
    i = torch.tensor([2, 0, 1])

    def function(t, i):
        t = t.clone()
        t[i] = 1
        t[:, i] = t[:, i] * 2
        t[t > 4] = 0
        t[i, :, i] = 7
        t[1:, 2] = 3
        return t

    t = make(dtype, 3, 4, 5)
    check(function, t, i)
    check(lambda t, i: t.clone().index_put_((i[:2] * 0,), t[:2], accumulate=True), t, i)
    index = i.view(3, 1, 1).expand(3, 2, 5)
    check(lambda t, i: (t.scatter(0, i, t), t.scatter(0, i, 5), t.scatter_add(0, i, t)), t, index)


@pytest.mark.parametrize(
    "dtype",
    [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128, torch.float32],
    ids=str,
)
def test_cat_moves_elements_of_any_type(dtype):
    t = torch.arange(12.0).view(3, 4).to(dtype)
    got = torch.cat([t.npu(), t.npu()[:, ::2]], 1)
    assert got.dtype == dtype
    assert torch.equal(got.cpu().cfloat(), torch.cat([t.cfloat(), t.cfloat()[:, ::2]], 1))
    out = torch.empty(4, 6, dtype=dtype, device="npu").t()
    torch.cat([t.npu(), t.npu()], out=out)
    assert torch.equal(out.cpu().cfloat(), torch.cat([t.cfloat(), t.cfloat()]))


def moved_elements(t, i, mask):
    changed, rows = t.clone(), t[i]
    changed[i] = t[:2]
    changed[:, 1] = t[0, 0]
    filled = t.masked_fill(mask, t[1, 1])
    return [
        rows, changed, filled, t[mask], t.gather(0, i.view(1, 2)), t.scatter(0, i.view(1, 2), t),
        torch.where(mask, t, t.flip(0)), t.tril(), t.triu(1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64], ids=str
)
def test_indices_and_masks_move_elements_of_any_type(dtype):
    x = torch.arange(-6.0, 6).view(3, 4)
    t = torch.complex(x, x.flip(0)) if dtype.is_complex else x.to(dtype)
    i, mask = torch.tensor([2, 0]), x % 3 == 0
    wide = t if dtype.is_complex else t.float()  # the CPU lacks most of these for float8
    expected = moved_elements(wide, i, mask)
    for got, e in zip(moved_elements(t.npu(), i.npu(), mask.npu()), expected, strict=True):
        assert got.dtype == dtype and torch.equal(got.cpu().to(e.dtype), e)


def test_cat_of_real_and_complex_numbers():
    x = torch.randn(2, 3)
    got = torch.cat([x.npu(), torch.complex(x, x).npu(), x.double().npu()])
    assert torch.equal(got.cpu(), torch.cat([x, torch.complex(x, x), x.double()]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool], ids=str)
def test_cat_sort_and_factories(dtype):
    t = make(dtype, 3, 4)
    check(lambda t: (torch.cat([t, t[:2]]), torch.cat([t, t.long()], 1), torch.stack([t, t], 1)), t)
    check(lambda t: (t.triu(), t.tril(1), t.triu(-1), t.repeat(2, 1, 2)), t)
    check(lambda t: tuple(torch.sort(t, stable=True)), t)
    check(lambda t: tuple(torch.sort(t, dim=0, descending=True, stable=True)), t)
    check(lambda t: torch.argsort(t, stable=True), t)
    if dtype != torch.bool:
        check(lambda t: (t.topk(2).values, t.topk(2, 0, largest=False).values), t)
        check(lambda t: torch.isin(t, t[0, :2]), t)
    check(lambda t: (torch.equal(t, t), torch.equal(t, t[:2]), t.nonzero(), F.pad(t, (1, 2))), t)


@pytest.mark.parametrize(
    "args", [(5,), (1, 9, 2), (0.0, 1.0, 0.1), (5, 0, -1), (1, 7, 2.5), (3, 3)], ids=str
)
def test_arange(args):
    check(lambda t: torch.arange(*args, device=t.device), torch.zeros(1))
    check(lambda t: torch.arange(*args, device=t.device, dtype=torch.float16), torch.zeros(1))


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_attention(dtype):
    q, k, v = (
        make(dtype, 2, 4, 5, 8),
        make(dtype, 2, 2, 7, 8, seed=1),
        make(dtype, 2, 2, 7, 8, seed=2),
    )
    attend = F.scaled_dot_product_attention
    keep = make(torch.bool, 5, 7, seed=3)
    keep[:, 0] = True
    check(lambda q, k, v: attend(q, k, v, enable_gqa=True), q, k, v)
    check(lambda q, k, v, m: attend(q, k, v, m, enable_gqa=True, scale=0.2), q, k, v, keep)
    check(lambda q, k, v, m: attend(q, k, v, m, enable_gqa=True), q, k, v, make(dtype, 2, 1, 5, 7))
    check(lambda q, k, v: attend(q, k, v, is_causal=True, enable_gqa=True), q, k, v)
    check(lambda q, k, v: attend(q[:, :, :1], k, v, is_causal=True, enable_gqa=True), q, k, v)
    check(lambda q: attend(q[0], q[0], q[0]), q)
    strided = q.transpose(1, 2)
    check(lambda q: attend(q, q, q), strided)


def test_out_arguments():
    a, b = make(torch.float32, 3, 4).npu(), make(torch.float32, 3, 4, seed=1).npu()
    out = torch.empty(4, 3, device="npu").t()
    assert torch.add(a, b, out=out) is out
    torch.testing.assert_close(out.cpu(), a.cpu() + b.cpu())
    torch.mul(a, b, out=a)  # over its own input
    torch.testing.assert_close(a.cpu(), make(torch.float32, 3, 4) * b.cpu())
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(a, b, out=torch.empty(3, 4, dtype=torch.int64, device="npu"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resized = torch.mm(a, b.t(), out=torch.empty(1, device="npu"))
    assert resized.shape == (3, 3)


def test_missing_kernel_falls_back_and_is_counted():
    t = make(torch.float32, 4, 4)
    check(lambda t: torch.special.airy_ai(t), t, falls_back=True)
    torch_device.reset_fallback_counts()
    device = t.npu()
    torch.special.airy_ai(device)
    torch.special.airy_ai(device)
    assert torch_device.fallback_counts() == {"aten::special_airy_ai.out": 2}


def test_caller_errors():
    a = make(torch.float32, 3, 4).npu()
    with pytest.raises(RuntimeError, match="same device"):
        a + torch.zeros(3, 4)
    with pytest.raises(RuntimeError, match="must match"):
        a + torch.zeros(5, device="npu")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        a @ a
    with pytest.raises(IndexError):
        a[5]
    assert (a + a).shape == (3, 4)  # the device stays usable


def test_out_of_range_index_is_a_recoverable_device_error():
    a = make(torch.float32, 3, 4).npu()
    torch.index_select(a, 0, torch.tensor([7], device="npu"))
    with pytest.raises(RuntimeError, match="7"):
        torch.npu.synchronize()
    assert torch.equal(a.cpu(), make(torch.float32, 3, 4))


def test_results_are_available_only_after_the_work():
    """A launch returns immediately: the host is far ahead of a long chain of matmuls."""
    a = torch.eye(768, device="npu")
    torch.npu.synchronize()
    product = a
    for _ in range(30):
        product = product @ a
    stream = torch.accelerator.current_stream()
    assert not stream.query()
    stream.synchronize()
    assert stream.query()
    assert torch.equal(product.cpu(), torch.eye(768))


def test_integers_truncate_fractions_like_torch():
    """Fractional bounds and factors of integers, and negative integer powers."""
    assert torch.arange(0, -8.000001, -4.0, dtype=torch.int64, device="npu").tolist() == [0, -4]
    with pytest.raises(RuntimeError, match="step must be nonzero"):
        torch.arange(0, 5, 0.5, dtype=torch.int64, device="npu")
    operands = [torch.arange(n).reshape(s) for n, s in ((3, [3]), (6, [3, 2]), (2, [2]))]
    expected = torch.addmv(*operands, beta=0.2, alpha=1.6)
    moved = [t.npu() for t in operands]
    assert torch.addmv(*moved, beta=0.2, alpha=1.6).tolist() == expected.tolist()
    base, exponent = torch.tensor([0, 1, -1, 2, -1]), torch.tensor([-5, -5, -5, -5, -4])
    powers = torch.pow(base.npu(), exponent.npu()).tolist()
    assert powers == torch.pow(base, exponent).tolist() == [0, 1, -1, 0, 1]
