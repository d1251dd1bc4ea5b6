"""MatMul and ``npu_swiglu`` of its result as one operator."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fusion_models import model_of, node, run_both

GATED = "npu.fused:GatedMatMul"


def gated(**attributes: int) -> list[onnx.NodeProto]:
    gate = node("NPUSwiGlu", "h", "y", **attributes)
    gate.domain = "npu"
    return [node("MatMul", "x w", "h"), gate]


def run(rng, nodes, dtype=np.float32, shape=(2, 3, 48), columns=80, outputs=("y",), **settings):
    feeds = {"x": rng.standard_normal(shape).astype(dtype)}
    weight = (rng.standard_normal((shape[-1], columns)) / shape[-1] ** 0.5).astype(dtype)
    return run_both(model_of(nodes, feeds, {"w": weight}, outputs, **settings), feeds)


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=str)
def test_halves_are_not_stored(rng, dtype):
    """Both halves of about 1 are rounded without the fusion, and the result once either way."""
    fused, plain, groups = run(rng, gated(dim=-1), dtype)
    assert groups == {"h": GATED, "y": GATED}
    bits = 21 if dtype == np.float32 else 10
    for a, b in zip(fused, plain, strict=True):
        assert a.shape == (2, 3, 40) and a.dtype == dtype
        np.testing.assert_allclose(
            a.astype(np.float32), b.astype(np.float32), rtol=0, atol=8 * 2.0**-bits
        )


def test_the_last_axis_by_its_number(rng):
    assert run(rng, gated(dim=2))[2] == {"h": GATED, "y": GATED}


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (gated(dim=1), ("y",)),
        (gated(dim=-1), ("y", "h")),
        ([node("MatMul", "x x2", "h"), gated(dim=-1)[1], node("Identity", "w", "x2")], ("y",)),
    ],
    ids=["another axis", "the halves are read", "the weight is computed"],
)
def test_what_stays_apart(rng, nodes, outputs):
    nodes = sorted(nodes, key=lambda n: n.op_type != "Identity")
    fused, plain, groups = run(rng, nodes, shape=(2, 4, 48), outputs=outputs)
    assert groups == {}
    for a, b in zip(fused, plain, strict=True):
        np.testing.assert_array_equal(a, b)
