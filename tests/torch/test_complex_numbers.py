"""Complex numbers: conjugates, arithmetic, products and gradients."""

import pytest
import torch
from against_cpu import equal_on_cpu

pytestmark = pytest.mark.usefixtures("no_fallback")

COMPLEX = pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)


def test_conjugate_and_negative_views_are_copied():
    x = torch.randn(3, 4, dtype=torch.complex64)
    n = x.npu()
    assert torch.equal(n.conj().cpu(), x.conj())
    assert torch.equal(n.conj().clone().cpu(), x.conj())
    assert torch.equal(n.conj().imag.clone().cpu(), x.conj().imag)
    assert torch.equal(x.conj().npu().cpu(), x.conj())
    n.conj().copy_(x.npu())
    assert torch.equal(n.cpu(), x.conj())
    equal_on_cpu(lambda t: t.conj() * t, x)


def test_complex_gradients():
    def gradient(size, angle):
        size, angle = size.requires_grad_(), angle.requires_grad_()
        torch.polar(size, angle).real.sum().backward()
        return size.grad, angle.grad

    equal_on_cpu(gradient, torch.rand(3), torch.rand(3))


def test_conjugates_in_memory():
    x = torch.randn(3, 4, dtype=torch.complex64)
    equal_on_cpu(torch.conj_physical, x)
    equal_on_cpu(lambda t: torch.conj_physical(t.conj()), x)
    equal_on_cpu(lambda t: t.clone().conj_physical_(), x)
    equal_on_cpu(lambda t: t.clone().t()[1:].conj_physical_(), x)
    equal_on_cpu(lambda t: torch.conj_physical(t, out=torch.empty_like(t).t().contiguous().t()), x)
    equal_on_cpu(lambda t: t.real.contiguous().conj_physical_(), x)
    equal_on_cpu(lambda t: t.mH.resolve_conj(), x)


@COMPLEX
def test_arithmetic(dtype):
    x, y = torch.randn(3, 4, dtype=dtype), torch.randn(4, dtype=dtype)
    real = torch.randn(3, 1, dtype=dtype.to_real())
    for function in (torch.add, torch.sub, torch.mul, torch.div):
        equal_on_cpu(function, x, y)
        equal_on_cpu(function, y, x.t()[:, :1].conj())
        equal_on_cpu(function, x, real)
        equal_on_cpu(function, real, x)
        equal_on_cpu(lambda t, f=function: f(t, 2 - 3j), x)
        equal_on_cpu(lambda t, f=function: f(t, 2.5), x)
        equal_on_cpu(lambda t, f=function: f(t, 1j), real)
    equal_on_cpu(lambda a, b: torch.add(a, b, alpha=1 + 2j), x, y)
    equal_on_cpu(lambda a, b: torch.sub(a, b, alpha=3), x, y)
    equal_on_cpu(lambda a, b: torch.rsub(a, b), x, y)
    equal_on_cpu(lambda t: 1 - t, x)
    equal_on_cpu(lambda t: t**2, x)
    equal_on_cpu(lambda a, b: a.clone().mul_(b).add_(a).t().div_(a.t()), x, y)


@COMPLEX
def test_comparisons(dtype):
    x = torch.tensor([1 + 2j, 1 - 2j, 3, complex(0, float("nan"))], dtype=dtype)
    for function in (torch.eq, torch.ne):
        equal_on_cpu(function, x, x.flip(0))
        equal_on_cpu(function, x, x.conj()[:, None])
        equal_on_cpu(function, x, x.real)
        equal_on_cpu(lambda t, f=function: f(t, 1 + 2j), x)
        equal_on_cpu(lambda t, f=function: f(t, 3), x)
        equal_on_cpu(lambda t, f=function: f(t, 3j), x.real)
    equal_on_cpu(torch.isnan, x)
    equal_on_cpu(torch.isfinite, x)
    equal_on_cpu(torch.count_nonzero, x)


def test_quotients_neither_overflow_nor_vanish():
    x = torch.tensor([1e30 + 1e30j, 3e-30 - 1e-30j])
    equal_on_cpu(torch.div, x, x)
    equal_on_cpu(torch.div, x, torch.tensor([2e30 - 1e30j, 1e-30j]))


@COMPLEX
def test_functions(dtype):
    x = torch.cat([torch.randn(20, dtype=dtype), torch.zeros(1, dtype=dtype)]).view(3, 7)
    for function in (torch.abs, torch.angle, torch.neg, torch.sgn, torch.exp):
        equal_on_cpu(function, x)
        equal_on_cpu(function, x.t().conj())
    for dims in ((0,), (1,), (0, 1)):
        equal_on_cpu(lambda t, d=dims: t.sum(d), x)
        equal_on_cpu(lambda t, d=dims: t.mean(d, keepdim=True), x)
    equal_on_cpu(lambda t: t.sum(), x[0, 0])
    equal_on_cpu(lambda t: t.sum(dtype=torch.complex128), x.real)
    size, angle = x.real.contiguous().abs(), x.imag.contiguous()
    equal_on_cpu(torch.complex, size, angle[:1])
    equal_on_cpu(torch.polar, size, angle)
    equal_on_cpu(torch.angle, torch.tensor([-1.0, 0.0, 2.0, float("nan")]))
    equal_on_cpu(torch.angle, torch.tensor([-1, 0, 2]))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_half_parts():
    x = torch.randn(5).half()
    equal_on_cpu(lambda t: torch.view_as_real(torch.complex(t, -t)), x)
    with pytest.raises(RuntimeError, match="expected two tensors of one float type"):
        torch.complex(x.npu(), x.npu().float())


@COMPLEX
def test_products_of_matrices(dtype):
    a, b = torch.randn(2, 3, 4, dtype=dtype), torch.randn(2, 4, 5, dtype=dtype)
    equal_on_cpu(torch.bmm, a, b)
    equal_on_cpu(lambda x, y: x[0] @ y[0], a, b)
    equal_on_cpu(lambda x: x[0].mH @ x[0], a)
    equal_on_cpu(lambda x, y: x @ y[0, :, 0], a, b)
    equal_on_cpu(lambda x, y: torch.einsum("bij,bjk->ik", x, y), a, b)
    equal_on_cpu(lambda x, y: torch.addmm(y[0, :3], x[0], y[0], beta=1j, alpha=2 - 1j), a, b)
    equal_on_cpu(lambda x, y: torch.baddbmm(y[:, :3], x, y, beta=0, alpha=2), a, b)
    equal_on_cpu(lambda x, y: torch.addbmm(y[0, :3], x, y, beta=2), a, b)
    equal_on_cpu(lambda x, y: torch.addmv(y[0, :3, 0], x[0], y[0, :, 0], alpha=2j), a, b)
    equal_on_cpu(lambda x: torch.dot(x[0, 0], x[1, 1]), a)
    equal_on_cpu(lambda x: torch.vdot(x[0, 0], x[1, 1]), a)


@COMPLEX
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_conversions(dtype):
    x = torch.randn(3, 4, dtype=dtype)
    for other in (torch.complex64, torch.complex128):
        equal_on_cpu(lambda t, d=other: t.to(d), x.t().conj())
    for real in (torch.float32, torch.float16, torch.int64, torch.bool):
        equal_on_cpu(lambda t: t.to(dtype), torch.arange(3).to(real))
    equal_on_cpu(lambda t: torch.zeros_like(t).copy_(t.real), x)
    equal_on_cpu(lambda t: t.to(torch.float32), x)


def rotated(x, angles):
    """Rotate pairs as language models do that keep their positions as complex numbers."""
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[:, None]).flatten(3).type_as(x)


def gradients_of_rotation(x, angles):
    x = x.clone().requires_grad_()
    rotated(x, angles).square().mul(torch.arange(8, device=x.device)).sum().backward()
    return x.grad


def test_rotary_embeddings():
    x, angles = torch.randn(2, 5, 3, 8), torch.randn(5, 4)
    equal_on_cpu(rotated, x, angles)
    equal_on_cpu(gradients_of_rotation, x, angles)


def test_rotation_in_a_graph():
    x, angles = torch.randn(2, 5, 3, 8).npu(), torch.randn(5, 4).npu()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = rotated(x, angles)
    x.copy_(torch.randn(2, 5, 3, 8))
    graph.replay()
    assert torch.equal(y, rotated(x, angles))


@COMPLEX
def test_sums_along_indices(dtype):
    x, rows = torch.randn(5, 3, dtype=dtype), torch.randn(4, 3, dtype=dtype)
    places = torch.tensor([0, 2, 0, 4])
    tolerance = {"rtol": 1e-5, "atol": 1e-5}
    equal_on_cpu(lambda t, i, r: t.index_add(0, i, r, alpha=2), x, places, rows, **tolerance)
    equal_on_cpu(
        lambda t, i, r: t.index_put((i,), r, accumulate=True), x, places, rows, **tolerance
    )
    equal_on_cpu(
        lambda t, i, r: t.index_put((i,), r[0], accumulate=True), x, places, rows, **tolerance
    )
    equal_on_cpu(
        lambda t, i, r: t.scatter_add(0, i[:, None].expand(4, 3), r.conj()),
        x,
        places,
        rows,
        **tolerance,
    )
    equal_on_cpu(lambda t: t.cumsum(1), x, **tolerance)
    equal_on_cpu(lambda t: t.real.contiguous().cumsum(0, dtype=dtype), x, **tolerance)


@COMPLEX
def test_norms_variances_and_truth(dtype):
    x = torch.randn(4, 3, dtype=dtype)
    tolerance = {"rtol": 1e-5, "atol": 1e-5}
    for order in (0, 1, 2, 3, float("inf"), -float("inf")):
        equal_on_cpu(lambda t, p=order: torch.linalg.vector_norm(t, p, dim=1), x, **tolerance)
    equal_on_cpu(lambda t: t.norm(), x, **tolerance)
    equal_on_cpu(lambda t: torch.linalg.vector_norm(t, dtype=torch.complex128), x, **tolerance)
    equal_on_cpu(lambda t: t.var(1), x, **tolerance)
    equal_on_cpu(lambda t: t.std(), x, **tolerance)
    equal_on_cpu(lambda t: torch.var_mean(t, 0)[0], x, **tolerance)
    zeros = torch.tensor([[0, 1j], [1, 0], [0, 0], [1, 1j]], dtype=dtype)
    for function in (torch.any, torch.all):
        equal_on_cpu(function, zeros)
        equal_on_cpu(lambda t, f=function: f(t, 1), zeros)


def test_complex_random_numbers():
    x = torch.randn(20000, dtype=torch.complex64, device="npu").cpu()
    # 5 standard deviations of the estimates
    assert abs(x.mean()) < 5 * 20000**-0.5 and abs(x.var() - 1) < 5 * (2 / 20000) ** 0.5
    assert abs(x.real.var() - 0.5) < 0.05
    y = torch.rand(20000, dtype=torch.complex128, device="npu").cpu()
    for part in (y.real, y.imag):
        assert part.min() >= 0 and part.max() < 1 and abs(part.mean() - 0.5) < 0.02
