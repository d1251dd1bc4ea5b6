"""grid_sample of images and volumes, and its gradients."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import FLOATS, check, make

pytestmark = pytest.mark.usefixtures("no_fallback")

SIZES = {2: ((5, 7), (4, 6)), 3: ((3, 4, 5), (2, 3, 4))}
MODES = [("bilinear", 2), ("nearest", 2), ("bicubic", 2), ("bilinear", 3), ("nearest", 3)]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode, rank", MODES)
def test_grid_sample(mode, rank, padding, align_corners, dtype):
    size, out = SIZES[rank]
    x = make(dtype, 2, 3, *size)
    grid = make(dtype, 2, *out, rank, seed=1)

    def sample(image, points):
        return F.grid_sample(image, points, mode, padding, align_corners)

    check(sample, x, grid)
    check(lambda points: sample(x.detach().to(points), points), grid)  # only the grid's gradient


def test_many_planes_and_points_in_various_layouts():
    image = make(torch.float32, 3, 33, 9, 11).detach()
    grid = make(torch.float32, 3, 2, 17, 19, seed=1).detach() / 2
    for x in (image, image.to(memory_format=torch.channels_last), image.transpose(2, 3)):
        check(
            lambda t, points: F.grid_sample(t, points, align_corners=False),
            x.requires_grad_(),
            grid.permute(0, 2, 3, 1).requires_grad_(),
        )


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_gradients_at_non_finite_and_huge_coordinates(mode, padding):
    nan, inf = float("nan"), float("inf")
    places = torch.tensor([nan, inf, -inf, 1e30, -1e30, 3e38, 1e9, 0.0])
    grid = torch.cartesian_prod(places, places).view(1, 8, 8, 2).npu().requires_grad_()
    image = torch.ones(1, 2, 3, 4).npu().requires_grad_()
    F.grid_sample(image, grid, mode, padding, align_corners=False).sum().backward()
    assert image.grad.shape == image.shape and grid.grad.shape == grid.shape
    if mode == "nearest":
        assert not grid.grad.any()
    if mode != "bicubic":  # whose weights are undefined at an infinite position
        assert image.grad.isfinite().all() and grid.grad.isfinite().all()
    if padding != "zeros" and mode != "bicubic":  # the weights of each point sum to one
        torch.testing.assert_close(image.grad.sum(dim=(0, 2, 3)).cpu(), torch.full((2,), 64.0))


def test_empty_inputs_and_refusals():
    def sample(image, grid, mode="bilinear"):
        return F.grid_sample(image, grid, mode, align_corners=False)

    image = torch.ones(1, 2, 3, 4).npu().requires_grad_()
    nowhere = torch.zeros(1, 0, 5, 2).npu().requires_grad_()
    y = sample(image, nowhere)
    y.sum().backward()
    assert y.shape == (1, 2, 0, 5) and not image.grad.any() and nowhere.grad.shape == nowhere.shape
    for shape in ((0, 2, 3, 4), (1, 0, 3, 4)):
        grid = torch.zeros(shape[0], 5, 6, 2).npu().requires_grad_()
        empty = torch.ones(shape).npu().requires_grad_()
        sample(empty, grid).sum().backward()
        assert empty.grad.shape == shape and not grid.grad.any()
    point = torch.zeros(1, 1, 1, 2).npu()
    with pytest.raises(RuntimeError, match="non-empty spatial dimensions"):
        sample(torch.ones(1, 2, 0, 4).npu(), point)
    with pytest.raises(RuntimeError, match="one type of real floats"):
        sample(image, point.double())
    with pytest.raises(RuntimeError, match="bicubic interpolation only supports 4D input"):
        sample(torch.ones(1, 1, 2, 2, 2).npu(), torch.zeros(1, 1, 1, 1, 3).npu(), "bicubic")
    for modes in ((3, 0), (-1, 0), (0, 3), (0, 2**40)):
        with pytest.raises(RuntimeError, match="expected modes between 0 and 2"):
            torch.ops.aten.grid_sampler_2d(image, point, *modes, False)
    grads = torch.ops.aten.grid_sampler_2d_backward
    with pytest.raises(RuntimeError, match="expected a gradient"):
        grads(torch.ones(1, 2, 1, 2).npu(), image, point, 0, 0, False, [True, True])
    assert sample(image, point).tolist() == [[[[1]], [[1]]]]
