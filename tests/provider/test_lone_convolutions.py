"""Convolutions without neighbours, which convert their input and result to channels last."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from channels_last_models import PREFIX, array, chained, check, weight
from fusion_models import fused_nodes, model_of, node, without_optimizations
from provider_models import npu_session

# Of one convolution between values that are not channels last: channels in and out, kernel,
# attributes, and whether it converts them for itself.
LONE = {
    "many channels": (32, 40, 3, {"pads": [1, 1, 1, 1]}, True),
    "few results": (64, 16, 3, {}, True),
    "few channels": (16, 64, 3, {}, False),
    "few results and taps": (64, 8, 5, {}, False),
    "strided": (32, 40, 3, {"strides": [2, 2]}, True),
    "strided, few channels": (17, 16, 3, {"strides": [2, 2]}, True),
    "dilated": (32, 40, 3, {"dilations": [2, 2]}, True),
    "pointwise": (64, 64, 1, {}, False),
    "larger kernel": (32, 70, 5, {}, True),
    "groups": (32, 32, 3, {"group": 32}, False),
}


@pytest.mark.parametrize("kind", LONE)
def test_a_convolution_without_neighbours(kind):
    channels, out, kernel, attributes, converts = LONE[kind]
    depth = channels // attributes.get("group", 1)
    constants = {"w": weight(out, depth, kernel, kernel), "b": array(out)}
    conv = node("Conv", "x w b", "y", **attributes)
    model = model_of([conv], {"x": array(1, channels, 1, 1)}, constants, dynamic=True, opset=22)
    feeds = [{"x": array(n, channels, *size)} for n, *size in ((2, 9, 12), (1, 6, 5), (0, 6, 5))]
    assert check(model, *feeds) == ({"y"} if converts else set())
    assert check(model, *feeds, fusion="0") == set()


# Channels in and out, height and width: planes of few positions.
POINTWISE = {
    "one position": (40, 24, 1, 1),
    "images share rows": (33, 50, 7, 7),
    "depth of a page": (1024, 96, 5, 9),
    "several rows": (160, 40, 16, 16),
}


@pytest.mark.parametrize("precision", ["highest", "medium"])
@pytest.mark.parametrize("kind", POINTWISE)
def test_pointwise_convolutions_of_few_positions_without_neighbours(kind, precision):
    """Their images are divided into rows of pixels of any length, which end where images do not."""
    channels, out, height, width = POINTWISE[kind]
    constants = {"w": weight(out, channels, 1, 1), "b": array(out)}
    nodes = [node("Conv", "x w b", "c"), node("Add", "c z", "s"), node("Relu", "s", "y")]
    for images in (1, 3, 13):
        x, z = array(images, channels, height, width), array(images, out, height, width)
        model = model_of(nodes, {"x": x, "z": z}, constants, opset=22)
        session = npu_session(model, without_optimizations(), float32_matmul_precision=precision)
        assert chained(session) == (set("csy") if height * width > 1 else set())
        got = session.run(None, {"x": x, "z": z})[0]
        w, b = (constants[n].astype(float) for n in "wb")

        def sums(x, w):
            return np.einsum("oc,nchw->nohw", w[..., 0, 0], x)

        exact = np.maximum(sums(x.astype(float), w) + b[:, None, None] + z, 0)
        # In bfloat16 both operands are rounded; sums of up to 1024 products in float32.
        of_each = 2e-6 if precision == "highest" else 2.0**-8 + 2.0**-8
        bound = of_each * (sums(abs(x), abs(w)) + abs(b)[:, None, None] + abs(z))
        assert (abs(got - exact) <= bound).all()


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_a_strided_convolution_without_neighbours_reads_planes_of_several_pieces(precision):
    x, w = array(2, 70, 61, 50), weight(37, 70, 3, 3)
    conv = node("Conv", "x w", "y", pads=[1, 0, 2, 1], strides=[2, 2])
    session = npu_session(
        model_of([conv], {"x": x}, {"w": w}, opset=22),
        without_optimizations(), float32_matmul_precision=precision,
    )  # fmt: skip
    assert chained(session) == {"y"}
    exact, magnitudes = (
        torch.nn.functional.conv2d(
            torch.nn.functional.pad(torch.from_numpy(a).double(), (0, 1, 1, 2)),
            torch.from_numpy(b).double(), stride=2,
        ).numpy()
        for a, b in ((x, w), (abs(x), abs(w)))
    )  # fmt: skip
    # As above, with 630 products.
    of_each = 2e-6 if precision == "highest" else 2.0**-8 + 2.0**-8
    assert (abs(session.run(None, {"x": x})[0] - exact) <= of_each * magnitudes).all()


def test_a_convolution_without_neighbours_adds_a_residual():
    constants = {"w": weight(24, 24, 3, 3), "b": array(24)}
    nodes = [
        node("Conv", "x w b", "c", pads=[1] * 4), node("Add", "c z", "s"), node("Relu", "s", "y"),
    ]  # fmt: skip
    feeds = {"x": array(2, 24, 7, 6), "z": array(2, 24, 7, 6)}
    model = model_of(nodes, feeds, constants, opset=22)
    assert check(model, feeds) == set("csy")
    assert set(fused_nodes(npu_session(model, without_optimizations())).values()) == {
        PREFIX + "LoneFusedConv"
    }
