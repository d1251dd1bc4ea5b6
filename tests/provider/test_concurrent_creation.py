"""Sessions that are created at the same time: each has its own errors."""

from __future__ import annotations

import threading

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from provider_models import NPU

K, N, BLOCK = 256, 256, 32


def model(group: int) -> bytes:
    """y = x · w with 8 groups of rows; the device checks which group a row is in as it packs."""
    random = np.random.default_rng(0)
    groups = np.arange(K, dtype=np.int32) // BLOCK
    groups[7] = group
    constants = {
        "w": random.integers(0, 256, (N, K // BLOCK, BLOCK // 2), dtype=np.uint8),
        "s": random.random(N * K // BLOCK, dtype=np.float32),
        "g": groups,
    }
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s", "", "g"], ["y"], domain="com.microsoft", K=K, N=N, bits=4,
        block_size=BLOCK,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", K])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", N])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def test_a_session_that_cannot_be_created_does_not_fail_another():
    options = ort.SessionOptions()
    options.log_severity_level = 4
    wrong: list[str] = []

    def work(number: int) -> None:
        for n in range(8):
            group = 0 if number % 2 == 0 else 1000 * number + n
            try:
                ort.InferenceSession(model(group), options, providers=[NPU])
                told = ""
            except Exception as error:
                told = str(error)
            if (f"got {group} at 7" in told) if group else told == "":
                continue
            wrong.append(f"group {group}: {told!r}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
