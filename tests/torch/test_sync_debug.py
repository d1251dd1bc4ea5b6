"""torch.npu.set_sync_debug_mode and the counters of pinned memory."""

import pytest
import torch
from null_backend import computed

pytestmark = pytest.mark.no_values

npu = torch.npu
IMPLICIT = {
    "item": lambda x: x[0].item(),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "bool": lambda x: bool(x[0] > 0),
    "masked_select": lambda x: x[x > 0],
    "tolist": lambda x: x.tolist(),
    "pageable to npu": lambda x: x.copy_(torch.zeros(x.shape)),
}


@pytest.fixture
def mode():
    """Sets the mode without its prototype warning."""

    def choose(mode):
        with pytest.warns(UserWarning, match="prototype"):
            npu.set_sync_debug_mode(mode)

    yield choose
    choose(0)


@pytest.mark.parametrize("call", IMPLICIT.values(), ids=IMPLICIT.keys())
def test_implicit_synchronisation_warns_or_raises(mode, call):
    x = torch.ones(1 << 15, device="npu")
    call(x)
    mode("warn")
    with pytest.warns(UserWarning, match="called a synchronizing NPU operation"):
        call(x)
    mode("error")
    with pytest.raises(RuntimeError, match="called a synchronizing NPU operation"):
        call(x)
    mode("default")
    call(x)


def test_asynchronous_and_explicitly_waiting_calls_do_not_warn(mode, recwarn):
    x = torch.ones(1 << 15, device="npu")
    pinned = torch.empty(1 << 15, pin_memory=True)
    mode("error")
    recwarn.clear()
    y = (x + 1).sum() * 2
    pinned.copy_(x, non_blocking=True)
    x.copy_(pinned, non_blocking=True)
    small = torch.tensor([1.0, 2.0], device="npu")  # copied with the launch
    npu.synchronize()
    npu.current_stream().synchronize()
    assert not recwarn.list
    mode(0)
    assert y.item() == computed(1 << 17) and small.tolist() == computed([1, 2])


@pytest.mark.usefixtures("still_memory")
def test_pinned_memory_is_counted():
    npu.host_empty_cache()
    before = npu.host_memory_stats()
    pinned = torch.empty(1000, pin_memory=True)
    during = npu.host_memory_stats()
    for family, by in (("allocations", 1), ("active_requests", 1), ("active_bytes", 4096)):
        assert during[f"{family}.current"] == before[f"{family}.current"] + by
    assert during["num_host_alloc"] == before["num_host_alloc"] + 1
    npu.reset_peak_host_memory_stats()
    del pinned
    npu.host_empty_cache()
    after = npu.host_memory_stats()
    assert after["allocated_bytes.current"] == before["allocated_bytes.current"]
    assert after["allocated_bytes.peak"] == during["allocated_bytes.current"]
    assert after["num_host_free"] == before["num_host_free"] + 1
    npu.reset_accumulated_host_memory_stats()
    assert npu.host_memory_stats_as_nested_dict()["allocations"]["freed"] == 0
