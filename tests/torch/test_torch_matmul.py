"""Products of integers and refused matmul arguments."""

import pytest
import torch
from against_cpu import INTEGERS, equal_on_cpu


@pytest.mark.parametrize(
    "function, message",
    [
        (torch.mm, "mat1 and mat2 must have the same dtype, but got Half and Float"),
        (torch.nn.functional.linear, "mat1 and mat2 must have the same dtype"),
        (lambda a, b: torch.bmm(a[None], b[None]), "expected scalar type Half but found Float"),
        (lambda a, b: torch.addmm(b, a, b), "mat1 and mat2 must have the same dtype"),
    ],
)
def test_matmul_of_two_dtypes_is_refused_with_torch_message(function, message):
    with pytest.raises(RuntimeError, match=message):
        function(torch.ones(2, 2).half().npu(), torch.ones(2, 2).npu())


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_products_of_integers_wrap(dtype):
    a = torch.arange(-20, 20, dtype=torch.int64).mul(7).view(2, 4, 5).to(dtype)
    b = torch.arange(-15, 15, dtype=torch.int64).mul(5).view(2, 5, 3).to(dtype)
    equal_on_cpu(lambda x, y: x[0] @ y[0], a, b)
    equal_on_cpu(torch.bmm, a, b)
    equal_on_cpu(lambda x, y: x @ y[0, :, 0], a, b)
    equal_on_cpu(lambda x: x[0, 0] @ x[1, 1], a)
    equal_on_cpu(lambda x, y: torch.addmm(y[0, :4], x[0], y[0], beta=2, alpha=3), a, b)
    equal_on_cpu(lambda x, y: torch.baddbmm(y[:, :4], x, y, beta=2, alpha=3), a, b)
    equal_on_cpu(lambda x, y: torch.addbmm(y[0, :4], x, y, beta=2, alpha=3), a, b)
    equal_on_cpu(lambda x: x.cumsum(1, dtype=x.dtype), a)


@pytest.mark.parametrize("beta, alpha", [(0.6, 1.2), (1.6, 1), (0, 2.9)])
def test_factors_of_integers_are_truncated(beta, alpha):
    x = torch.arange(-8, 8).view(4, 4)
    for function in (torch.addmm, lambda a, b, c, **factors: torch.addmv(a[0], b, c[0], **factors)):
        equal_on_cpu(lambda t, f=function: f(t, t, t, beta=beta, alpha=alpha), x)
