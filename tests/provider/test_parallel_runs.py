"""Concurrent runs of a session in parallel mode, whose kernels onnxruntime's own threads call.

These threads do not know which run they work for: docs/decisions/0013.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper
from provider_models import make_model, npu_session

ROWS, COLUMNS, TABLE = 32, 16, np.arange(512, dtype=np.float32).reshape(32, 16) / 512


def parallel_session(**settings: str) -> ort.InferenceSession:
    """y = tanh(table[i]) * 2, three kernels of which the first checks the index."""
    options = ort.SessionOptions()
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads = 3
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["rows"]),
        helper.make_node("Tanh", ["rows"], ["t"]),
        helper.make_node("Add", ["t", "t"], ["y"]),
    ]
    model = make_model(
        nodes,
        [("table", TensorProto.FLOAT, [ROWS, COLUMNS]), ("i", TensorProto.INT64, [4])],
        [("y", TensorProto.FLOAT, [4, COLUMNS])],
    )
    return npu_session(model, options, **settings)


def synchronised(session: ort.InferenceSession, indices: np.ndarray) -> np.ndarray:
    return session.run(None, {"table": TABLE, "i": indices})[0]


def unsynchronised(session: ort.InferenceSession, indices: np.ndarray) -> np.ndarray:
    binding = session.io_binding()
    for name, value in (("table", TABLE), ("i", indices)):
        binding.bind_ortvalue_input(name, onnxruntime_npu.ortvalue_from_numpy(value))
    binding.bind_output("y", "npu", 0)
    options = ort.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    try:
        session.run_with_iobinding(binding, options)
    finally:
        binding.synchronize_outputs()  # an error of the run is not left to the next one
    return onnxruntime_npu.ortvalue_to_numpy(binding.get_outputs()[0])


@pytest.mark.parametrize(
    ("run", "settings"),
    [(synchronised, {}), (synchronised, {"host_memory": "1"}), (unsynchronised, {})],
    ids=["synchronised", "host_memory", "unsynchronised"],
)
def test_each_run_has_its_own_values_and_errors(
    run: Callable[[ort.InferenceSession, np.ndarray], np.ndarray], settings: dict[str, str]
):
    session = parallel_session(**settings)
    numbers = itertools.count(1000)  # every bad index is unique
    wrong: list[str] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(30):
            indices = random.integers(0, ROWS, 4)
            bad = next(numbers) if random.random() < 0.4 else None
            if bad is not None:
                indices[random.integers(4)] = bad
            try:
                y = run(session, indices)
            except Exception as error:
                if bad is None or f"got {bad} " not in str(error):
                    wrong.append(f"index {bad}: {error}")
                continue
            if bad is not None:
                wrong.append(f"index {bad}: a value")
            elif not np.allclose(y, 2 * np.tanh(TABLE[indices]), rtol=1e-5, atol=1e-6):
                wrong.append("another run's value")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
