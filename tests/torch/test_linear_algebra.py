"""Decompositions and linear systems: computed in the order of the stream, without a fallback."""

import pytest
import torch
from against_cpu import equal_on_cpu

pytestmark = pytest.mark.usefixtures("no_fallback")

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
TOLERANCE = {torch.float32: 1e-4, torch.complex64: 1e-4}


def matrices(dtype, *shape):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


def definite(dtype, *batch, n=5):
    x = matrices(dtype, *batch, n, n)
    return x @ x.mH + n * torch.eye(n, dtype=dtype)


def close(function, *tensors):
    tolerance = TOLERANCE.get(tensors[0].dtype, 1e-10)
    equal_on_cpu(function, *tensors, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decompositions(dtype):
    x, spd, b = matrices(dtype, 2, 5, 5), definite(dtype, 2), matrices(dtype, 2, 5, 3)
    close(torch.linalg.cholesky, spd)
    close(torch.cholesky_inverse, torch.linalg.cholesky(spd))
    close(lambda t, u: torch.cholesky_solve(u, torch.linalg.cholesky(t)), spd, b)
    close(torch.linalg.qr, x.mT[..., :3])
    close(lambda t: torch.linalg.householder_product(*torch.geqrf(t)), x)
    close(lambda t, u: torch.ormqr(*torch.geqrf(t), u), x, b)
    close(torch.linalg.svdvals, b)
    close(torch.linalg.eigvalsh, spd)
    close(torch.linalg.lu, x)
    close(lambda t: torch.linalg.lu_factor(t)[0], x)
    close(torch.linalg.ldl_factor, spd)
    close(lambda t, u: torch.linalg.ldl_solve(*torch.linalg.ldl_factor(t), u), spd, b)
    close(lambda t: torch.linalg.eigvals(t).abs().sort()[0], x)
    close(torch.linalg.slogdet, x)
    close(torch.linalg.det, x)
    close(torch.matrix_exp, x / 4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_solutions(dtype):
    x, b = matrices(dtype, 2, 5, 5), matrices(dtype, 2, 5, 3)
    close(torch.linalg.solve, x, b)
    close(torch.linalg.inv, x)
    close(torch.linalg.pinv, b)
    close(lambda t, u: torch.linalg.lstsq(t, u).solution, x, b)
    close(lambda t, u: torch.linalg.solve_triangular(t, u, upper=False), x.tril(), b)
    close(lambda t, u: torch.linalg.solve_triangular(t.conj(), u, upper=False), x.tril(), b)
    close(lambda t, u: torch.linalg.lu_solve(*torch.linalg.lu_factor(t), u), x, b)


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.cholesky,
        torch.linalg.inv,
        torch.linalg.det,
        torch.linalg.svdvals,
        lambda t: torch.linalg.qr(t)[1],
        lambda t: torch.linalg.eigh(t)[1].abs(),
        lambda t: torch.linalg.solve(t, t[:, :2]),
        torch.matrix_exp,
    ],
)
def test_gradients(function):
    x, y = (definite(torch.float64).to(device).requires_grad_() for device in ("npu", "cpu"))
    for t in (x, y):
        result = function(t)
        result.backward(
            torch.linspace(-1, 2, result.numel(), dtype=torch.float64)
            .view(result.shape)
            .to(t.device)
        )
    torch.testing.assert_close(x.grad.cpu(), y.grad)


def test_calls_run_in_the_order_of_the_stream_without_a_wait():
    x = definite(torch.float32).npu()
    expected = torch.linalg.qr(x.cpu() * 3)[1]
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        torch.npu._sleep(10**9)
        x.mul_(3)
        r = torch.linalg.qr(x)[1]
        x.zero_()
        info = torch.linalg.cholesky_ex(x)[1]
        assert not stream.query()  # nobody has waited
    stream.synchronize()
    torch.testing.assert_close(r.cpu(), expected)
    assert info.item() == 1


def test_calls_are_captured():
    x = definite(torch.float32).npu()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        q, r = torch.linalg.qr(x)
        values = torch.linalg.eigvalsh(x)
    x.mul_(2)
    graph.replay()
    torch.testing.assert_close((q @ r).cpu(), x.cpu(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(values.cpu(), torch.linalg.eigvalsh(x.cpu()), rtol=1e-4, atol=1e-4)


def test_failures_are_errors_of_linear_algebra():
    singular = torch.zeros(3, 3).npu()
    for function in (torch.linalg.cholesky, torch.linalg.inv, torch.cholesky_inverse):
        with pytest.raises(RuntimeError, match=r"singular|positive-definite"):
            function(singular)
    with pytest.raises(torch.linalg.LinAlgError, match="non-finite values"):
        torch.linalg.svd(torch.full((3, 3), float("nan")).npu())
    assert torch.ones(2).npu().sum().item() == 2  # the stream stays usable
    with pytest.raises(RuntimeError, match="must be batches of square matrices"):
        torch.linalg.eigh(torch.ones(2, 3).npu())
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.linalg.solve(torch.eye(3).npu(), torch.ones(3, 1))


def test_results_are_written_to_given_tensors():
    x = matrices(torch.float32, 5, 3)
    out = torch.empty(0).npu(), torch.empty(3, 6).npu()[:, ::2]
    torch.linalg.qr(x.npu(), out=out)
    expected = torch.empty(0), torch.empty(3, 6)[:, ::2]
    torch.linalg.qr(x, out=expected)
    for got, e in zip(out, expected, strict=True):
        torch.testing.assert_close(got.cpu(), e)
        assert got.stride() == e.stride()
