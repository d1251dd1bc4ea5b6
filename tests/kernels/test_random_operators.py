"""Random operators and Dropout: distributions, seeds, types, shapes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_nodes import FLOATS, Node, dtype_of, make_session, npu_nodes, run_npu

SEVERAL = 40_000  # elements; bounds below are five standard deviations of their statistics
TYPE = {
    name: helper.np_dtype_to_tensor_dtype(dtype_of(name)) for name in [*FLOATS, "int32", "bool"]
}


def draw(op: str, shape, opset=22, **attributes) -> np.ndarray:
    """The output of an operator without inputs."""
    node = helper.make_node(op, [], ["y"], shape=shape, **attributes)
    element = attributes.get("dtype", TensorProto.FLOAT)
    graph = helper.make_graph(
        [node], "g", [], [helper.make_tensor_value_info("y", element, list(shape))]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    session = make_session(model)
    assert npu_nodes(session) == [op]
    return session.run(None, {})[0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_distributions(dtype) -> None:
    uniform = draw("RandomUniform", (200, 200), dtype=TYPE[dtype], low=-2.0, high=6.0)
    assert uniform.dtype == dtype and uniform.shape == (200, 200)
    wide = uniform.astype(np.float64)
    assert wide.min() >= -2 and wide.max() <= 6
    assert abs(wide.mean() - 2) < 5 * (8 / 12**0.5) / SEVERAL**0.5
    assert abs(wide.var() - 64 / 12) < 0.2
    normal = draw("RandomNormal", (200, 200), dtype=TYPE[dtype], mean=3.0, scale=0.5)
    wide = normal.astype(np.float64)
    assert abs(wide.mean() - 3) < 5 * 0.5 / SEVERAL**0.5
    assert abs(wide.std() - 0.5) < 5 * 0.5 / (2 * SEVERAL) ** 0.5
    assert draw("RandomNormal", (0, 3)).shape == (0, 3)


@pytest.mark.parametrize("op", ["RandomUniform", "RandomNormal"])
def test_seeds(op) -> None:
    assert not np.array_equal(draw(op, [50]), draw(op, [50]))
    np.testing.assert_array_equal(draw(op, [50], seed=7.0), draw(op, [50], seed=7.0))
    assert not np.array_equal(draw(op, [50], seed=7.0), draw(op, [50], seed=8.0))
    x = np.zeros(50, np.float32)
    first, second = (Node(op + "Like", [x], opset=22, seed=7.0) for _ in range(2))
    runs = [first(x)[0] for _ in range(3)]
    for run in runs:  # each run goes on in the sequence of its session
        np.testing.assert_array_equal(second(x)[0], run)
    assert not np.array_equal(runs[0], runs[1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_like_an_input(dtype) -> None:
    like = np.ones((3, 5), np.int32)
    got = run_npu("RandomUniformLike", [like], opset=22, dtype=TYPE[dtype])[0]
    assert got.dtype == dtype_of(dtype) and got.shape == (3, 5)
    assert got.astype(np.float64).min() >= 0 and got.astype(np.float64).max() <= 1


@pytest.mark.parametrize("out", ["float32", "bool", "int32", "float64"])
def test_bernoulli(out) -> None:
    p = np.repeat(np.array([0, 0.25, 1], np.float32), SEVERAL)
    got = run_npu("Bernoulli", [p], opset=22, dtype=TYPE[out])[0]
    assert got.dtype == dtype_of(out)
    shares = got.reshape(3, SEVERAL).astype(np.float64).mean(axis=1)
    assert shares[0] == 0 and shares[2] == 1 and abs(shares[1] - 0.25) < 5 * 0.44 / SEVERAL**0.5


@pytest.mark.parametrize("out", [TensorProto.INT32, TensorProto.INT64])
def test_multinomial(out) -> None:
    p = np.array([[0.5, 0.25, 0.25, 0], [0, 0, 1, 0]])
    with np.errstate(divide="ignore"):
        logits = (np.log(p) + 3).astype(np.float32)
    got = run_npu("Multinomial", [logits], opset=22, sample_size=SEVERAL, dtype=out)[0]
    assert got.shape == (2, SEVERAL) and got.dtype == helper.tensor_dtype_to_np_dtype(out)
    shares = np.stack([np.bincount(row, minlength=4) / SEVERAL for row in got])
    np.testing.assert_allclose(shares, p, rtol=0, atol=5 * 0.5 / SEVERAL**0.5)
    assert (shares[p == 0] == 0).all()


def test_wrong_arguments_are_refused() -> None:
    x = np.zeros((2, 0), np.float32)
    with pytest.raises(Exception, match=r"expected an input \[batch, classes\]"):
        run_npu("Multinomial", [x], opset=22)
    with pytest.raises(Exception, match="a finite largest one"):
        run_npu("Multinomial", [np.full((1, 3), -np.inf, np.float32)], opset=22)
    with pytest.raises(Exception, match="expected a sample_size of 1 or more"):
        run_npu("Multinomial", [np.zeros((1, 3), np.float32)], opset=22, sample_size=0)
    with pytest.raises(Exception, match="expected a ratio from 0 to below 1"):
        run_npu("Dropout", [x, np.array(1.5, np.float32), np.array(True)], 2, opset=22)


@pytest.mark.parametrize("dtype", FLOATS)
def test_dropout(dtype) -> None:
    x = np.linspace(1, 2, SEVERAL).astype(dtype_of(dtype))
    y, mask = run_npu("Dropout", [x], 2, opset=22)
    np.testing.assert_array_equal(y, x)
    assert mask.dtype == bool and mask.all()
    ratio = np.array(0.25, dtype_of(dtype))
    y, mask = run_npu("Dropout", [x, ratio, np.array(True)], 2, opset=22)
    assert abs(mask.mean() - 0.75) < 5 * 0.44 / SEVERAL**0.5
    wide = x.astype(np.float64) / 0.75
    expected = np.where(mask, wide, 0)
    bound = {"float64": 1e-15, "float32": 2.0**-22, "float16": 2.0**-10, "bfloat16": 2.0**-7}
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=bound[dtype])
    same = [run_npu("Dropout", [x, ratio, np.array(True)], 2, opset=22, seed=3) for _ in range(2)]
    np.testing.assert_array_equal(same[0][1], same[1][1])


def test_dropout_of_early_versions() -> None:
    x = np.arange(6, dtype=np.float32)
    y, mask = run_npu("Dropout", [x], 2, opset=7, ratio=0.9)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(mask, np.ones(6, np.float32))
    assert run_npu("Dropout", [x], 2, opset=10)[1].dtype == bool
