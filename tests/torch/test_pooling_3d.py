"""Pools of volumes and their gradients."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import FLOATS, INTEGERS, check, make

pytestmark = pytest.mark.usefixtures("no_fallback")

WINDOWS = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (2, 3, 1), "stride": (1, 2, 3), "padding": (1, 0, 0)},
    {"kernel_size": 3, "stride": (3, 2, 2), "ceil_mode": True},
    {"kernel_size": (2, 2, 3), "stride": 2, "padding": (0, 1, 1), "ceil_mode": True},
]
DILATED = [
    {"kernel_size": 2, "dilation": 2},
    {"kernel_size": (2, 3, 2), "stride": 1, "padding": (0, 1, 1), "dilation": (3, 1, 2)},
    {"kernel_size": 2, "stride": 3, "dilation": (1, 2, 3), "ceil_mode": True},
]


def distinct(dtype, *shape):
    """Values without ties, whose places are the same in any order of the comparison."""
    count = torch.Size(shape).numel()
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return order.reshape(shape).to(dtype)


@pytest.mark.parametrize("window", WINDOWS + DILATED, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_max_pool(dtype, window):
    x = make(dtype, 2, 3, 6, 7, 8)
    check(lambda t: F.max_pool3d(t, **window), x)
    check(lambda t: F.max_pool3d(t[0], **window), x)


@pytest.mark.parametrize("window", WINDOWS + DILATED, ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d], ids=str)
def test_places_and_layout_of_a_max_pool(layout, window):
    x = distinct(torch.float32, 2, 3, 6, 7, 8).contiguous(memory_format=layout)
    on_cpu, on_npu = (t.detach().requires_grad_() for t in (x, x.npu()))
    values, places = F.max_pool3d(on_npu, **window, return_indices=True)
    expected, expected_places = F.max_pool3d(on_cpu, **window, return_indices=True)
    assert torch.equal(values.cpu(), expected) and torch.equal(places.cpu(), expected_places)
    assert values.stride() == expected.stride() and places.stride() == expected_places.stride()
    weight = torch.randn_like(expected)
    values.backward(weight.npu())
    expected.backward(weight)
    torch.testing.assert_close(on_npu.grad.cpu(), on_cpu.grad)
    assert on_npu.grad.stride() == on_cpu.grad.stride()


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_max_pool_of_integers(dtype):
    x = (distinct(torch.int64, 2, 1, 3, 4, 5) % 120).to(dtype)
    expected = F.max_pool3d(x.double(), 2, 1).to(dtype)
    assert torch.equal(F.max_pool3d(x.npu(), 2, 1).cpu(), expected)


def test_max_pool_of_nan_and_of_nothing():
    x = torch.full((1, 1, 2, 2, 2), -float("inf"), device="npu")
    values, places = F.max_pool3d(x, 2, return_indices=True)
    assert values.item() == -float("inf") and places.item() == 0
    x[0, 0, 1, 0, 1] = float("nan")
    values, places = F.max_pool3d(x, 2, return_indices=True)
    assert values.isnan().item() and places.item() == 5
    empty = torch.empty(0, 3, 4, 4, 4, device="npu", requires_grad=True)
    F.max_pool3d(empty, 2).sum().backward()
    assert empty.grad.shape == empty.shape


@pytest.mark.parametrize(
    "window",
    [
        {"kernel_size": 0},
        {"kernel_size": (2, 2)},
        {"kernel_size": 2, "stride": (1, 2)},
        {"kernel_size": 2, "padding": (1, 1)},
        {"kernel_size": 2, "dilation": (1, 2)},
        {"kernel_size": 2, "padding": 2},
        {"kernel_size": 2, "padding": -1},
        {"kernel_size": 9},
    ],
    ids=str,
)
def test_wrong_windows_are_refused_as_on_the_cpu(window):
    x = torch.ones(2, 3, 6, 7, 8)
    with pytest.raises(RuntimeError) as on_cpu:
        F.max_pool3d(x, **window)
    with pytest.raises(RuntimeError) as on_npu:
        F.max_pool3d(x.npu(), **window)
    assert str(on_npu.value).splitlines()[0] == str(on_cpu.value).splitlines()[0]


def test_max_pool_writes_the_tensors_that_it_is_given():
    x = distinct(torch.float32, 2, 3, 6, 7, 8)
    aten = torch.ops.aten
    expected = aten.max_pool3d_with_indices(x, [3, 2, 2], [2, 1, 3], [1, 0, 1], [1, 2, 1])
    shape = expected[0].shape
    values = torch.zeros(*shape[:-1], 2 * shape[-1], device="npu")[..., ::2]
    places = torch.zeros(shape[::-1], dtype=torch.int64, device="npu").permute(4, 3, 2, 1, 0)
    got = aten.max_pool3d_with_indices.out(
        x.npu(), [3, 2, 2], [2, 1, 3], [1, 0, 1], [1, 2, 1], out=values, indices=places
    )
    for result, given, want in zip(got, (values, places), expected, strict=True):
        assert result.data_ptr() == given.data_ptr() and torch.equal(given.cpu(), want)


def test_max_pool_backward_refuses_what_does_not_fit():
    aten = torch.ops.aten
    x = torch.ones(1, 1, 4, 4, 4, device="npu")
    window = [2], [2], [0], [1], False
    values, places = aten.max_pool3d_with_indices(x, *window)
    with pytest.raises(RuntimeError, match="expected a gradient"):
        aten.max_pool3d_with_indices_backward(values[..., :1], x, *window, places)
    with pytest.raises(RuntimeError, match="expected a gradient"):
        aten.max_pool3d_with_indices_backward(values.half(), x, *window, places)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_average_pool(dtype, window):
    x = make(dtype, 2, 3, 6, 7, 8)
    check(lambda t: F.avg_pool3d(t, **window), x)
    check(lambda t: F.avg_pool3d(t[1], **window, count_include_pad=False), x)
    check(lambda t: F.avg_pool3d(t, **window, divisor_override=5), x)
    channels_last = x.detach().to(memory_format=torch.channels_last_3d).requires_grad_()
    check(lambda t: F.avg_pool3d(t, **window), channels_last)


@pytest.mark.parametrize("size", [1, 3, (2, 7, 5), (None, 1, 4)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_adaptive_pools(dtype, size):
    x = make(dtype, 2, 3, 6, 7, 8)
    check(lambda t: F.adaptive_avg_pool3d(t, size), x)
    check(lambda t: F.adaptive_avg_pool3d(t[0], size), x)
    check(lambda t: F.adaptive_max_pool3d(t, size), x)
    check(lambda t: F.adaptive_max_pool3d(t[0], size), x)
    x = distinct(torch.float32, 2, 3, 6, 7, 8)
    got = F.adaptive_max_pool3d(x.npu(), size, return_indices=True)
    for result, want in zip(got, F.adaptive_max_pool3d(x, size, return_indices=True), strict=True):
        assert torch.equal(result.cpu(), want)


def test_adaptive_average_refuses_wrong_sizes():
    x = torch.ones(2, 3, 6, 7, 8, device="npu")
    assert F.adaptive_avg_pool3d(x, 0).shape == (2, 3, 0, 0, 0)
    with pytest.raises(RuntimeError, match="output_size must be 3"):
        torch.ops.aten._adaptive_avg_pool3d(x, [3, 2])
    with pytest.raises(RuntimeError, match="greater than or equal to 0"):
        F.adaptive_avg_pool3d(x, -1)
    with pytest.raises(RuntimeError, match="Expected 4D or 5D"):
        F.adaptive_avg_pool3d(x[0, 0], 2)
