"""Every wait for failed work raises, and results of skipped work are never returned."""

from __future__ import annotations

import threading

import numpy as np
import onnxruntime_npu
import pytest
import torch

INDEX = 99
ERROR = rf"\[Gather\].*got {INDEX} "


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    for _ in range(2):
        try:
            torch.npu.synchronize()
        except RuntimeError as error:
            assert f"got {INDEX} " in str(error)


@pytest.fixture
def fail():
    table = torch.arange(40.0, device="npu").view(10, 4)
    bad = torch.full((3,), INDEX, device="npu")
    torch.npu.synchronize()
    return lambda: table.index_select(0, bad)


def test_event_after_a_failed_kernel_raises(fail):
    host = torch.full((3, 4), -1.0).pin_memory()
    event, plain = torch.npu.Event(), torch.Event("npu")
    host.copy_(fail(), non_blocking=True)
    event.record()
    plain.record()
    for waiter in (event, event, plain):
        with pytest.raises(RuntimeError, match=ERROR):
            waiter.synchronize()
    with pytest.raises(RuntimeError, match=ERROR):
        event.query()
    assert (host == -1).all()


def test_stream_waiting_for_a_failed_stream_fails(fail):
    first, second = torch.npu.Stream(), torch.npu.Stream()
    with torch.npu.stream(first):
        y = fail()
    second.wait_stream(first)
    with torch.npu.stream(second), pytest.raises(RuntimeError, match=ERROR):
        (y * 0 + 5).cpu()
    with pytest.raises(RuntimeError, match=ERROR):
        first.synchronize()


def test_synchronize_on_another_thread_does_not_clear_the_error(fail):
    y, told = fail(), []

    def wait():
        try:
            torch.npu.current_stream().synchronize()
        except RuntimeError as error:
            told.append(str(error))

    other = threading.Thread(target=wait)
    other.start()
    other.join()
    assert len(told) == 1 and f"got {INDEX} " in told[0]
    with pytest.raises(RuntimeError, match=ERROR):
        y.cpu()
    assert (torch.ones(3, device="npu") + 1).cpu().tolist() == [2, 2, 2]


def test_ortvalue_of_skipped_work_raises(fail):
    value = onnxruntime_npu.ortvalue_from_torch(fail())
    with pytest.raises(RuntimeError, match=ERROR):
        onnxruntime_npu.ortvalue_to_numpy(value)
    fine = onnxruntime_npu.ortvalue_from_torch(torch.ones(3, device="npu"))
    np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(fine), np.ones(3, np.float32))


def test_external_event_recorded_after_a_failure(fail):
    first, second = torch.npu.Stream(), torch.npu.Stream()
    event = torch.npu.ExternalEvent()
    with torch.npu.stream(first):
        fail()
        event.record(first)
    event.wait(second)
    for stream in (second, first):
        with pytest.raises(RuntimeError, match=ERROR):
            stream.synchronize()


def test_failed_backward_does_not_affect_the_next_one():
    table = torch.ones(10, 4, device="npu", requires_grad=True)
    good, bad = torch.tensor([1], device="npu"), torch.tensor([INDEX], device="npu")
    torch.npu.synchronize()

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient.index_select(0, bad).sum() * gradient

    loss = Fails.apply(table).sum()
    assert loss.item() == 40  # the thread has waited for all its launches
    loss.backward()
    with pytest.raises(RuntimeError, match=ERROR):
        table.grad.cpu()
    table.grad = None
    table.index_select(0, good).sum().backward()
    assert table.grad.sum().item() == 4


@pytest.mark.no_values
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: torch._assert_async(torch.zeros((), device="npu")), "got zero"),
        (lambda: torch._assert_async(torch.tensor(False).npu(), "no rows left"), "no rows left"),
        *(
            (
                lambda bad=bad: torch.multinomial(torch.tensor([1.0, bad]).npu(), 1),
                "`nan` or element",
            )
            for bad in (-1.0, float("nan"), float("inf"))
        ),
        (lambda: torch.multinomial(torch.eye(3)[:, :2].npu(), 4, True), "invalid multinomial"),
        (lambda: torch.bernoulli(torch.tensor([0.5, 1.5]).npu()), "from 0 to 1"),
        (lambda: torch.zeros(2).npu().bernoulli_(torch.tensor([-0.5, 0.5]).npu()), "from 0 to 1"),
    ],
)
def test_values_on_the_device_that_no_operator_can_take(call, message):
    call()
    with pytest.raises(RuntimeError, match=message):
        torch.npu.synchronize()
    torch._assert_async(torch.ones(1, dtype=torch.int64, device="npu"))
    assert torch.multinomial(torch.tensor([0.0, 1.0, 0.0]).npu(), 1).item() == 1


def test_launch_waiting_for_queue_space_releases_the_gil():
    x = torch.ones(8, device="npu")
    side, gate = torch.npu.Stream(), torch.npu.ExternalEvent()
    torch.npu.synchronize()
    gate.wait(side)
    opener = threading.Timer(0.2, lambda: gate.record(torch.npu.default_stream()))
    opener.start()
    with torch.npu.stream(side):
        for _ in range(9000):  # more than one launch each: exceeds the queue's capacity
            y = onnxruntime_npu.npu_fast_gelu(x)
    side.synchronize()
    assert torch.equal(y.cpu(), onnxruntime_npu.npu_fast_gelu(x).cpu())


@pytest.mark.no_values
def test_queued_copies_hold_bounded_host_memory():
    def resident_mib():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4 // 1024

    target, source = torch.zeros(16384, device="npu"), torch.ones(16384)
    side, gate = torch.npu.Stream(), torch.npu.ExternalEvent()
    torch.npu.synchronize()
    gate.wait(side)
    opener = threading.Timer(1, lambda: gate.record(torch.npu.default_stream()))
    before = peak = resident_mib()
    opener.start()
    with torch.npu.stream(side):
        for n in range(8000):  # 500 MiB
            target.copy_(source)
            if n % 100 == 0:
                peak = max(peak, resident_mib())
    side.synchronize()
    assert peak - before < 200
