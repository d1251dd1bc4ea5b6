"""Pooling and its gradients."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import FLOATS, check, make

pytestmark = pytest.mark.usefixtures("no_fallback")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_pooling(dtype):
    x = make(dtype, 2, 3, 9, 8)
    check(lambda t: F.max_pool2d(t, 3, 2, 1), x)
    check(lambda t: F.max_pool2d(t, (2, 3), (1, 2), (0, 1), dilation=(3, 2), ceil_mode=True), x)
    check(lambda t: F.max_pool1d(t[0], 3), x)
    check(lambda t: F.avg_pool2d(t, 3, 2, 1), x)
    check(lambda t: F.avg_pool2d(t, 3, 2, 1, ceil_mode=True, count_include_pad=False), x)
    check(lambda t: F.avg_pool2d(t, (2, 3), divisor_override=5), x)
    check(lambda t: F.adaptive_avg_pool2d(t, (4, 3)), x)
    check(lambda t: F.adaptive_avg_pool2d(t[0], 1), x)
    channels_last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    check(lambda t: F.max_pool2d(t, 2), channels_last)
    values, places = F.max_pool2d(x.npu(), 2, return_indices=True)
    expected, expected_places = F.max_pool2d(x, 2, return_indices=True)
    assert torch.equal(places.cpu(), expected_places) and torch.equal(values.cpu(), expected)


def test_pooling_of_nan_and_empty_output():
    x = torch.tensor([[[1.0, float("nan"), 3.0, -float("inf")]]], device="npu")
    assert F.max_pool2d(x, (1, 2)).isnan().tolist() == [[[True, False]]]
    with pytest.raises(RuntimeError, match=r"[Oo]utput size is too small"):
        F.max_pool2d(x, 3)
    with pytest.raises(RuntimeError, match=r"two, not negative"):
        torch.ops.aten._adaptive_avg_pool2d(x, [-1, 2])
