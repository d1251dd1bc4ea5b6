"""MatMul and ``npu_add_rms_norm`` of its result and a residual as one operator."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fusion_models import model_of, node, run_both

NORMED = "npu.fused:MatMulAddRmsNorm"


def normed(inputs: str = "h r gamma", outputs: str = "y rstd sum") -> list[onnx.NodeProto]:
    norm = node("NPUAddRmsNorm", inputs, outputs, epsilon=1e-3)
    norm.domain = "npu"
    return [node("MatMul", "x w", "h"), norm]


def run(rng, nodes, dtype=np.float32, shape=(2, 3, 48), columns=80, outputs=("y", "sum"), **more):
    feeds = {
        "x": rng.standard_normal(shape).astype(dtype),
        "r": rng.standard_normal((*shape[:-1], columns)).astype(dtype),
    }
    constants = {
        "w": (rng.standard_normal((shape[-1], columns)) / shape[-1] ** 0.5).astype(dtype),
        "gamma": rng.standard_normal(columns).astype(dtype),
    }
    return run_both(model_of(nodes, feeds, constants, outputs, **more), feeds)


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=str)
@pytest.mark.parametrize("inputs", ["h r gamma", "r h gamma"])
def test_the_product_is_not_stored(rng, dtype, inputs):
    """Values of at most about 5 are rounded once more without the fusion."""
    fused, plain, groups = run(rng, normed(inputs), dtype)
    assert groups == {"h": NORMED, "y": NORMED}
    bits = 21 if dtype == np.float32 else 10
    for a, b in zip(fused, plain, strict=True):
        assert a.shape == (2, 3, 80) and a.dtype == dtype
        np.testing.assert_allclose(
            a.astype(np.float32), b.astype(np.float32), rtol=0, atol=8 * 2.0**-bits
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=str)
def test_the_norm_is_that_of_the_rounded_sum(rng, dtype):
    nodes = normed()
    again = node("NPURmsNorm", "sum gamma", "y2 rstd2", epsilon=1e-3)
    again.domain = "npu"
    (y, y2), _, groups = run(rng, [*nodes, again], dtype, (5, 48), outputs=("y", "y2"))
    assert groups == {"h": NORMED, "y": NORMED}
    # The order in which squares are added differs.
    np.testing.assert_allclose(
        y.astype(np.float32), y2.astype(np.float32), rtol=2e-6 if dtype == np.float32 else 1e-3
    )


def test_a_sum_that_nothing_reads(rng):
    fused, plain, groups = run(rng, normed(outputs="y"), outputs=("y",))
    assert groups == {"h": NORMED, "y": NORMED}
    # Eight units in the last place of results from 4 to 8: sums of float32 in another order.
    np.testing.assert_allclose(fused[0], plain[0], rtol=0, atol=8 * 2.0**-21)


def test_no_rows(rng):
    fused, _, groups = run(rng, normed(), shape=(2, 0, 48))
    assert groups == {"h": NORMED, "y": NORMED}
    assert [each.shape for each in fused] == [(2, 0, 80)] * 2


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (normed(), ("y", "h")),
        (normed(), ("y", "rstd")),
        (normed(), ("sum",)),
        ([node("Identity", "w", "w2"), node("MatMul", "x w2", "h"), normed()[1]], ("y", "sum")),
    ],
    ids=["the product is read", "rstd is read", "no norm", "a computed weight"],
)
def test_what_stays_apart(rng, nodes, outputs):
    fused, plain, groups = run(rng, nodes, outputs=outputs)
    assert groups == {}
    for a, b in zip(fused, plain, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_residual_that_the_product_makes_stays_apart(rng):
    """The product is added to itself: nothing outside may read it."""
    fused, plain, groups = run(rng, normed("h h gamma"))
    assert groups == {}
    for a, b in zip(fused, plain, strict=True):
        np.testing.assert_array_equal(a, b)


def test_groups_of_layers_that_follow_each_other(rng):
    """Each reads the sum of the one before it as its residual."""
    second = node("NPUAddRmsNorm", "h2 sum gamma", "z rstd2 sum2", epsilon=1e-3)
    second.domain = "npu"
    nodes = [*normed(), node("MatMul", "y w", "h2"), second]
    fused, plain, groups = run(rng, nodes, columns=48, outputs=("z", "sum2"))
    assert groups == dict.fromkeys(["h", "y", "h2", "z"], NORMED)
    for a, b in zip(fused, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=32 * 2.0**-21)
