"""Padding, its gradients and refused arguments."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import FLOATS, check, make

pytestmark = pytest.mark.usefixtures("no_fallback")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("mode", ["reflect", "replicate", "constant", "circular"])
def test_padding(mode, dtype):
    check(lambda t: F.pad(t, (2, 3), mode=mode), make(dtype, 2, 3, 5))
    check(lambda t: F.pad(t, (2, 3, 0, 1), mode=mode), make(dtype, 2, 3, 4, 5))
    check(lambda t: F.pad(t, (2, 3, 0, 1), mode=mode), make(dtype, 3, 4, 5))
    check(lambda t: F.pad(t, (2, 3, 0, 1, 1, 2), mode=mode), make(dtype, 2, 2, 3, 4, 5))
    check(lambda t: F.pad(t.transpose(2, 3), (1, 0, 2, 2), mode=mode), make(dtype, 2, 3, 4, 5))
    if mode != "circular":
        check(lambda t: F.pad(t, (-1, 2, 1, -2), mode=mode), make(dtype, 2, 3, 4, 5))


def test_padding_refuses_more_than_the_input_size():
    x = torch.arange(12.0, device="npu").view(1, 3, 4)
    for bad in ((4, 0), (0, 4), (-3, -2)):
        with pytest.raises(RuntimeError, match=r"[Pp]adding size|too small"):
            F.pad(x, bad, mode="reflect")
    with pytest.raises(RuntimeError, match="less than the corresponding"):
        F.pad(x, (0, 0, 3, 0), mode="reflect")
    with pytest.raises(RuntimeError, match="padding below the size"):
        torch.ops.aten.reflection_pad2d_backward(torch.ones(1, 3, 40).npu(), x, [36, 0, 0, 0])
    with pytest.raises(RuntimeError, match="expected a gradient"):
        torch.ops.aten.reflection_pad2d_backward(x, x, [1, 0, 0, 0])
    far = [2**40, -(2**40)]  # only the edge is visible
    assert torch.equal(torch.ops.aten.replication_pad1d(x, far), x[..., :1].expand(1, 3, 4))
    grad = torch.ops.aten.replication_pad1d_backward(torch.ones_like(x), x, far).cpu()
    assert torch.equal(grad, torch.tensor([4.0, 0, 0, 0]).expand(1, 3, 4))
    farther = [2**62, -(2**62)]
    with pytest.raises(RuntimeError, match="a dimension in range"):
        torch.ops.aten.replication_pad1d(x, farther)
    with pytest.raises(RuntimeError, match="a dimension in range"):
        torch.ops.aten.replication_pad1d_backward(x, x, farther)
    integers = torch.arange(12).view(1, 3, 4)
    expected = F.pad(integers, (2, 1), mode="reflect")
    assert torch.equal(F.pad(integers.npu(), (2, 1), mode="reflect").cpu(), expected)
