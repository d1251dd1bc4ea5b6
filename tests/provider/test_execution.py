"""Runs: shapes, threads, binding, in place, errors and recovery."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper
from onnxruntime_npu import _C
from provider_models import CPU, NPU, add_model, make_model, npu_session, providers_of, run_python

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def scatter_model() -> bytes:
    """z = scatter(cache, indices, updates) + 0, npu:: without a body."""
    node = helper.make_node(
        "NPUScatterNdUpdate", ["cache", "indices", "updates"], ["z"], "scatter", domain="npu"
    )
    return make_model(
        [node],
        [
            ("cache", FLOAT, ["n", 4]),
            ("indices", INT64, ["m", 1]),
            ("updates", FLOAT, ["m", 4]),
        ],
        [("z", FLOAT, ["n", 4])],
    )


def scatter_feeds(row: int) -> dict[str, np.ndarray]:
    """Writes ones to a row of a cache with six rows."""
    return {
        "cache": np.zeros((6, 4), np.float32),
        "indices": np.array([[row]], np.int64),
        "updates": np.ones((1, 4), np.float32),
    }


def chain_model(shape: Sequence = ("n", "m"), length: int = 40) -> bytes:
    """Long enough for a run to be in flight when the host has launched all of it."""
    nodes, last = [], "x"
    for i in range(length):
        op = ("Add", "Mul", "Sub")[i % 3]
        nodes.append(helper.make_node(op, [last, "y"], [f"t{i}"], f"node{i}"))
        last = f"t{i}"
    return make_model(nodes, [("x", FLOAT, shape), ("y", FLOAT, shape)], [(last, FLOAT, shape)])


def chain(x: np.ndarray, y: np.ndarray, length: int = 40) -> np.ndarray:
    for i in range(length):
        x = (x + y, x * y, x - y)[i % 3]
    return x


@pytest.mark.parametrize("shape", [(1, 4), (3, 4), (257, 4), (0, 4)])
def test_dynamic_shapes(shape, rng):
    session = npu_session(add_model())
    for rows in (shape[0], 2, shape[0]):
        x = rng.standard_normal((rows, 4), dtype=np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x, "y": x})[0], (x + x) * x)


def test_static_shapes_with_and_without_memory_pattern(rng):
    x = rng.standard_normal((8, 4), dtype=np.float32)
    for enabled in (True, False):
        options = ort.SessionOptions()
        options.enable_mem_pattern = enabled
        session = npu_session(add_model(shape=[8, 4]), options)
        for _ in range(3):
            np.testing.assert_array_equal(session.run(None, {"x": x, "y": x})[0], (x + x) * x)


@pytest.mark.parametrize(
    ("shape", "runs"),
    [
        pytest.param(["n", "m"], 200, id="dynamic"),
        # ORT frees a run's pattern buffers, which have no stream, before it waits for the run.
        pytest.param([16, 16], 200, id="static"),
        pytest.param(["n", "m"], 20, id="parallel-executor"),
    ],
)
def test_many_threads_on_two_sessions_agree(rng, request, shape, runs):
    options = ort.SessionOptions()
    if "parallel" in request.node.callspec.id:
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = 2
    sessions = [npu_session(chain_model(shape), options) for _ in range(2)]
    y = rng.uniform(0.9, 1.1, (16, 16)).astype(np.float32)
    inputs = [rng.standard_normal((16, 16), dtype=np.float32) for _ in range(8)]
    expected = [chain(x, y) for x in inputs]

    def run(thread: int) -> int:
        wrong = 0
        for i in range(runs):
            which = (thread + i) % 8
            out = sessions[(thread + i) % 2].run(None, {"x": inputs[which], "y": y})[0]
            wrong += not np.allclose(out, expected[which], rtol=1e-5, atol=1e-6)
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(run, range(8))) == 0


def test_run_async(rng):
    session = npu_session(chain_model())
    x, y = (rng.standard_normal((8, 8), dtype=np.float32) for _ in range(2))
    results, errors, done = [], [], threading.Semaphore(0)

    def callback(outputs, _data, error):
        (errors if error else results).append(error or outputs[0])
        done.release()

    for _ in range(16):
        session.run_async(None, {"x": x, "y": y}, callback, None)
    for _ in range(16):
        assert done.acquire(timeout=900)
    assert not errors
    for result in results:
        np.testing.assert_allclose(result, chain(x, y), rtol=1e-5)


def test_binding_device_to_device(rng):
    session = npu_session(add_model())
    x, y = (rng.standard_normal((5, 4), dtype=np.float32) for _ in range(2))
    device_x = onnxruntime_npu.ortvalue_from_numpy(x)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", device_x)
    binding.bind_cpu_input("y", y)
    binding.bind_output("z", "npu", 0)
    for _ in range(3):
        session.run_with_iobinding(binding)
    (z,) = binding.get_outputs()
    assert z.device_name() == "npu"
    np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(z), (x + y) * y)
    binding.bind_ortvalue_input("x", z)
    binding.bind_output("z", "cpu")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), ((x + y) * y + y) * y)


def test_binding_by_address(rng):
    session = npu_session(add_model())
    x = rng.standard_normal((5, 4), dtype=np.float32)
    source = onnxruntime_npu.ortvalue_from_numpy(x)
    target = onnxruntime_npu.ortvalue_from_numpy(np.zeros_like(x))
    binding = session.io_binding()
    for name in ("x", "y"):
        binding.bind_input(name, "npu", 0, np.float32, x.shape, source.data_ptr())
    binding.bind_output("z", "npu", 0, np.float32, x.shape, target.data_ptr())
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(target), 2 * x * x)


def test_same_value_as_input_and_output_is_updated_in_place():
    session = npu_session(scatter_model())
    assert providers_of(session) == {"scatter": NPU}
    cache = onnxruntime_npu.ortvalue_from_numpy(np.zeros((6, 4), np.float32))
    binding = session.io_binding()
    binding.bind_ortvalue_input("cache", cache)
    binding.bind_ortvalue_output("z", cache)
    expected = np.zeros((6, 4), np.float32)
    for row in (4, 1):
        update = np.full((1, 4), row, np.float32)
        binding.bind_cpu_input("indices", np.array([[row]], np.int64))
        binding.bind_cpu_input("updates", update)
        session.run_with_iobinding(binding)
        expected[row] = update
        np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(cache), expected)
    assert binding.get_outputs()[0].data_ptr() == cache.data_ptr()


def test_graph_input_is_not_changed_by_an_in_place_operator():
    session = npu_session(scatter_model())
    cache = onnxruntime_npu.ortvalue_from_numpy(np.zeros((6, 4), np.float32))
    feeds = {
        "cache": cache,
        "indices": onnxruntime_npu.ortvalue_from_numpy(np.array([[2]], np.int64)),
        "updates": onnxruntime_npu.ortvalue_from_numpy(np.ones((1, 4), np.float32)),
    }
    (z,) = session.run_with_ort_values(None, feeds)
    assert onnxruntime_npu.ortvalue_to_numpy(z).sum() == 4
    assert onnxruntime_npu.ortvalue_to_numpy(cache).sum() == 0


def test_views_share_a_buffer_but_never_a_change(rng):
    """Neg may work in place, except on a view whose buffer is still read by other consumers."""
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["first"], "first"),
        helper.make_node("Reshape", ["x", "flat"], ["second"], "second"),
        helper.make_node("Neg", ["first"], ["negative"], "neg"),
        helper.make_node("Sub", ["second", "negative"], ["z"], "sub"),
    ]
    model = make_model(
        nodes, [("x", FLOAT, [4, 4])], [("z", FLOAT, [16])], {"flat": np.array([16], np.int64)}
    )
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = npu_session(model, options)
    assert set(providers_of(session).values()) == {NPU}
    x = rng.standard_normal((4, 4), dtype=np.float32)
    value = onnxruntime_npu.ortvalue_from_numpy(x)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_output("z", "npu", 0)
    for _ in range(2):
        session.run_with_iobinding(binding)
    (z,) = binding.get_outputs()
    np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(z), 2 * x.reshape(16))
    np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(value), x)


@pytest.mark.usefixtures("still_memory")
def test_values_outlive_the_session_and_memory_is_freed(rng):
    def in_use() -> int:
        return _C.memory_stats_as_nested_dict(0)["allocated_bytes"]["all"]["current"]

    before = in_use()
    session = npu_session(add_model())
    x = rng.standard_normal((100, 4), dtype=np.float32)
    value = onnxruntime_npu.ortvalue_from_numpy(x)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_input("y", value)
    binding.bind_output("z", "npu", 0)
    session.run_with_iobinding(binding)
    (z,) = binding.get_outputs()
    del session, binding
    gc.collect()
    np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(z), 2 * x * x)
    assert in_use() > before
    del z, value
    gc.collect()
    assert in_use() == before


def test_runs_without_device_synchronisation(rng):
    session = npu_session(chain_model())
    options = ort.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    y = rng.uniform(0.9, 1.1, (64, 64)).astype(np.float32)
    for _ in range(50):
        x = rng.standard_normal((64, 64), dtype=np.float32)
        value = onnxruntime_npu.ortvalue_from_numpy(x)
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", value)
        binding.bind_cpu_input("y", y)
        binding.bind_output("t39", "npu", 0)
        session.run_with_iobinding(binding, options)
        (out,) = binding.get_outputs()
        del value, binding
        np.testing.assert_allclose(
            onnxruntime_npu.ortvalue_to_numpy(out), chain(x, y), rtol=1e-5, atol=1e-6
        )


def test_failing_kernel_is_named_and_the_session_recovers():
    session = npu_session(scatter_model())
    good, bad = scatter_feeds(5), scatter_feeds(6)
    for _ in range(3):
        with pytest.raises(Exception, match=r"\[npu_scatter_nd_update\] expected indices in"):
            session.run(None, bad)
        assert session.run(None, good)[0].sum() == 4


def test_failing_run_does_not_affect_another_thread():
    session = npu_session(scatter_model())
    good, bad = scatter_feeds(5), scatter_feeds(6)

    def run(thread: int) -> int:
        unexpected = 0
        for _ in range(100):
            try:
                unexpected += session.run(None, bad if thread % 2 else good)[0].sum() != 4
                unexpected += thread % 2
            except Exception:
                unexpected += 1 - thread % 2
        return unexpected

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(run, range(4))) == 0


def test_failing_async_run_passes_its_error_to_the_callback():
    session = npu_session(scatter_model())
    feeds = scatter_feeds(6)
    errors, done = [], threading.Event()

    def callback(_outputs, _data, error):
        errors.append(error)
        done.set()

    session.run_async(None, feeds, callback, None)
    assert done.wait(30)
    assert "[npu_scatter_nd_update] expected indices in [0, 6) for axis 0, got 6" in errors[0]


def test_bound_output_of_the_wrong_shape_is_an_error():
    session = npu_session(add_model())
    value = onnxruntime_npu.ortvalue_from_numpy(np.ones((3, 4), np.float32))
    small = onnxruntime_npu.ortvalue_from_numpy(np.ones((2, 4), np.float32))
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_input("y", value)
    binding.bind_ortvalue_output("z", small)
    with pytest.raises(Exception, match=r"\[Mul\] output 0 of shape \[3, 4\].*'z' .*\{2,4\}"):
        session.run_with_iobinding(binding)


def test_failing_bound_run_is_reported_before_outputs_are_read():
    session = npu_session(scatter_model())
    binding = session.io_binding()
    binding.bind_cpu_input("cache", np.zeros((6, 4), np.float32))
    binding.bind_cpu_input("indices", np.array([[-1]], np.int64))
    binding.bind_cpu_input("updates", np.ones((1, 4), np.float32))
    binding.bind_output("z", "npu", 0)
    with pytest.raises(Exception, match=r"\[npu_scatter_nd_update\] expected indices"):
        session.run_with_iobinding(binding)


def test_mismatched_shapes_are_reported_with_the_operator():
    session = npu_session(add_model(shape=None))
    x, y = np.ones((2, 4), np.float32), np.ones((3, 4), np.float32)
    with pytest.raises(Exception, match=r"\[Add\] expected .*\[2, 4\].*\[3, 4\]"):
        session.run(None, {"x": x, "y": y})
    assert session.run(None, {"x": x, "y": x})[0].sum() == 16


def test_none_input_is_reported_by_name():
    session = npu_session(add_model())
    x = np.ones((2, 4), np.float32)
    with pytest.raises(Exception, match=r"\[Add\] expected a tensor as input 1 \('y'\), got none"):
        session.run(None, {"x": x, "y": None})
    assert session.run(None, {"x": x, "y": x})[0].sum() == 16


def test_out_of_memory_is_an_error_and_the_session_recovers():
    result = run_python(
        """
        import numpy as np, onnxruntime_npu
        from provider_models import add_model, npu_session
        session = npu_session(add_model())
        small = np.ones((1024, 4), np.float32)
        for _ in range(3):
            big = np.ones((1 << 20, 4), np.float32)
            try:
                session.run(None, {"x": big, "y": big})
            except Exception as error:
                text = str(error)
            else:
                raise SystemExit("expected an error")
            for said in ("Tried to allocate 16.00 MiB", "40.00 MiB total capacity",
                         "MiB already allocated", "MiB reserved in total"):
                assert said in text, text
            assert session.run(None, {"x": small, "y": small})[0].sum() == small.size * 2
        """,
        {"ORT_NPU_MEMORY_LIMIT": "40M"},
    )
    assert result.returncode == 0, result.stderr


def test_out_of_memory_for_an_input_is_an_error():
    result = run_python(
        """
        import numpy as np, onnxruntime_npu
        from provider_models import add_model, npu_session
        session = npu_session(add_model())
        big = np.ones((1 << 20, 4), np.float32)
        for make in (lambda: session.run(None, {"x": big, "y": big}),
                     lambda: onnxruntime_npu.ortvalue_from_numpy(big)):
            try:
                make()
            except Exception as error:
                text = str(error)
                told = "Tried to allocate 16.00 MiB" in text and "8.00 MiB total capacity" in text
                assert told or "Allocation failed" in text, text
            else:
                raise SystemExit("expected an error")
        """,
        {"ORT_NPU_MEMORY_LIMIT": "8M"},
    )
    assert result.returncode == 0, result.stderr


def test_missing_model_file_is_one_clear_line(capfd):
    with pytest.raises(Exception, match=r"no_such_model.onnx.* File doesn't exist") as raised:
        ort.InferenceSession("no_such_model.onnx", providers=[NPU])
    assert "\n" not in str(raised.value).strip()
    assert "Falling back" not in capfd.readouterr().out


def test_garbage_model_is_an_error():
    with pytest.raises(Exception, match=r"(?i)protobuf|model"):
        npu_session(b"no model at all")


def test_launch_blocking_does_not_change_results():
    result = run_python(
        """
        import numpy as np, onnxruntime_npu
        from provider_models import add_model, npu_session
        x = np.ones((3, 4), np.float32)
        assert (npu_session(add_model()).run(None, {"x": x, "y": x})[0] == 2).all()
        """,
        {"ORT_NPU_LAUNCH_BLOCKING": "1"},
    )
    assert result.returncode == 0, result.stderr


def test_weights_with_and_without_ort_device_allocator(rng):
    weight = rng.standard_normal((256, 256), dtype=np.float32)
    model = make_model(
        [helper.make_node("Add", ["x", "w"], ["z"], "add")],
        [("x", FLOAT, [256, 256])],
        [("z", FLOAT, [256, 256])],
        {"w": weight},
    )
    for reserve in ("0", "1"):
        options = ort.SessionOptions()
        options.add_session_config_entry("session.use_device_allocator_for_initializers", reserve)
        session = npu_session(model, options)
        x = rng.standard_normal((256, 256), dtype=np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + weight)
        assert session.get_providers() == [NPU, CPU]
