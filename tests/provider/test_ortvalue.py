"""Values in device memory: every element type, copies in both directions, and across the graph."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_inference_collection import copy_tensors
from onnxruntime_npu import npu, ortvalue_from_numpy, ortvalue_to_numpy
from provider_models import CPU, NPU, make_model, npu_session, providers_of, run_python

NUMPY_TYPES = [
    *("float32", "float64", "float16", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
]
EXTENDED_TYPES = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]


def array(name: str, rng: np.random.Generator, shape=(3, 5)) -> np.ndarray:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    return rng.integers(0, 2 if name == "bool" else 100, shape).astype(dtype)


def bits(a: np.ndarray) -> bytes:
    return np.ascontiguousarray(a).tobytes()


@pytest.mark.parametrize("name", [*NUMPY_TYPES, *EXTENDED_TYPES])
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 4), (200_001,)], ids=str)
def test_round_trip(name, shape, rng):
    a = array(name, rng, shape)
    value = ortvalue_from_numpy(a)
    assert value.device_name() == "npu"
    assert value.shape() == list(shape)
    back = ortvalue_to_numpy(value)
    assert back.dtype == a.dtype and back.shape == a.shape
    assert bits(back) == bits(a)


def test_strides_and_lists(rng):
    a = rng.standard_normal((6, 8), dtype=np.float32)
    for view in (a.T, a[::2, ::-1], np.broadcast_to(a[:1], (4, 8))):
        np.testing.assert_array_equal(ortvalue_to_numpy(ortvalue_from_numpy(view)), view)
    np.testing.assert_array_equal(ortvalue_to_numpy(ortvalue_from_numpy([1.0, 2.0])), [1.0, 2.0])


def test_value_is_a_copy(rng):
    a = np.zeros(4, np.float32)
    value = ortvalue_from_numpy(a)
    a[:] = 1
    assert ortvalue_to_numpy(value).sum() == 0


@pytest.mark.parametrize(
    "values", [["text"], [object()], [1j]], ids=["string", "object", "complex"]
)
def test_unsupported_element_types_are_refused(values):
    with pytest.raises(TypeError, match="expected an element type of float32"):
        ortvalue_from_numpy(np.array(values))


@pytest.mark.parametrize("read", [ortvalue_to_numpy, onnxruntime_npu.ortvalue_to_torch])
def test_arrays_are_no_values(read):
    with pytest.raises(TypeError, match=r"expected an OrtValue, got ndarray"):
        read(np.ones(2))


def test_strings_are_refused():
    cast = helper.make_node("Cast", ["x"], ["y"], "cast", to=TensorProto.STRING)
    model = make_model([cast], [("x", TensorProto.FLOAT, [1])], [("y", TensorProto.STRING, [1])])
    x = ortvalue_from_numpy(np.ones(1, np.float32))
    (y,) = npu_session(model).run_with_ort_values(None, {"x": x})
    with pytest.raises(TypeError, match=r"expected a tensor .* got tensor\(string\)"):
        ortvalue_to_numpy(y)


def test_nonexistent_device_is_an_error():
    with pytest.raises(Exception, match=r"(?i)device|allocator"):
        ortvalue_from_numpy(np.zeros(3, np.float32), device_id=9)


def test_copies_between_device_values(rng):
    a = rng.standard_normal(1000, dtype=np.float32)
    source, target = ortvalue_from_numpy(a), ortvalue_from_numpy(np.zeros_like(a))
    copy_tensors([source], [target])
    np.testing.assert_array_equal(ortvalue_to_numpy(target), a)


def test_copies_between_devices():
    result = run_python(
        """
        import numpy as np
        from onnxruntime.capi.onnxruntime_inference_collection import copy_tensors
        from onnxruntime_npu import npu, ortvalue_from_numpy, ortvalue_to_numpy
        a = np.arange(100_000, dtype=np.float32)
        first, second = ortvalue_from_numpy(a, 0), ortvalue_from_numpy(np.zeros_like(a), 1)
        copy_tensors([first], [second])
        np.testing.assert_array_equal(ortvalue_to_numpy(second), a)
        """,
        {"ORT_NPU_DEVICE_COUNT": "2"},
    )
    assert result.returncode == 0, result.stderr


def test_copies_of_different_sizes_are_refused():
    with pytest.raises(Exception, match=r"(?i)expected a destination of|size"):
        copy_tensors(
            [ortvalue_from_numpy(np.zeros(8, np.float32))],
            [ortvalue_from_numpy(np.zeros(4, np.float32))],
        )


def npu_device():
    return next(d for d in ort.get_ep_devices() if d.ep_name == NPU)


def pinned_value(shape):
    info = npu_device().memory_info(ort.OrtDeviceMemoryType.HOST_ACCESSIBLE)
    return ort.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, memory_info=info)


def memory_of(value):
    """Return pinned memory as an array, without a copy."""
    size = int(np.prod(value.shape()))
    memory = (ctypes.c_float * size).from_address(value.data_ptr())
    return np.frombuffer(memory, np.float32).reshape(value.shape())


def held_back_stream():
    """Return a stream that is blocked until the event is recorded, and the event."""
    stream, gate = npu_device().create_sync_stream(), npu.ExternalEvent()
    gate.wait(npu.ExternalStream(stream.get_handle()))
    return stream, gate


def test_pinned_host_memory(rng):
    a = rng.standard_normal((4, 4), dtype=np.float32)
    pinned = pinned_value([4, 4])
    copy_tensors([ortvalue_from_numpy(a)], [pinned])
    back = ortvalue_from_numpy(np.zeros_like(a))
    copy_tensors([pinned], [back])
    np.testing.assert_array_equal(ortvalue_to_numpy(back), a)


@pytest.mark.parametrize("rows", [3, 20_000])
def test_pinned_memory_copies_are_asynchronous(rows, rng):
    a = rng.standard_normal((rows, 5), dtype=np.float32)
    source, target = pinned_value(a.shape), pinned_value(a.shape)
    memory_of(source)[:] = a
    memory_of(target)[:] = -1
    there = ortvalue_from_numpy(np.zeros_like(a))
    address = source.data_ptr()
    stream, gate = held_back_stream()
    copy_tensors([source], [there], stream)
    copy_tensors([there], [target], stream)
    assert (memory_of(target) == -1).all()
    del source
    other = pinned_value(a.shape)
    assert other.data_ptr() != address
    memory_of(other)[:] = -2
    gate.record(npu.Stream())
    npu.synchronize()
    np.testing.assert_array_equal(memory_of(target), a)


@pytest.mark.parametrize("with_stream", [True, False])
def test_pinned_to_host_copy_waits_for_pending_copies(with_stream, rng):
    a = rng.standard_normal((300, 500), dtype=np.float32)
    there, host = ortvalue_from_numpy(a), np.zeros_like(a)
    pinned = pinned_value(a.shape)
    stream = npu_device().create_sync_stream()
    large = [ortvalue_from_numpy(np.zeros(16 << 20, np.float32)) for _ in range(2)]
    for _ in range(10):  # keeps the stream busy
        copy_tensors(large[:1], large[1:], stream)
    copy_tensors([there], [pinned], stream)
    to = ort.OrtValue.ortvalue_from_numpy(host)
    copy_tensors([pinned], [to], stream if with_stream else None)
    np.testing.assert_array_equal(to.numpy(), a)


def test_run_reads_and_writes_pinned_memory(rng):
    a = rng.standard_normal((300, 500), dtype=np.float32)
    nodes = [helper.make_node("Neg", ["x"], ["y"], "negate")]
    session = npu_session(
        make_model(nodes, [("x", TensorProto.FLOAT, a.shape)], [("y", TensorProto.FLOAT, a.shape)])
    )
    x, y = pinned_value(a.shape), pinned_value(a.shape)
    for k in range(3):
        memory_of(x)[:] = a + k
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", x)
        binding.bind_ortvalue_output("y", y)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(memory_of(y), -(a + k))


@pytest.mark.parametrize("name", NUMPY_TYPES)
@pytest.mark.parametrize("rows", [0, 3, 20_000])
def test_values_cross_between_cpu_and_npu_nodes(name, rows, rng):
    """NPU -> CPU -> NPU, by both copy kernels. Only the CPU supports sequences, of these types."""
    a = array(name, rng, (rows, 5))
    element = helper.np_dtype_to_tensor_dtype(a.dtype)
    nodes = [
        helper.make_node("Transpose", ["x"], ["there"], "there"),
        helper.make_node("SequenceConstruct", ["there"], ["sequence"], "pack"),
        helper.make_node("SequenceAt", ["sequence", "zero"], ["host"], "unpack"),
        helper.make_node("Transpose", ["host"], ["y"], "back"),
    ]
    constants = {"zero": np.array(0, np.int64)}
    model = make_model(nodes, [("x", element, None)], [("y", element, None)], constants)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = npu_session(model, options)
    assert providers_of(session) == {"there": NPU, "pack": CPU, "unpack": CPU, "back": NPU}
    (out,) = session.run_with_ort_values(None, {"x": ortvalue_from_numpy(a)})
    assert bits(ortvalue_to_numpy(out)) == bits(a)


def test_strings_stay_on_the_cpu_next_to_npu_nodes():
    model = make_model(
        [
            helper.make_node("Add", ["x", "x"], ["y"], "add"),
            helper.make_node("Identity", ["text"], ["copy"], "copy"),
        ],
        [("x", TensorProto.FLOAT, [2]), ("text", TensorProto.STRING, [1])],
        [("y", TensorProto.FLOAT, [2]), ("copy", TensorProto.STRING, [1])],
    )
    x = np.ones(2, np.float32)
    y, copy = npu_session(model).run(None, {"x": x, "text": np.array(["a"])})
    assert y.sum() == 4 and copy.tolist() == ["a"]


class TestTorch:
    """With torch, if it is installed."""

    torch = pytest.importorskip("torch")

    @pytest.mark.parametrize("name", [*NUMPY_TYPES, *EXTENDED_TYPES])
    def test_round_trip(self, name):
        torch = self.torch
        t = torch.arange(24).reshape(4, 6).to(getattr(torch, name))
        back = onnxruntime_npu.ortvalue_to_torch(onnxruntime_npu.ortvalue_from_torch(t)).cpu()
        assert back.dtype == t.dtype
        assert torch.equal(back.view(torch.uint8), t.view(torch.uint8))

    def test_views_and_gradients(self):
        torch = self.torch
        t = torch.randn(4, 6, requires_grad=True)
        for view in (t.T, t[::2], t.expand(2, 4, 6)):
            value = onnxruntime_npu.ortvalue_from_torch(view)
            assert torch.equal(onnxruntime_npu.ortvalue_to_torch(value).cpu(), view.detach())
        with pytest.raises(TypeError, match="got complex64"):
            onnxruntime_npu.ortvalue_from_torch(torch.zeros(3, dtype=torch.complex64))

    def test_empty_and_scalar(self):
        torch = self.torch
        for t in (torch.zeros(0, 3), torch.tensor(5, dtype=torch.bfloat16)):
            back = onnxruntime_npu.ortvalue_to_torch(onnxruntime_npu.ortvalue_from_torch(t)).cpu()
            assert back.shape == t.shape and torch.equal(back, t)

    def test_output_of_a_session_on_the_cpu(self):
        torch = self.torch
        host = ort.OrtValue.ortvalue_from_numpy(np.arange(3, dtype=np.int64))
        assert torch.equal(onnxruntime_npu.ortvalue_to_torch(host), torch.arange(3))
