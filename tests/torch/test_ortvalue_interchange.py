"""Tensors and OrtValues share memory, streams and statistics."""

import gc
import threading

import numpy as np
import onnxruntime as ort
import pytest
import torch
from null_backend import computed
from onnx import TensorProto, helper
from onnxruntime_npu import ortvalue_from_numpy, ortvalue_from_torch, ortvalue_to_torch

pytestmark = pytest.mark.no_values

npu = torch.npu
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.int8,
          torch.uint16, torch.int64, torch.float8_e4m3fn]  # fmt: skip


@pytest.fixture
def double() -> ort.InferenceSession:
    """y = x + x on npu."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return ort.InferenceSession(model.SerializeToString(), providers=["NPUExecutionProvider"])


def keep_busy():
    """Queue work on the current stream that takes a while."""
    product = square = torch.eye(512, device="npu")
    for _ in range(20):
        product = product @ square


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip_keeps_the_same_memory(dtype):
    t = torch.arange(24).reshape(2, 3, 4).to(dtype).npu()
    value = ortvalue_from_torch(t)
    back = ortvalue_to_torch(value)
    assert value.data_ptr() == back.data_ptr() == t.data_ptr()
    assert value.device_name() == "npu" and value.shape() == [2, 3, 4]
    assert (back.dtype, back.shape, back.device) == (t.dtype, t.shape, t.device)
    back.view(torch.uint8).zero_()
    assert not t.cpu().view(torch.uint8).any()


def test_contiguous_views_share_memory_and_others_are_copied():
    t = torch.arange(24.0, device="npu").reshape(4, 6)
    assert ortvalue_from_torch(t[1:]).data_ptr() == t[1:].data_ptr()
    value = ortvalue_from_torch(t.t().requires_grad_())
    assert torch.equal(ortvalue_to_torch(value), t.t()) == computed(True)
    for empty in (torch.empty(0, 3, device="npu"), torch.tensor(5.0, device="npu")):
        assert torch.equal(ortvalue_to_torch(ortvalue_from_torch(empty)).cpu(), empty.cpu())
    with pytest.raises(TypeError, match="complex64"):
        ortvalue_from_torch(torch.zeros(3, dtype=torch.complex64, device="npu"))


@pytest.mark.usefixtures("still_memory")
def test_shared_memory_lives_until_last_owner_and_is_counted_once(double):
    before = npu.memory_allocated()
    t = torch.full((1 << 18,), 3.0, device="npu")
    held = npu.memory_allocated() - before
    assert held == 1 << 20
    value, again = ortvalue_from_torch(t), ortvalue_from_torch(t)
    back = ortvalue_to_torch(value)
    assert npu.memory_allocated() - before == held
    del t, value
    assert bool((back == 3).all()) == computed(True)
    binding = double.io_binding()
    binding.bind_ortvalue_input("x", again)
    binding.bind_output("y", "npu")
    del back, again  # the binding holds the value, and the value the memory
    gc.collect()
    other = torch.zeros(1 << 18, device="npu")
    double.run_with_iobinding(binding)
    (result,) = binding.get_outputs()
    tensor = ortvalue_to_torch(result)
    assert tensor.data_ptr() == result.data_ptr()
    assert npu.memory_allocated() - before == 3 * held
    binding.clear_binding_inputs()
    assert npu.memory_allocated() - before == 2 * held
    del result, binding, other
    gc.collect()
    assert bool((tensor == 6).all()) == computed(True)
    del tensor
    npu.synchronize()
    assert npu.memory_allocated() == before


def test_session_value_outlives_its_work_in_torch():
    stream = npu.Stream()
    tensor = ortvalue_to_torch(ortvalue_from_numpy(np.ones(1 << 16, np.float32)))
    with npu.stream(stream):
        keep_busy()
        total = tensor.sum()
    del tensor  # while the sum is still queued
    torch.cat([torch.zeros(1 << 16, device="npu") for _ in range(4)])
    stream.synchronize()
    assert total.item() == computed(1 << 16)


def test_torch_event_orders_a_run_on_another_stream(double):
    made, run = npu.Stream(), npu.Stream()
    x = torch.zeros(8, device="npu")
    npu.synchronize()
    with npu.stream(made):
        keep_busy()
        x.fill_(4)
        event = made.record_event()
    with npu.stream(run):
        run.wait_event(event)
        result = double.run_with_ort_values(None, {"x": ortvalue_from_torch(x)})[0]
    assert ortvalue_to_torch(result).tolist() == computed([8] * 8)


def test_run_follows_the_work_of_its_caller(double):
    for _ in range(3):  # with new and with existing streams of the session
        x = torch.zeros(8, device="npu")
        keep_busy()
        x.fill_(5)
        result = double.run_with_ort_values(None, {"x": ortvalue_from_torch(x)})[0]
        keep_busy()
        x.fill_(1)
        assert ortvalue_to_torch(result).tolist() == computed([10] * 8)
        assert ortvalue_from_torch(x).data_ptr() == x.data_ptr()


def test_threads_share_values_concurrently(double):
    errors = []

    def work(seed):
        try:
            with npu.stream(npu.Stream()):
                for number in range(seed + 1, seed + 31):
                    x = torch.full((257,), float(number), device="npu")
                    (y,) = double.run_with_ort_values(None, {"x": ortvalue_from_torch(x)})
                    right = bool((ortvalue_to_torch(y) == 2 * number).all())
                    assert right == computed(True)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(100 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
