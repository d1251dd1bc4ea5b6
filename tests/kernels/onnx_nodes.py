"""One-node models: build, run on a provider, and check where the node ran."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_npu
from onnx import helper

NPU = "NPUExecutionProvider"
CPU = "CPUExecutionProvider"
IR_VERSION = 10  # loaded by every onnxruntime of recent years
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

FLOATS = ["float32", "float16", "bfloat16", "float64"]
SIGNED_INTS = ["int8", "int16", "int32", "int64"]
INTS = [*SIGNED_INTS, "uint8", "uint16", "uint32", "uint64"]
FIXED_WIDTH = [*FLOATS, *INTS, "bool"]


def dtype_of(name: str) -> np.dtype:
    """The NumPy dtype of an element type's name, bfloat16 included."""
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def random(rng: np.random.Generator, dtype: str, *shape: int, low: float = -4, high: float = 4):
    """Uniform values in [low, high), whole ones for integers and coin tosses for bool."""
    kind = dtype_of(dtype)
    if kind == np.bool_:
        return rng.random(shape) < 0.5
    if kind.kind == "u":
        low = max(low, 0)
    if kind.kind in "iu":
        return rng.integers(int(low), int(high), shape).astype(kind)
    return rng.uniform(low, high, shape).astype(kind)


def make_model(
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    outputs: Sequence[str] | int = 1,
    *,
    opset: int = 21,
    constant: Sequence[int] = (),
    any_rank: bool = False,
    domain: str = "",
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node.

    Args:
        op_type: the ONNX operator.
        inputs: example arrays, whose dtypes and ranks the graph inputs take; None: omitted.
        outputs: how many outputs, or their names ("" is an unused output).
        opset: of the default domain.
        constant: positions of the inputs that are initializers.
        any_rank: leave the ranks of the graph inputs open, so that one session takes all shapes.
        domain: of the node's operator, in its first version unless it is ONNX's own.
        attributes: of the node.
    """
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(inputs)]
    if isinstance(outputs, int):
        outputs = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, names, list(outputs), name="node", domain=domain, **attributes)
    graph_inputs, initializers = [], []
    for i, array in enumerate(inputs):
        if array is None:
            continue
        if i in constant:
            initializers.append(onnx.numpy_helper.from_array(array, names[i]))
        else:
            element = helper.np_dtype_to_tensor_dtype(array.dtype)
            shape = None if any_rank else [f"d{i}_{k}" for k in range(array.ndim)]
            graph_inputs.append(helper.make_tensor_value_info(names[i], element, shape))
    graph_outputs = [onnx.ValueInfoProto(name=name) for name in outputs if name]
    graph = helper.make_graph([node], op_type, graph_inputs, graph_outputs, initializers)
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    return onnx.shape_inference.infer_shapes(model)


def make_session(model: onnx.ModelProto | bytes, provider: str = NPU) -> ort.InferenceSession:
    """A session on one provider that logs only errors."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    serialized = model if isinstance(model, bytes) else model.SerializeToString()
    return ort.InferenceSession(serialized, options, providers=[provider])


def run_in_place(
    session: ort.InferenceSession, given: Sequence[np.ndarray | None], **written: str
) -> tuple[np.ndarray, dict[str, ort.OrtValue]]:
    """Runs with outputs bound to inputs, as `y1="x3"`; returns y0, and the inputs after the run."""
    binding = session.io_binding()
    values = {
        f"x{i}": ort.OrtValue.ortvalue_from_numpy(a) for i, a in enumerate(given) if a is not None
    }
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y0")
    for output, name in written.items():
        binding.bind_ortvalue_output(output, values[name])
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()[0], values


def run_session(session: ort.InferenceSession, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Runs with arrays of any dtype, those of ml_dtypes included."""
    values = {}
    for name, array in feeds.items():
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        if array.dtype.name in ml_dtypes.__dict__:
            bits = np.asarray(array, order="C").view(f"u{array.itemsize}")
            values[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, element)
        else:
            values[name] = ort.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))
    results = session.run_with_ort_values(None, values)
    return [numpy_of(value) for value in results]


def numpy_of(value: ort.OrtValue) -> np.ndarray:
    """The array of a host OrtValue; of a type of ml_dtypes if onnxruntime's numpy() lacks it."""
    kinds = {"bfloat16": BFLOAT16, "float8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn)}
    kind = kinds.get(value.data_type().removeprefix("tensor(").removesuffix(")"))
    if kind is None:
        return value.numpy()
    size = value.tensor_size_in_bytes()
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(data, kind).reshape(value.shape()).copy()


def npu_nodes(session: ort.InferenceSession) -> list[str]:
    """The operator types that ran on the NPU."""
    return [n["op_type"] for n in onnxruntime_npu.assignment(session) if n["provider"] == NPU]


class Node:
    """One node on one provider, for inputs of any shape; on the NPU it checks that it ran there.

    Takes `make_model`'s arguments; of the example inputs only dtype and presence matter.
    """

    def __init__(
        self, op_type: str, examples: Sequence[np.ndarray | None], outputs=1, provider=NPU, **kwargs
    ) -> None:
        self.op_type = op_type
        self.constant = kwargs.get("constant", ())
        model = make_model(op_type, examples, outputs, any_rank=True, **kwargs)
        self.session = make_session(model, provider)
        if provider == NPU:
            assert npu_nodes(self.session) == [op_type], onnxruntime_npu.assignment(self.session)

    def __call__(self, *inputs: np.ndarray | None) -> list[np.ndarray]:
        return run_session(self.session, feeds_of(inputs, self.constant))


def run_npu(op_type: str, inputs: Sequence[np.ndarray | None], outputs=1, **kwargs: Any):
    """Runs one node on the NPU and returns its outputs; fails if it was left to the CPU."""
    return Node(op_type, inputs, outputs, **kwargs)(*inputs)


def run_cpu(op_type: str, inputs: Sequence[np.ndarray | None], outputs=1, **kwargs: Any):
    """Runs one node on onnxruntime's own CPU provider."""
    return Node(op_type, inputs, outputs, CPU, **kwargs)(*inputs)


def feeds_of(inputs: Sequence[np.ndarray | None], constant: Sequence[int]) -> dict[str, np.ndarray]:
    """The feeds of a model made by `make_model`."""
    return {f"x{i}": a for i, a in enumerate(inputs) if a is not None and i not in constant}


# One rounding of a result computed in float32, and a few ulp for float32 functions.
RTOL = {"float64": 1e-14, "float32": 2.0**-21, "float16": 2.0**-10, "bfloat16": 2.0**-7}
# Half the smallest denormal: smaller results round to either neighbour.
ATOL = {"float64": 0, "float32": 1e-37, "float16": 2.0**-24, "bfloat16": 1e-37}


def assert_close(got: np.ndarray, expected: np.ndarray, dtype: str, factor: float = 1) -> None:
    """Same dtype and shape, equal up to `factor` times the tolerance; integers exactly."""
    assert got.dtype == dtype_of(dtype)
    assert got.shape == np.shape(expected)
    if dtype not in RTOL:
        np.testing.assert_array_equal(got, expected)
        return
    with np.errstate(over="ignore"):
        rounded = np.asarray(expected).astype(dtype_of(dtype)).astype(np.float64)
    np.testing.assert_allclose(
        got.astype(np.float64), rounded, rtol=factor * RTOL[dtype], atol=factor * ATOL[dtype]
    )
