"""Copies between host and device, layouts and element types; pinned memory; order."""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from null_backend import computed

pytestmark = pytest.mark.usefixtures("no_fallback")

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16,
    torch.int32, torch.int64, torch.uint8, torch.bool,
]  # fmt: skip
DTYPES_WITHOUT_KERNELS = [
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu, torch.complex32,
]  # fmt: skip


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 100).reshape(shape).to(dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64, torch.complex128, torch.float8_e4m3fn])
def test_round_trip(dtype):
    host = values(5, 7).to(dtype)
    there = host.to("npu")
    assert there.device == torch.device("npu", 0) and there.dtype == dtype
    assert torch.equal(there.cpu().view(torch.uint8), host.view(torch.uint8))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", DTYPES_WITHOUT_KERNELS)
def test_fills_of_dtypes_without_kernels(dtype):
    host, device = (torch.full((3,), 2.0, dtype=dtype, device=place) for place in ("cpu", "npu"))
    assert torch.equal(device.cpu().view(torch.uint8), host.view(torch.uint8))


@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_conversion_on_the_device(source, target):
    host = values(4, 9, dtype=source)
    assert torch.equal(host.npu().to(target).cpu(), host.to(target))


@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    data=st.data(),
    dtype=st.sampled_from(
        [torch.float32, torch.int8, torch.int64, torch.bfloat16, torch.complex128]
    ),
)
def test_views_of_any_layout(shape, data, dtype):
    order = data.draw(st.permutations(range(len(shape))))
    steps = [data.draw(st.integers(1, 3)) for _ in shape]
    window = tuple(slice(None, None, step) for step in steps)
    base = values(*shape).to(dtype)
    view = base.permute(order)[window]
    device_view = base.npu().permute(order)[window]
    assert device_view.stride() == view.stride()
    assert torch.equal(device_view.cpu(), view)
    assert torch.equal(device_view.contiguous().cpu(), view.contiguous())
    # Written through a view: the elements in between are unchanged.
    target, device_target = torch.zeros_like(base), torch.zeros_like(base).npu()
    target.permute(order)[window].copy_(view)
    device_target.permute(order)[window].copy_(device_view)
    assert torch.equal(device_target.cpu(), target)


def test_large_transposed_and_broadcast_copies():
    host = torch.randn(257, 1031)
    device = host.npu()
    assert torch.equal(device.t().contiguous().cpu(), host.t().contiguous())
    assert torch.equal(device[:1].expand(64, -1).contiguous().cpu(), host[:1].expand(64, -1))


def test_resize_keeps_content():
    device = torch.arange(6, dtype=torch.float32).npu()
    device.resize_(3, 4)
    assert torch.equal(device.flatten()[:6].cpu(), torch.arange(6.0))
    storage = device.untyped_storage()
    storage.resize_(storage.nbytes() * 2)
    assert torch.equal(device.flatten()[:6].cpu(), torch.arange(6.0))


@pytest.mark.parametrize("given", [torch.Tensor.t, lambda base: base[:, :2]])
def test_outputs_of_the_right_shape_keep_their_strides(given):
    writes = [
        lambda out: out.resize_(out.shape).fill_(1),
        lambda out: torch.full(out.shape, 2.0, out=out),
        lambda out: torch.softmax(torch.ones_like(out), 1, out=out),
    ]
    for write in writes:
        host, device = torch.zeros(3, 4), torch.zeros(3, 4, device="npu")
        assert write(given(device)).stride() == write(given(host)).stride()
        assert torch.equal(device.cpu(), host)


@pytest.mark.no_values
def test_failed_resize_leaves_the_tensor_unchanged():
    device = torch.arange(6, dtype=torch.float32).npu()
    for size in ((-1,), (1 << 50,), (1 << 40, 1 << 40)):
        with pytest.raises(RuntimeError):
            device.resize_(size)
        assert device.tolist() == computed(list(range(6)))


def test_storages_can_be_shared():
    device = torch.arange(12, dtype=torch.float32).npu()
    other = torch.empty(0, device="npu").set_(device.untyped_storage(), 2, (2, 3), (6, 1))
    assert torch.equal(other.cpu(), torch.arange(12.0).as_strided((2, 3), (6, 1), 2))
    with pytest.raises(RuntimeError, match="out of bounds"):
        torch.empty(0, device="npu").set_(device.untyped_storage(), 0, (100,), (1,))
    for bad in ((-1, (2,), (1,)), (0, (-2,), (1,)), (0, (2,), (-1,)), (0, (2,), (1, 1))):
        with pytest.raises(RuntimeError):
            torch.empty(0, device="npu").set_(device.untyped_storage(), *bad)


@pytest.mark.no_values
@pytest.mark.parametrize(
    "write",
    [
        lambda x: x[0].expand(3, 3).copy_(x),
        lambda x: x[0].expand(3, 3).copy_(torch.ones(3, 3, dtype=torch.int32)),
        lambda x: x.copy_(x.t()),
        lambda x: x.view(-1)[1:].copy_(x.view(-1)[:-1]),
        lambda x: torch.mm(x, x, out=x[0].expand(3, 3)),
    ],
)
def test_copies_into_overlapping_memory_are_refused(write):
    with pytest.raises(RuntimeError, match=r"refers? to a single memory location"):
        write(torch.arange(9.0).view(3, 3))
    with pytest.raises(RuntimeError, match=r"refers? to a single memory location"):
        write(torch.arange(9.0, device="npu").view(3, 3))


@pytest.mark.filterwarnings("ignore:Use of masked_fill_ on expanded tensors is deprecated")
def test_masks_fill_expanded_tensors_where_they_select_any_of_the_elements():
    host, device = torch.zeros(3, 1), torch.zeros(3, 1, device="npu")
    mask = torch.tensor([[False, True, False, False], [False] * 4, [True] * 4])
    for base, selected in ((host, mask), (device, mask.npu())):
        base.expand(2, 3, 4).masked_fill_(selected, 1)
        base.expand(2, 3, 4).masked_fill_(
            torch.zeros(1, 1, 1, dtype=torch.bool, device=base.device), 2
        )
    assert device.flatten().tolist() == host.flatten().tolist() == [1, 0, 1]


@pytest.mark.no_values
def test_pinned_memory():
    host = torch.arange(1000.0).pin_memory()
    assert host.is_pinned() and host[10:].is_pinned() and not torch.zeros(3).is_pinned()
    device = host.to("npu", non_blocking=True)
    back = torch.empty(1000).pin_memory()
    back.copy_(device, non_blocking=True)
    torch.npu.synchronize()
    assert torch.equal(back, computed(host))


@pytest.mark.no_values
def test_pinned_memory_copies_run_in_stream_order():
    stream, gate = torch.npu.Stream(), torch.npu.ExternalEvent()
    device = torch.zeros(1000, device="npu")
    host, back = torch.zeros(1000).pin_memory(), torch.zeros(1000).pin_memory()
    stream.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(stream):
        gate.wait()
        device.copy_(host, non_blocking=True)
        device.add_(1)
        back.copy_(device, non_blocking=True)
    assert not stream.query()  # the calls returned while the copies are queued
    host.fill_(5)
    gate.record(torch.npu.default_stream())
    stream.synchronize()
    assert bool((back == 6).all()) == computed(True)


@pytest.mark.no_values
def test_pinned_memory_freed_before_its_copy_is_retained():
    stream, gate = torch.npu.Stream(), torch.npu.ExternalEvent()
    device = torch.zeros(1 << 16, device="npu")
    stream.wait_stream(torch.npu.current_stream())
    source = torch.full((1 << 16,), 3.0).pin_memory()
    with torch.npu.stream(stream):
        gate.wait()
        device.copy_(source, non_blocking=True)
    del source
    others = [torch.full((1 << 16,), 9.0).pin_memory() for _ in range(4)]
    gate.record(torch.npu.default_stream())
    stream.synchronize()
    assert bool((device == 3).all()) == computed(True)
    assert all(other.is_pinned() for other in others)


@pytest.mark.no_values
def test_pinned_memory_outlives_its_copy():
    for _ in range(20):
        host = torch.full((1 << 18,), 7.0).pin_memory()
        device = host.to("npu", non_blocking=True)
        del host
        again = torch.full((1 << 18,), 1.0).pin_memory()
        assert bool((device.cpu() == 7.0).all()) == computed(True)
        del again


def test_pageable_memory_may_change_after_the_copy():
    for size in (10, 1 << 20):
        host = torch.ones(size)
        device = host.to("npu", non_blocking=True)
        host.zero_()
        assert bool((device.cpu() == 1).all())


def test_scalars():
    assert torch.tensor(2.5, device="npu").item() == 2.5
    assert torch.tensor([1, 2, 3], device="npu")[1].item() == 2
    assert torch.full((3,), True, device="npu").tolist() == [True] * 3
    assert torch.zeros(2, 3, device="npu")[:, ::2].fill_(1.5).tolist() == [[1.5, 1.5]] * 2


@pytest.mark.no_values
def test_streams_run_in_order_and_events_order_streams():
    first, second = torch.Stream("npu"), torch.Stream("npu")
    big = torch.zeros(1 << 20, device="npu")
    event = torch.Event("npu")
    for i in range(30):
        with first:
            big.fill_(i)
            event.record(first)
        second.wait_event(event)
        with second:
            copy = big.clone()
        first.wait_stream(second)
        second.synchronize()
        assert copy[0].item() == copy[-1].item() == computed(i)
    assert event.query()


@pytest.mark.no_values
def test_each_thread_has_its_own_current_stream():
    stream = torch.Stream("npu")
    seen = []
    with stream:
        thread = threading.Thread(target=lambda: seen.append(torch.accelerator.current_stream()))
        thread.start()
        thread.join()
        assert torch.accelerator.current_stream() == stream
    assert seen[0] != stream
    assert torch.accelerator.current_stream() != stream


@pytest.mark.no_values
def test_bad_devices_are_refused():
    count = torch.npu.device_count()
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.zeros(1, device=f"npu:{count}")
    with pytest.raises(RuntimeError):
        torch.zeros(2, device="npu").copy_(torch.zeros(3))


@pytest.mark.parametrize("length", [None, 1, 17, 31])
def test_floats_round_to_bfloat16_as_on_the_cpu(length):
    """Each upper half with lower halves below, on and above the tie: numbers of every size, NaN."""
    upper = torch.arange(1 << 16, dtype=torch.int32) << 16
    lower = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001], dtype=torch.int32)
    floats = (upper[:, None] | lower).flatten().view(torch.float32)[:length]
    expected, got = floats.bfloat16(), floats.npu().bfloat16().cpu()
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
