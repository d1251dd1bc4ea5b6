#!/usr/bin/env python3
"""Creation time of a session on a model's file and on its compiled model (ep.context_enable).

The model is a stack of feed-forward blocks of float32 with its weights in a file beside it. The
files are in the page cache: what is timed is what an engine does with them until a session can run.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np
import peers

BLOCKS, WIDTH, HIDDEN = 8, 1024, 4096  # 268 MB
TOLERANCE = 1e-4  # relative norm: sums of 4096 products in another order, eight times
PLAIN, COMPILED = "model.onnx", "compiled.onnx"


def write(folder: Path) -> None:
    """The model, and what the provider makes of it."""
    import onnx
    import onnxruntime as ort
    import onnxruntime_npu  # noqa: F401  (registers the provider)
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(1)
    nodes, weights = [], []
    for i in range(BLOCKS):
        for name, shape in ((f"up{i}", (WIDTH, HIDDEN)), (f"down{i}", (HIDDEN, WIDTH))):
            weight = random.standard_normal(shape, dtype=np.float32) / np.float32(shape[0] ** 0.5)
            weights.append(numpy_helper.from_array(weight, name))
        nodes += [
            helper.make_node("MatMul", [f"x{i}", f"up{i}"], [f"h{i}"]),
            helper.make_node("Relu", [f"h{i}"], [f"r{i}"]),
            helper.make_node("MatMul", [f"r{i}", f"down{i}"], [f"x{i + 1}"]),
        ]
    value = functools.partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)
    graph = helper.make_graph(
        nodes, "blocks", [value("x0", shape=[1, WIDTH])], [value(f"x{BLOCKS}", shape=None)], weights
    )
    opsets = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.save(model, folder / PLAIN, save_as_external_data=True, location="weights.bin")
    options = ort.SessionOptions()
    for key, setting in {
        "ep.context_enable": "1",
        "ep.context_file_path": str(folder / COMPILED),
        "ep.context_model_external_initializers_file_name": "compiled_weights.bin",
    }.items():
        options.add_session_config_entry(key, setting)
    ort.InferenceSession(str(folder / PLAIN), options, providers=["NPUExecutionProvider"])


def _input() -> np.ndarray:
    return np.random.default_rng(2).standard_normal((1, WIDTH), dtype=np.float32)


class SessionMaker:
    """What a session is created with."""

    make: Callable[[], Any]

    def create(self) -> float:
        start = time.perf_counter()
        session = self.make()
        seconds = time.perf_counter() - start
        del session
        return seconds


class Onnxruntime(SessionMaker):
    """Sessions of onnxruntime on one provider."""

    def __init__(self, provider: str, file: str, threads: int) -> None:
        import onnxruntime as ort

        if provider.startswith("NPU"):
            import onnxruntime_npu  # noqa: F401  (registers the provider)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        self.make = functools.partial(ort.InferenceSession, file, options, providers=[provider])

    def result(self) -> np.ndarray:
        return self.make().run(None, {"x0": _input()})[0]


class OpenVino(SessionMaker):
    """Compiled models of OpenVINO."""

    def __init__(self, file: str, threads: int) -> None:
        import openvino

        core = openvino.Core()
        core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads})
        precision = {"INFERENCE_PRECISION_HINT": "f32"}
        self.make = functools.partial(core.compile_model, file, "CPU", precision)

    def result(self) -> np.ndarray:
        return np.asarray(self.make()([_input()])[0])


def main() -> None:
    parser = harness.arguments_parser(__doc__ or "", ["float32"], rounds=7)
    arguments = harness.parse_arguments(parser)
    folder = arguments.out / "creation"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write(folder)
    plain, compiled = str(folder / PLAIN), str(folder / COMPILED)
    session = functools.partial(Onnxruntime, threads=arguments.threads)
    specs = {
        "npu": harness.Spec(functools.partial(session, "NPUExecutionProvider", plain), ours=True),
        "npu compiled": harness.Spec(
            functools.partial(session, "NPUExecutionProvider", compiled), ours=True
        ),
        "ort": harness.Spec(functools.partial(session, "CPUExecutionProvider", plain)),
        "openvino": harness.Spec(
            functools.partial(OpenVino, plain, arguments.threads),
            python=peers.Peers(harness.FOLDER, ["openvino"]).python,
        ),
    }
    missing: dict[str, str] = {}
    check = functools.partial(
        harness.compare, method="result", calls=itertools.repeat((), 1), tolerance=TOLERANCE
    )
    cases = [harness.Case("create a session", 1, "sessions", "create", ())]
    harness.measure(arguments, "creation-float32", specs, cases, check, missing)
    for name, why in missing.items():
        print(f"{name} is not measured: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
