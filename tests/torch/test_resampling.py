"""interpolate and its gradients."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import FLOATS, check, make

pytestmark = pytest.mark.usefixtures("no_fallback")

SIZES = {1: (7,), 2: (5, 7), 3: (3, 5, 4)}

RESAMPLING = [
    (mode, rank)
    for mode, ranks in {
        "nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "linear": (1,), "bilinear": (2,),
        "trilinear": (3,), "bicubic": (2,),
    }.items()
    for rank in ranks
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("mode, rank", RESAMPLING)
def test_resampling(mode, rank, dtype):
    x = make(dtype, 2, 3, *SIZES[rank])
    for target in ((2, 3, 4)[:rank], (9, 14, 5)[:rank], SIZES[rank]):
        check(lambda t, size=target: F.interpolate(t, size, mode=mode), x)
    for scale in (2, 0.7, 1.6):
        check(lambda t, by=scale: F.interpolate(t, scale_factor=by, mode=mode), x)
    if mode.endswith(("linear", "cubic")):
        for target in ((1, 3, 1)[:rank], (9, 14, 5)[:rank]):
            check(lambda t, s=target: F.interpolate(t, s, mode=mode, align_corners=True), x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "lanczos"])
def test_antialiased_resampling(mode, dtype):
    x = make(dtype, 2, 3, 9, 14)
    for target in ((4, 5), (20, 9), (9, 14), (1, 1)):
        check(lambda t, size=target: F.interpolate(t, size, mode=mode, antialias=True), x)
    for scale in (0.3, 1.6):
        check(lambda t, by=scale: F.interpolate(t, None, by, mode, antialias=True), x)
    if mode != "lanczos":
        size = (4, 20)
        check(lambda t: F.interpolate(t, size, None, mode, align_corners=True, antialias=True), x)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiased_resampling_to_one_column(mode):
    """torch's CPU kernel repeats the first row there, but not the first column of one row."""
    row = make(torch.float32, 2, 3, 14, 9).detach()
    expected = F.interpolate(row, (1, 4), mode=mode, antialias=True).mT
    column = F.interpolate(row.mT.contiguous().npu(), (4, 1), mode=mode, antialias=True)
    torch.testing.assert_close(column.cpu(), expected)


def test_resampling_of_various_layouts_and_integers():
    image = make(torch.float32, 2, 3, 5, 7).detach()
    for x in (image.to(memory_format=torch.channels_last), image.transpose(2, 3), image[:, :, ::2]):
        check(lambda t: F.interpolate(t, scale_factor=2, mode="bilinear"), x.requires_grad_())
    bytes_ = torch.arange(24, dtype=torch.uint8).view(1, 2, 3, 4)
    expected = F.interpolate(bytes_, scale_factor=3)
    assert torch.equal(F.interpolate(bytes_.npu(), scale_factor=3).cpu(), expected)
    assert F.interpolate(torch.ones(0, 3, 4, 4, device="npu"), 7).shape == (0, 3, 7, 7)
    for bad in ((0, 3), (-1, 3)):
        with pytest.raises(RuntimeError, match="greater than 0"):
            F.interpolate(image.npu(), bad)
    for scale in (1e-300, 1e300):  # positions overflow
        y = torch.ops.aten.upsample_bilinear2d(image.npu(), [4, 4], False, scale, scale)
        assert y.shape == (2, 3, 4, 4) and not y.isinf().any()
