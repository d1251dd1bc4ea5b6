"""The provider option host_memory: kernels work on values in host memory, in place."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper
from provider_models import (
    NPU,
    add_model,
    left_to_the_cpu,
    make_model,
    npu_session,
    providers_of,
    run_python,
)

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def host_session(model: bytes, options: Any = None, **settings: Any) -> ort.InferenceSession:
    return npu_session(model, options, host_memory="1", **settings)


def reshaping_model() -> bytes:
    """y = flat(relu(x w)) whose extents are computed, and z, their product: many host values."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "matmul"),
        helper.make_node("Relu", ["p"], ["r"], "relu"),
        helper.make_node("Shape", ["r"], ["s"], "shape"),
        helper.make_node("ReduceProd", ["s"], ["n"], "product", keepdims=1),
        helper.make_node("Reshape", ["r", "n"], ["y"], "reshape"),
        helper.make_node("Shape", ["y"], ["t"], "shape_again"),
        helper.make_node("Squeeze", ["t"], ["u"], "view"),
        helper.make_node("Add", ["u", "one"], ["z"], "add"),
    ]
    constants = {
        "w": np.sin(np.arange(8 * 16, dtype=np.float32)).reshape(8, 16),
        "one": np.array(1, np.int64),
    }
    outputs = [("y", FLOAT, ["n"]), ("z", INT64, [])]
    return make_model(nodes, [("x", FLOAT, ["rows", 8])], outputs, constants)


def update_model() -> bytes:
    """new_cache = cache with rows replaced, total = its sum."""
    nodes = [
        helper.make_node(
            "NPUScatterNdUpdate", ["cache", "rows", "new"], ["new_cache"], "write", domain="npu"
        ),
        helper.make_node("ReduceSum", ["new_cache"], ["total"], "read", keepdims=0),
    ]
    inputs = [("cache", FLOAT, ["n", 4]), ("rows", INT64, ["m", 1]), ("new", FLOAT, ["m", 4])]
    return make_model(nodes, inputs, [("new_cache", FLOAT, ["n", 4]), ("total", FLOAT, [])])


def update_inputs(rows: int = 100) -> dict[str, np.ndarray]:
    return {
        "cache": np.ones((rows, 4), np.float32),
        "rows": np.array([[3], [0]]),
        "new": np.full((2, 4), 5, np.float32),
    }


@pytest.mark.parametrize("rows", [1, 5, 0])
@pytest.mark.parametrize("reuse", [True, False], ids=["planned", "unplanned"])
def test_every_node_runs_on_the_npu_with_the_same_results(rows, reuse, rng):
    options = ort.SessionOptions()
    options.enable_mem_reuse = reuse
    x = rng.standard_normal((rows, 8), dtype=np.float32)
    session = host_session(reshaping_model(), options)
    assert set(providers_of(session).values()) == {NPU}
    for _ in range(3):
        y, z = session.run(None, {"x": x})
        expected, total = npu_session(reshaping_model()).run(None, {"x": x})
        np.testing.assert_array_equal(y, expected)
        assert z == total == rows * 16 + 1


def test_a_value_bound_as_input_and_output_is_updated_in_place():
    session, inputs = host_session(update_model()), update_inputs()
    cache = ort.OrtValue.ortvalue_from_numpy(inputs["cache"])
    content = inputs["cache"]  # of the same memory
    assert cache.data_ptr() == content.ctypes.data
    binding = session.io_binding()
    binding.bind_ortvalue_input("cache", cache)
    binding.bind_cpu_input("rows", inputs["rows"])
    binding.bind_cpu_input("new", inputs["new"])
    binding.bind_ortvalue_output("new_cache", cache)
    binding.bind_output("total", "cpu")
    session.run_with_iobinding(binding)
    expected = np.ones((100, 4), np.float32)
    expected[[0, 3]] = 5
    np.testing.assert_array_equal(content, expected)
    assert binding.get_outputs()[1].numpy() == expected.sum()


def test_an_input_that_is_not_bound_as_output_keeps_its_content():
    session, inputs = host_session(update_model()), update_inputs()
    updated, total = session.run(None, inputs)
    np.testing.assert_array_equal(inputs["cache"], 1)
    assert updated[3, 0] == 5 and total == updated.sum()


def test_nothing_is_copied_or_allocated_for_values_of_any_size():
    result = run_python(
        """
        import numpy as np, onnxruntime as ort
        from onnxruntime_npu import _C
        from provider_models import NPU
        from test_host_memory import host_session, update_inputs, update_model
        session = host_session(update_model())
        calls = []
        for rows in (10, 10, 1_000_000):
            inputs = update_inputs(rows)
            before = _C.backend_calls()
            updated, total = session.run(None, inputs)
            after = _C.backend_calls()
            assert total == updated.sum() == 4 * (rows + 8)
            calls.append({name: after[name] - before.get(name, 0) for name in after})
        assert calls[1]["Launch"] > 0
        for name in ("Copy", "CopyNow", "CopyInTask", "AllocDevice", "AllocPinned"):
            assert calls[2].get(name, 0) == 0, (name, calls)
        assert calls[1] == calls[2], calls
        """,
        {"ORT_NPU_FAULT_INJECTION": "1"},
    )
    assert result.returncode == 0, result.stderr


def test_a_device_that_does_not_reach_host_memory_works_on_copies():
    result = run_python(
        """
        import numpy as np
        from onnxruntime_npu import _C
        from test_host_memory import host_session, update_inputs, update_model
        _C.arm_fault("KernelsReachHostMemory", 1)
        session = host_session(update_model())
        assert _C.disarm_fault() == 1
        before = _C.backend_calls()
        updated, total = session.run(None, update_inputs())
        after = _C.backend_calls()
        copies = sum(after[name] - before.get(name, 0) for name in after if "Copy" in name)
        assert copies > 0 and total == updated.sum() == 4 * 108
        """,
        {"ORT_NPU_FAULT_INJECTION": "1"},
    )
    assert result.returncode == 0, result.stderr


def test_an_error_ends_the_run_and_the_session_goes_on():
    session, inputs = host_session(update_model()), update_inputs()
    for wrong in (100, -1, 2**40):
        with pytest.raises(Exception, match=r"\[npu_scatter_nd_update\] expected indices in \[0, "):
            session.run(None, {**inputs, "rows": np.array([[3], [wrong]])})
    np.testing.assert_array_equal(inputs["cache"], 1)
    assert session.run(None, inputs)[1] == 4 * 108


@pytest.mark.parametrize("parallel", [False, True], ids=["sequential", "parallel-executor"])
def test_many_threads_on_one_session_agree(parallel, rng):
    options = ort.SessionOptions()
    if parallel:
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = 2
    session = host_session(reshaping_model(), options)
    inputs = [rng.standard_normal((rows, 8), dtype=np.float32) for rows in range(1, 9)]
    expected = [session.run(None, {"x": x}) for x in inputs]

    def run(thread: int) -> None:
        for i in range(20):
            which = (thread + i) % len(inputs)
            for got, wanted in zip(session.run(None, {"x": inputs[which]}), expected[which],
                                   strict=True):  # fmt: skip
                np.testing.assert_array_equal(got, wanted)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))


def test_values_may_be_aligned_to_their_elements_only(tmp_path: Path, rng):
    """Weights are read in the mapped file: at any offset, like inputs that are slices."""
    x, w, gamma = (
        np.concatenate([[0], rng.standard_normal(n)]).astype(np.float32)[1:]
        for n in (5 * 48, 48 * 32, 32)
    )
    assert x.ctypes.data % 64 == 4 or x.ctypes.data % 16 == 4
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("NPURmsNorm", ["p", "gamma"], ["y"], domain="npu"),
        helper.make_node("Softmax", ["y"], ["z"]),
    ]
    model = onnx.load_from_string(
        make_model(nodes, [("x", FLOAT, ["n", 48])], [("z", FLOAT, ["n", 32])])
    )
    (tmp_path / "weights").write_bytes(bytes(4) + w.tobytes() + bytes(8) + gamma.tobytes())
    offset = 4
    for name, data, shape in (("w", w, [48, 32]), ("gamma", gamma, [32])):
        tensor = model.graph.initializer.add(name=name, data_type=FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        where = {"location": "weights", "offset": str(offset), "length": str(data.nbytes)}
        for key, value in where.items():
            tensor.external_data.add(key=key, value=value)
        offset += data.nbytes + 8
    onnx.save(model, tmp_path / "model.onnx")
    given = {"x": x.reshape(5, 48)}
    got, expected = (
        ort.InferenceSession(
            tmp_path / "model.onnx", providers=[(NPU, {"host_memory": value})]
        ).run(None, given)[0]
        for value in ("1", "0")
    )
    np.testing.assert_array_equal(got, expected)


def test_inputs_of_any_number(rng):
    """Of a list, 64 inputs are declared in host memory; onnxruntime copies the others."""
    count = 70
    names = [f"x{i}" for i in range(count)]
    nodes = [
        helper.make_node("Concat", names, ["all"], "join", axis=0),
        helper.make_node("Relu", ["all"], ["y"], "relu"),
    ]
    inputs = [(name, FLOAT, ["n"]) for name in names]
    session = host_session(make_model(nodes, inputs, [("y", FLOAT, ["m"])]))
    values = {name: rng.standard_normal(3).astype(np.float32) for name in names}
    (y,) = session.run(None, values)
    np.testing.assert_array_equal(y, np.maximum(np.concatenate(list(values.values())), 0))


def test_a_node_without_a_kernel_is_an_error_that_names_it():
    nodes = [
        helper.make_node("Add", ["x", "x"], ["s"], "add"),
        left_to_the_cpu("s", "y"),
    ]
    model = make_model(nodes, [("x", FLOAT, [3, 3])], [("y", FLOAT, [3, 3])])
    assert NPU in npu_session(model).get_providers()
    with pytest.raises(Exception, match=r"host_memory expected .* as a whole .*Normalizer 'left'"):
        host_session(model)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host_memory": "yes"}, r"'host_memory' expected 0, 1; got 'yes'"),
        (
            {"host_memory": "1", "enable_npu_graph": "1"},
            r"'host_memory' expected a session without enable_npu_graph",
        ),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(Exception, match=message):
        npu_session(add_model(), **settings)


def test_a_run_follows_the_callers_stream_and_is_done_when_it_returns():
    torch = pytest.importorskip("torch")
    from onnxruntime_npu import torch_device

    torch_device.register()
    session = host_session(add_model())
    gate, stream = torch.npu.ExternalEvent(), torch.npu.Stream()
    source = torch.full((3, 4), 2.0)
    host = torch.zeros(3, 4).pin_memory()
    with torch.npu.stream(stream):
        device = source.to("npu")
        stream.synchronize()
        gate.wait(stream)
        host.copy_(device, non_blocking=True)
        with ThreadPoolExecutor(1) as other:
            other.submit(gate.record, torch.npu.default_stream())
            options = ort.RunOptions()
            options.add_run_config_entry("disable_synchronize_execution_providers", "1")
            feed = {"x": host.numpy(), "y": host.numpy()}
            (z,) = session.run(None, feed, options)
    np.testing.assert_array_equal(z, (2 + 2) * 2)
    assert onnxruntime_npu.get_ep_name() in session.get_providers()
