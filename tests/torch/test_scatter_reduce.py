"""scatter_reduce with every reduction."""

import pytest
import torch
from against_cpu import FLOATS, INTEGERS, equal_on_cpu

pytestmark = pytest.mark.usefixtures("no_fallback")


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce, include_self):
    index = torch.tensor([[0, 2, 0, 1], [1, 1, 3, 3], [0, 0, 0, 0]])
    for dtype in (*FLOATS, torch.int64, torch.int32):
        generator = torch.Generator().manual_seed(0)
        x, source = (torch.randn(3, 5, generator=generator).mul(4).to(dtype) for _ in range(2))
        wide = torch.float32 if dtype.itemsize == 2 else dtype  # rounded once at the end
        expected = x.to(wide).scatter_reduce(
            1, index, source.to(wide), reduce, include_self=include_self
        )
        got = x.npu().scatter_reduce(
            1, index.npu(), source.npu(), reduce, include_self=include_self
        )
        torch.testing.assert_close(got.cpu(), expected.to(dtype), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reduce", ["add", "multiply"])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_scatter_with_a_reduction(dtype, reduce):
    x, source = torch.arange(12).view(4, 3).to(dtype), torch.arange(1, 7).view(2, 3).to(dtype)
    index = torch.tensor([[0, 3, 3], [0, 1, 3]])
    equal_on_cpu(lambda t, i, s: t.scatter(0, i, s, reduce=reduce), x, index, source)
    equal_on_cpu(lambda t, i: t.clone().t().scatter_(1, i.t(), 2, reduce=reduce), x, index)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_slices_reduced_by_an_index(dtype, reduce, include_self):
    x, source = torch.arange(1, 13).view(4, 3).to(dtype), torch.arange(2, 17).view(5, 3).to(dtype)
    index = torch.tensor([3, 0, 3, 3, 1])
    options = {"include_self": include_self}
    equal_on_cpu(lambda t, i, s: t.index_reduce(0, i, s, reduce, **options), x, index, source)
    equal_on_cpu(
        lambda t, i, s: t.t().index_reduce(-1, i.int(), s.t(), reduce, **options), x, index, source
    )
