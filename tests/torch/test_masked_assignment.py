"""x[mask] = scalar: values, gradients, no synchronisation for the mask."""

import pytest
import torch
from against_cpu import both


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("value", [torch.tensor(2), torch.tensor(2.5), torch.tensor([3]), True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("where", ["rows", "all", "behind a slice"])
def test_masked_assignment_casts_the_scalar(where, dtype, value):
    def put(device):
        x = torch.zeros(3, 4, 2, dtype=dtype, device=device)
        rows = torch.tensor([True, False, True], device=device)
        picked = {
            "rows": rows,
            "all": torch.ones(3, 4, 2, device=device).cumsum(1) > 2,
            "behind a slice": (slice(None), rows.repeat(2)[:4]),
        }[where]
        x[picked] = value.to(device) if isinstance(value, torch.Tensor) else value
        return x

    got, expected = both(put)
    assert torch.equal(got, expected) and got.any()
    assert torch.equal(both(lambda d: put(d).transpose(0, 2))[0], expected.transpose(0, 2))


def test_masked_scalar_assignment_does_not_synchronise():
    x, mask = torch.zeros(1 << 15, device="npu"), torch.ones(1 << 15, device="npu") > 0
    with pytest.warns(UserWarning, match="prototype"):
        torch.npu.set_sync_debug_mode("error")
    try:
        x[mask] = 3
    finally:
        with pytest.warns(UserWarning, match="prototype"):
            torch.npu.set_sync_debug_mode(0)
    assert bool((x == 3).all())


def test_gradients_of_masked_scalar_assignment():
    x = torch.arange(6.0, device="npu").requires_grad_()
    value = torch.tensor(7.0, device="npu").requires_grad_()
    y = x * 2
    y[y > 4] = value
    (y * y).sum().backward()
    assert x.grad.tolist() == [0, 8, 16, 0, 0, 0] and value.grad.item() == 42


def test_wrong_index_is_reported_before_wrong_dtype():
    for index in (torch.tensor([1.0]), torch.ones(4, dtype=torch.bool)):
        with pytest.raises(IndexError):
            torch.zeros(3, device="npu")[index.npu()] = torch.tensor([1, 2], device="npu")
