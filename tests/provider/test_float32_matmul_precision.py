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


def test_unknown_precision_is_refused():
    with pytest.raises(Exception, match="float32_matmul_precision' expected highest, medium; got"):
        ort.InferenceSession(model(), providers=[(NPU, {"float32_matmul_precision": "bf16"})])
