"""Compiled models whose values have their channels last, hostile ones too."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from channels_last_models import PREFIX, array, chained, weight
from fusion_models import fused_nodes, model_of, node, without_optimizations
from onnx import helper
from provider_models import NPU, npu_session


def test_a_compiled_model_keeps_the_order(tmp_path):
    """Its nodes hold what was decided about each, those without constants, too."""
    nodes = [
        node("Conv", "x first", "a"), node("MaxPool", "a", "b", kernel_shape=[2, 2]),
        node("Conv", "b depthwise", "c", pads=[1] * 4, group=20),
        node("Conv", "c taps", "d", pads=[1] * 4), node("Add", "d c", "s"), node("Relu", "s", "m"),
        node("GlobalAveragePool", "m", "p"), node("HardSigmoid", "p", "g"),
        node("Mul", "m g", "z"), node("Conv", "z last", "y"),
    ]  # fmt: skip
    constants = {
        "first": weight(20, 6, 1, 1), "depthwise": weight(20, 1, 3, 3),
        "taps": weight(20, 20, 3, 3), "last": weight(9, 20, 1, 1),
    }  # fmt: skip
    feeds = {"x": array(2, 6, 9, 9)}
    model = model_of(nodes, feeds, constants, opset=22)
    options, path = without_optimizations(), tmp_path / "m.onnx"
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(path))
    npu_session(model, options)
    compiled = [n.output[0] for n in onnx.load(path).graph.node if n.op_type == "EPContext"]
    assert compiled == list("abcmpzy")
    loaded = npu_session(str(path))
    assert len(chained(loaded)) == len(compiled)
    got = loaded.run(None, feeds)[0]
    plain = npu_session(model, without_optimizations())
    np.testing.assert_array_equal(got, plain.run(None, feeds)[0])


# Of an EPContext's operator: type, inputs, attributes, and what refuses it.
HOSTILE = {
    "rank": ("Conv", "line taps", {}, "W of the same rank"),
    "channels": ("Conv", "two taps", {}, "for C = 2 and group = 1"),
    "weight that is fed": ("Conv", "x x", {}, "an operator that the NPU implements"),
    "weight without taps": ("Conv", "x empty", {}, "an operator that the NPU implements"),
    "groups": ("Conv", "x taps", {"group": 3}, "an operator that the NPU implements"),
    "bias": ("Conv", "x taps last", {}, "B of shape"),
    "residual": ("FusedConv", "x taps - x", {}, "a residual of the output's type and shape"),
    "padding": ("Conv", "x taps", {"pads": [0, 0, 0, -9]}, "pads from 0"),
    "window": ("MaxPool", "x", {"kernel_shape": [1]}, "an operator that the NPU implements"),
    "pool of a line": ("MaxPool", "line", {"kernel_shape": [1, 1]}, "2 spatial dimensions"),
    "pool of nothing": ("MaxPool", "none", {"kernel_shape": [1, 1]}, "dimensions with elements"),
    "mean of nothing": ("GlobalAveragePool", "none", {}, "dimensions with elements"),
    "mean of a vector": ("GlobalAveragePool", "vector", {}, r"an input \[N, C\]"),
    "factors": ("Mul", "two factors", {}, "an operator that the NPU implements"),
    "no factors": ("Mul", "x x", {}, "an operator that the NPU implements"),
    "type": ("GlobalAveragePool", "half", {}, "an operator that the NPU implements"),
}


def compiled_node(op_type: str, inputs: str, attributes: dict) -> tuple[onnx.ModelProto, dict]:
    """A model of one EPContext for an operator of domain npu.channels_last, and what to feed it."""
    constants = {
        "taps": weight(4, 6, 2, 2), "empty": weight(4, 6, 0, 2), "last": weight(4, 6),
    }  # fmt: skip
    feeds = {
        "x": array(1, 6, 3, 3), "two": array(1, 2, 3, 3), "line": array(1, 6, 3),
        "none": array(1, 6, 0, 3), "vector": array(6), "factors": array(1, 6, 1, 1),
        "half": array(1, 6, 3, 3).astype(np.float16),
    }  # fmt: skip
    names = [*feeds, *constants]
    places = [-1 if name == "-" else names.index(name) for name in inputs.split()]
    words = ["npu1", "17:npu.channels_last", f"{len(op_type)}:{op_type}", 1, len(places), *places]
    words.append(len(attributes))
    for name, value in attributes.items():
        words.append(f"{len(name)}:{name}")
        words += ["int", value] if isinstance(value, int) else ["ints", len(value), *value]
    context = helper.make_node(
        "EPContext", names, ["y"], domain="com.microsoft", main_context=1, embed_mode=1,
        ep_cache_context=".", source=NPU, notes=" ".join(map(str, [*words, 0])),
    )  # fmt: skip
    return model_of([context], feeds, constants, dynamic=True), feeds


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_compiled_nodes(kind):
    """Onnxruntime knows nothing of what an EPContext reads; its order is any, too."""
    op_type, inputs, attributes, expected = HOSTILE[kind]
    order = {"channels_last_inputs": [0, 1, 3], "channels_last_output": 1}
    model, feeds = compiled_node(op_type, inputs, order | attributes)
    with pytest.raises(Exception, match=expected):
        npu_session(model).run(None, feeds)


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_mean_reads_the_order_that_its_node_says(channels_last):
    order = {"channels_last_inputs": [0] if channels_last else [], "channels_last_output": 0}
    model, feeds = compiled_node("GlobalAveragePool", "x", order)
    x = feeds["x"]
    if channels_last:
        x = np.moveaxis(x.reshape(1, 3, 3, 6), 3, 1)
    expected = x.astype(np.float64).mean((2, 3), keepdims=True)
    got = npu_session(model).run(None, feeds)[0]
    # Of nine terms below 4 and their quotient, each rounded.
    np.testing.assert_allclose(got, expected, rtol=0, atol=10 * 4 * 2.0**-24)


def test_a_compiled_convolution_without_neighbours(tmp_path):
    constants = {"w": weight(24, 24, 3, 3)}
    feeds = {"x": array(2, 24, 7, 6)}
    model = model_of([node("Conv", "x w", "y")], feeds, constants, opset=22)
    options, path = without_optimizations(), tmp_path / "m.onnx"
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(path))
    got = npu_session(model, options).run(None, feeds)[0]
    loaded = npu_session(str(path))
    assert set(fused_nodes(loaded).values()) == {PREFIX + "LoneConv"}
    np.testing.assert_array_equal(loaded.run(None, feeds)[0], got)
