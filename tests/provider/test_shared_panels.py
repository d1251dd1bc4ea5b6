"""Sessions of one model share their packed weights, and nothing else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper
from provider_models import make_model, npu_session, run_python

SIDE = 384
WEIGHT = np.random.default_rng(5).standard_normal((SIDE, SIDE), np.float32)


def product(weight: np.ndarray) -> bytes:
    """y = x @ weight."""
    return make_model(
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        [("x", TensorProto.FLOAT, ["n", SIDE])],
        [("y", TensorProto.FLOAT, ["n", weight.shape[1]])],
        {"weight": weight},
    )


def check(session: ort.InferenceSession, weight: np.ndarray) -> None:
    x = np.random.default_rng(6).standard_normal((5, SIDE), np.float32)
    (y,) = session.run(None, {"x": x})
    # Sums of SIDE products of normal numbers.
    np.testing.assert_allclose(y, x.astype(np.float64) @ weight, rtol=0, atol=1e-4)


def allocated() -> int:
    return onnxruntime_npu.npu.memory_allocated()


def test_second_session_of_a_model_adds_no_weights() -> None:
    before = allocated()
    first = npu_session(product(WEIGHT))
    with_one = allocated()
    assert with_one - before >= WEIGHT.nbytes
    second = npu_session(product(WEIGHT))
    assert allocated() == with_one
    del first
    assert allocated() == with_one
    check(second, WEIGHT)
    del second
    assert allocated() == before


@pytest.mark.parametrize("place", [0, SIDE * SIDE // 2, SIDE * SIDE - 1])
def test_weights_that_differ_in_one_element_are_not_shared(place: int) -> None:
    other = WEIGHT.copy()
    other.flat[place] += 64
    first = npu_session(product(WEIGHT))
    with_one = allocated()
    second = npu_session(product(other))
    assert allocated() - with_one >= WEIGHT.nbytes
    check(second, other)
    check(first, WEIGHT)


def test_weights_of_another_shape_with_the_same_bytes_are_right() -> None:
    sessions = [npu_session(product(np.zeros((SIDE, columns), np.float32))) for columns in (64, 48)]
    sessions.append(npu_session(product(WEIGHT[:, :48])))
    for session, weight in zip(
        sessions, [np.zeros((SIDE, 64)), np.zeros((SIDE, 48)), WEIGHT[:, :48]], strict=True
    ):
        check(session, weight)


def test_sessions_made_and_ended_by_threads() -> None:
    before = allocated()

    def use(seed: int) -> None:
        for turn in range(6):
            weight = WEIGHT + np.float32((seed + turn) % 2)
            check(npu_session(product(weight)), weight)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(4)))
    assert allocated() == before


def test_resident_memory_of_a_second_session(tmp_path: Path) -> None:
    side = 1024
    weight = np.arange(side * side, dtype=np.float32).reshape(side, side)
    model = make_model(
        [helper.make_node("MatMul", ["x", f"weight{i}"], [f"y{i}"]) for i in range(8)],
        [("x", TensorProto.FLOAT, ["n", side])],
        [(f"y{i}", TensorProto.FLOAT, ["n", side]) for i in range(8)],
        {f"weight{i}": weight + i for i in range(8)},
    )
    path = tmp_path / "model.onnx"
    onnx.save(onnx.load_from_string(model), path, save_as_external_data=True, location="weights")
    done = run_python(f"""
        from pathlib import Path
        import onnxruntime_npu
        from provider_models import NPU, ort

        def resident():
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

        first = ort.InferenceSession({str(path)!r}, providers=[NPU])
        onnxruntime_npu.npu.empty_cache()
        before = resident()
        second = ort.InferenceSession({str(path)!r}, providers=[NPU])
        onnxruntime_npu.npu.empty_cache()
        print(resident() - before)
    """)
    assert done.returncode == 0, done.stderr
    # A quarter of the weights: onnxruntime's heap for the graph.
    assert int(done.stdout) < 8 * weight.nbytes // 4
