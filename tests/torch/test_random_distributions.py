"""Distributions drawn from the device's generator."""

import pytest
import torch


def test_npu_generator_is_refused_for_other_devices():
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found"):
        torch.empty(3).uniform_(generator=torch.Generator("npu"))


@pytest.mark.no_values
def test_generators_of_devices_that_do_not_exist_are_refused():
    with pytest.raises(RuntimeError, match="invalid device ordinal 99"):
        torch.Generator("npu:99")


def test_normal_of_tensors_uses_the_device_generator():
    mean, deviation = torch.rand(2, 3).npu(), torch.rand(2, 1).npu()
    for arguments in ((mean, deviation), (mean, 2.0), (3.0, deviation)):
        torch.npu.manual_seed(5)
        first = torch.normal(*arguments)
        torch.rand(3)  # the CPU's generator is independent
        torch.npu.manual_seed(5)
        assert torch.equal(torch.normal(*arguments).cpu(), first.cpu())
    many = torch.normal(torch.full((20000,), 3.0).npu(), torch.full((20000,), 2.0).npu()).cpu()
    assert abs(many.mean() - 3) < 0.1 and abs(many.std() - 2) < 0.1
    with pytest.raises(RuntimeError, match="std >= 0"):
        torch.normal(mean, -deviation)


def test_distributions_use_the_device_generator():
    x = torch.empty(20000, device="npu")
    assert abs(x.cauchy_(1.0, 2.0).median().item() - 1) < 0.15
    assert abs(x.log_normal_(0.5, 0.25).log().mean().item() - 0.5) < 0.02
    assert abs(x.geometric_(0.25).mean().item() - 4) < 0.2 and x.min().item() == 1
    with pytest.raises(RuntimeError, match="expects p to be in"):
        x.geometric_(1.5)


def test_random_integers_stay_within_the_dtype_range():
    for dtype, top in ((torch.half, 1 << 11), (torch.float, 1 << 24), (torch.int16, (1 << 15) - 1)):
        x = torch.empty(4000, dtype=dtype, device="npu").random_(8, None).cpu().double()
        assert x.min() >= 8 and 0.9 * top < x.max() <= top
    with pytest.warns(UserWarning, match="to - 1 is out of bounds"):
        x = torch.empty(4000, dtype=torch.half, device="npu").random_(0, 42000)
    assert x.max().item() < 42000
    with pytest.raises(RuntimeError, match="to - 1 is out of bounds"):
        torch.empty(3, dtype=torch.int8, device="npu").random_(0, 1000)
