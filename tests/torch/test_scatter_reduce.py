"""scatter_reduce with every reduction."""

import pytest
import torch
from against_cpu import FLOATS

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
