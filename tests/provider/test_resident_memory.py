"""Memory that a session holds besides its weights, and its peak during load."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper
from onnxruntime_npu import ortvalue_from_numpy, ortvalue_to_numpy
from onnxruntime_npu.session.ortvalue import ortvalues_in_one_block
from provider_models import make_model, npu_session, run_python

MIB = 1 << 20
FLOAT, BFLOAT16, INT8 = TensorProto.FLOAT, TensorProto.BFLOAT16, TensorProto.INT8


def look_up_model(table: np.ndarray) -> onnx.ModelProto:
    """y = table[ids]."""
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"])]
    inputs = [("ids", TensorProto.INT64, ["n"])]
    outputs = [("y", TensorProto.INT32, ["n", table.shape[1]])]
    return onnx.load_from_string(make_model(nodes, inputs, outputs, {"table": table}))


def peak_of_load(model: onnx.ModelProto, folder: Path, run: str) -> list[int]:
    """Save a model with its weights beside it and load it in a process of its own.

    Returns by how many bytes resident memory grew at most, and what the expression ``run`` gives.
    """
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights")
    done = run_python(f"""
        from pathlib import Path
        import numpy as np
        import onnxruntime_npu
        from provider_models import NPU, ort

        def status(field):
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

        onnxruntime_npu.ortvalue_from_numpy(np.zeros(1))
        Path("/proc/self/clear_refs").write_text("5")
        before = status("VmRSS")
        session = ort.InferenceSession({str(path)!r}, providers=[NPU])
        print(status("VmHWM") - before)
        print(*{run})
    """)
    assert done.returncode == 0, done.stderr
    return list(map(int, done.stdout.split()))


# 16 MiB of the file at a time, and below 16 MiB of code and onnxruntime's heap, more if the system
# gives that pages of 2 MiB; a second copy would be 96.
BESIDE = 48 * MIB


def test_external_weight_is_resident_once_during_load(tmp_path: Path) -> None:
    size = 96 * MIB
    table = np.arange(size // 4, dtype=np.int32).reshape(-1, 1024)
    run = f'session.run(None, {{"ids": np.array([0, 9, {len(table) - 1}])}})[0][:, 5]'
    growth, *values = peak_of_load(look_up_model(table), tmp_path, run)
    assert values == [5, 9 * 1024 + 5, len(table) * 1024 - 1019]
    assert size <= growth < size + BESIDE


def test_large_weight_is_packed_before_others_are_loaded(tmp_path: Path) -> None:
    """The original is not beside its panels and the other weights."""
    size = 96 * MIB
    table = np.arange(size // 4, dtype=np.int32).reshape(-1, 1024)
    weight = np.arange(size // 4, dtype=np.float32).reshape(1024, -1)
    model = look_up_model(table)
    model.graph.node.append(helper.make_node("MatMul", ["x", "weight"], ["product"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    model.graph.input.append(helper.make_tensor_value_info("x", FLOAT, ["m", 1024]))
    model.graph.output.append(helper.make_tensor_value_info("product", FLOAT, ["m", None]))
    inputs = '{"ids": np.array([9]), "x": np.eye(1, 1024, 2, "f")}'
    run = f"[int(result[0, 5]) for result in session.run(None, {inputs})]"
    growth, *values = peak_of_load(model, tmp_path, run)
    assert values == [9 * 1024 + 5, 2 * weight.shape[1] + 5]
    assert 2 * size <= growth < 2 * size + BESIDE


def test_memory_freed_by_packing_is_reused_by_runs() -> None:
    side = 1920
    rng = np.random.default_rng(7)
    weight = rng.standard_normal((side, side), np.float32)  # 14 MiB, and as much packed
    model = make_model(
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        [("x", FLOAT, ["n", side])],
        [("y", FLOAT, ["n", side])],
        {"weight": weight},
    )
    onnxruntime_npu.npu.empty_cache()
    session = npu_session(model)
    before = onnxruntime_npu.npu.memory_reserved()
    x = rng.standard_normal((512, side), np.float32)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ortvalue_from_numpy(x))
    binding.bind_output("y", "npu", 0)
    session.run_with_iobinding(binding)
    y = ortvalue_to_numpy(binding.get_outputs()[0])
    assert onnxruntime_npu.npu.memory_reserved() == before
    np.testing.assert_allclose(y, x @ weight, rtol=0, atol=2e-3)  # sums of 1920 products


@pytest.mark.parametrize("length", [1, 1000, 3 * MIB])
def test_values_in_one_block_are_disjoint_and_share_its_lifetime(length: int) -> None:
    before = onnxruntime_npu.npu.memory_allocated()
    values = ortvalues_in_one_block([[2, length], [1], [length]], [BFLOAT16, INT8, BFLOAT16])
    assert [v.shape() for v in values] == [[2, length], [1], [length]]
    assert [v.element_type() for v in values] == [BFLOAT16, INT8, BFLOAT16]
    assert all(v.device_name() == "npu" for v in values)
    starts = [v.data_ptr() for v in values]
    assert all(start % 512 == 0 for start in starts)
    ends = [s + v.tensor_size_in_bytes() for s, v in zip(starts, values, strict=True)]
    assert starts[1] >= ends[0] and starts[2] >= ends[1]
    taken = onnxruntime_npu.npu.memory_allocated() - before
    assert ends[2] - starts[0] <= taken < ends[2] - starts[0] + 2 * MIB
    del values[0], values[0]
    assert onnxruntime_npu.npu.memory_allocated() - before == taken
    values.clear()
    assert onnxruntime_npu.npu.memory_allocated() == before
