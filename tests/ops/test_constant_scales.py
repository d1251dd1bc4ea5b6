"""Constant scales and offsets of groups, which sessions pack: the product of those that are fed."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnxruntime_npu.session.ortvalue import ortvalue_from_numpy, ortvalue_to_numpy

K, N, GROUP = 96, 72, 40  # a last panel, and a last group, that is not whole
TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def _product(
    tensors: dict[str, np.ndarray], constants: tuple[str, ...], precise: int
) -> np.ndarray:
    """Return x @ ((w + offset) * scale), with some of the tensors as constants of the model."""
    element = helper.np_dtype_to_tensor_dtype(tensors["x"].dtype)
    fed = {name: tensor for name, tensor in tensors.items() if name not in constants}
    node = helper.make_node(
        "NPUWeightQuantBatchMatmulV2", list(tensors), ["y"], domain="npu",
        antiquant_group_size=GROUP, inner_precise=precise,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "scales",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(tensor.dtype), tensor.shape
            )
            for name, tensor in fed.items()
        ],
        [helper.make_tensor_value_info("y", element, None)],
        [numpy_helper.from_array(tensors[name], name) for name in constants],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("npu", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["NPUExecutionProvider"])
    (y,) = session.run_with_ort_values(["y"], {n: ortvalue_from_numpy(t) for n, t in fed.items()})
    return ortvalue_to_numpy(y)


@pytest.mark.parametrize("precise", [0, 1])
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("dtype", TYPES)
def test_constants_give_the_product_of_inputs(dtype: str, rows: int, precise: int) -> None:
    numbers = np.random.default_rng(7)
    groups = -(-K // GROUP)
    tensors = {
        "x": numbers.standard_normal((rows, K)),
        "w": numbers.integers(-8, 8, (K, N)),
        "scale": numbers.uniform(0.01, 0.02, (groups, N)),
        "offset": numbers.standard_normal((groups, N)),
    }
    tensors = {n: t.astype(np.int8 if n == "w" else TYPES[dtype]) for n, t in tensors.items()}
    fed = _product(tensors, (), precise)
    group = np.arange(K) // GROUP
    weight = tensors["w"] + tensors["offset"].astype(np.float64)[group]
    exact = tensors["x"].astype(np.float64) @ (weight * tensors["scale"].astype(np.float64)[group])
    # Weights and results are rounded to dtype, or x to int8.
    assert np.abs(fed - exact).max() < 0.02 * np.abs(exact).max()
    for count in (1, 2, 3):
        for constants in itertools.combinations(("w", "scale", "offset"), count):
            actual = _product(tensors, constants, precise)
            np.testing.assert_array_equal(actual.view(np.uint16), fed.view(np.uint16), constants)
