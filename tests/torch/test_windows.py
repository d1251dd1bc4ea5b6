"""unfold and fold."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import FLOATS, check, make

pytestmark = pytest.mark.usefixtures("no_fallback")

dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)


@dtypes
def test_unfold_and_fold(dtype):
    x = make(dtype, 2, 3, 7, 6)
    options = {"kernel_size": (3, 2), "dilation": (2, 1), "padding": (1, 0), "stride": (1, 3)}
    check(lambda t: F.unfold(t, 2), x)
    check(lambda t: F.unfold(t[0], **options), x)
    columns = F.unfold(x.detach(), **options).requires_grad_()
    check(lambda t: F.fold(t, (7, 6), **options), columns)
    check(lambda t: F.fold(t[0], (7, 6), **options), columns)
    for size, step in ((3, 1), (2, 3), (6, 1)):
        check(lambda t, size=size, step=step: t.unfold(2, size, step), x)


@pytest.mark.no_values
def test_windows_that_do_not_fit_are_refused():
    x = torch.ones(1, 1, 3, 3, device="npu")
    huge = 1 << 40
    for options in ({"kernel_size": 4}, {"kernel_size": huge}, {"kernel_size": 2, "padding": huge}):
        with pytest.raises(RuntimeError, match=r"does not fit|expected kernel"):
            F.unfold(x, **options)
    with pytest.raises(RuntimeError, match="col2im"):
        F.fold(torch.ones(1, 5, 4, device="npu"), (3, 3), 2)
