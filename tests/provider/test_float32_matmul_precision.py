"""float32 models compute in bfloat16 only if the option enables it."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from provider_models import NPU, make_model, npu_session

K, N = 512, 768


def weight():
    return np.random.default_rng(1).standard_normal((K, N), np.float32)


def model(constant=True):
    """y = x @ w, where w is a constant or an input."""
    w = ("w", TensorProto.FLOAT, [K, N])
    return make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        [("x", TensorProto.FLOAT, ["m", K])] + ([] if constant else [w]),
        [("y", TensorProto.FLOAT, ["m", N])],
        {"w": weight()} if constant else None,
    )


@pytest.mark.parametrize("rows", [1, 5, 70])
def test_error_stays_within_the_stated_bound(rows):
    x = np.random.default_rng(2).standard_normal((rows, K), np.float32)
    exact = x.astype(np.float64) @ weight().astype(np.float64)
    magnitudes = np.abs(x).astype(np.float64) @ np.abs(weight()).astype(np.float64)

    def error(**options):
        (y,) = npu_session(model(), **options).run(None, {"x": x})
        return np.max(np.abs(y - exact) / magnitudes)

    # float32 sums of K products in any order: at most K roundings.
    assert error() <= K * 2.0**-24
    assert error(float32_matmul_precision="highest") == error()
    assert K * 2.0**-24 < error(float32_matmul_precision="medium") <= 2.0**-7


def test_non_constant_weights_stay_float32():
    x = np.random.default_rng(2).standard_normal((3, K), np.float32)
    feeds = {"x": x, "w": weight()}
    expected = npu_session(model(constant=False)).run(None, feeds)
    actual = npu_session(model(constant=False), float32_matmul_precision="medium").run(None, feeds)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("rows", [31, 70])
def test_attention_of_many_queries_stays_near_and_of_few_is_exact(rows):
    heads, size = 4, 32
    shape = [2, rows, heads * size]
    node = helper.make_node(
        "MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=heads
    )
    names = ("q", "k", "v")
    attention = make_model(
        [node],
        [(name, TensorProto.FLOAT, shape) for name in names],
        [("y", TensorProto.FLOAT, shape)],
    )
    draw = np.random.default_rng(3)
    feeds = {name: draw.standard_normal(shape, np.float32) for name in names}
    (exact,) = npu_session(attention).run(None, feeds)
    (medium,) = npu_session(attention, float32_matmul_precision="medium").run(None, feeds)
    # A score is off by at most 2^-7 of sum |q k| / sqrt(size), about 3.6: weights by 3 %, of values
    # of up to 4 around a mean of many.
    bound = 0.0 if rows < 32 else 0.03
    assert np.max(np.abs(medium - exact)) <= bound


def test_unknown_precision_is_refused():
    with pytest.raises(Exception, match="float32_matmul_precision' expected highest, medium; got"):
        ort.InferenceSession(model(), providers=[(NPU, {"float32_matmul_precision": "bf16"})])
