"""Values between convolutions that are in memory with their channels last, against onnxruntime."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_npu
import pytest
from channels_last_models import array, between, chained, check, weight
from fusion_models import model_of, node, without_optimizations
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnxruntime_npu import _C
from provider_models import CPU, npu_session

# Channels in and out, groups, kernel, height and width, attributes.
CONVOLUTIONS = {
    "pointwise": (24, 40, 1, (1, 1), (9, 7), {}),
    "pointwise, pixels a page apart": (1024, 33, 1, (1, 1), (5, 4), {}),
    "pointwise, strided": (12, 70, 1, (1, 1), (9, 8), {"strides": [2, 2]}),
    "one channel": (1, 20, 1, (3, 3), (6, 18), {"pads": [1, 1, 1, 1]}),
    "few channels": (3, 2, 1, (3, 3), (6, 6), {"pads": [1, 1, 1, 1]}),
    "taps": (20, 48, 1, (3, 3), (14, 15), {"pads": [1, 1, 1, 1]}),
    "taps without padding": (20, 17, 1, (3, 2), (14, 15), {}),
    "large kernel": (3, 35, 1, (7, 7), (30, 25), {"pads": [3, 3, 3, 3], "strides": [2, 2]}),
    "few channels, dilated": (5, 20, 1, (3, 2), (14, 15), {"dilations": [2, 3], "pads": [1] * 4}),
    "uneven": (5, 30, 1, (2, 4), (11, 13), {"pads": [0, 2, 1, 1], "strides": [3, 2]}),
    "dilated": (9, 16, 1, (3, 3), (12, 13), {"pads": [2, 3, 2, 3], "dilations": [2, 3]}),
    "same": (9, 16, 1, (3, 3), (12, 13), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "more padding than image": (4, 8, 1, (5, 5), (2, 1), {"pads": [9, 9, 9, 9]}),
    "pixels a page apart": (512, 20, 1, (3, 3), (4, 5), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "many rows": (32, 40, 1, (3, 3), (30, 31), {"pads": [1, 1, 1, 1]}),
    "much depth": (256, 33, 1, (3, 3), (7, 7), {"pads": [1, 1, 1, 1]}),
    "dilated, many channels": (
        33,
        48,
        1,
        (3, 3),
        (12, 13),
        {"pads": [2, 3, 2, 3], "dilations": [2, 3]},
    ),
    "strided, many channels": (40, 70, 1, (3, 3), (17, 19), {"pads": [1] * 4, "strides": [2, 2]}),
    "strided in one direction": (24, 30, 1, (3, 3), (9, 40), {"pads": [1] * 4, "strides": [1, 2]}),
    "depthwise": (72, 72, 72, (3, 3), (10, 14), {"pads": [1, 1, 1, 1]}),
    "depthwise, strided": (40, 40, 40, (5, 5), (9, 17), {"pads": [2, 2, 2, 2], "strides": [2, 2]}),
    "depthwise, few channels": (5, 5, 5, (3, 3), (8, 11), {"pads": [1, 0, 0, 1]}),
    "depthwise, two outputs": (19, 19, 19, (3, 3), (3, 4), {}),
    "depthwise, large": (64, 64, 64, (3, 3), (60, 58), {"pads": [1, 1, 1, 1]}),
    "depthwise, large, strided": (
        70,
        70,
        70,
        (5, 5),
        (57, 55),
        {"pads": [2, 1, 2, 2], "strides": [2, 2]},
    ),
    "depthwise, dilated": (33, 33, 33, (3, 2), (9, 5), {"dilations": [2, 1], "pads": [0, 1, 2, 0]}),
}


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions(kind, images):
    channels, out, groups, kernel, size, attributes = CONVOLUTIONS[kind]
    constants = {
        "channels": channels, "w": weight(out, channels // groups, *kernel), "b": array(out),
    }  # fmt: skip
    for biased in (True, False):
        conv = node("Conv", "a w b" if biased else "a w", "m", group=groups, **attributes)
        used = {n: v for n, v in constants.items() if biased or n != "b"}
        shape = (images, 6, *size)
        assert check(between(shape, [conv], used, out), {"x": array(*shape)}) == set("amy")


@pytest.mark.parametrize("kind", [kind for kind, of in CONVOLUTIONS.items() if of[2] == 1])
def test_products_of_bfloat16(kind):
    """Between two identities: x, the weight and the result are rounded once each, to 2^-9 of it."""
    channels, out, _, kernel, size, attributes = CONVOLUTIONS[kind]
    constants = {"w": weight(out, channels, *kernel)}
    x = array(2, channels, *size)
    conv = model_of([node("Conv", "x w", "y", **attributes)], {"x": x}, constants, opset=22)

    def of_cpu(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        wide = onnx.load_from_string(conv)
        wide.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(w.astype(float), "w"))
        for value in (*wide.graph.input, *wide.graph.output):
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
        return ReferenceEvaluator(wide).run(None, {"x": x.astype(float)})[0]

    session = npu_session(
        model_of(
            [
                node("Conv", "x before", "a"), node("Conv", "a w", "m", **attributes),
                node("Conv", "m after", "y"),
            ],
            {"x": x},
            constants | {n: np.eye(c, dtype=np.float32)[..., None, None]
                         for n, c in (("before", channels), ("after", out))},
            opset=22,
        ),
        without_optimizations(), float32_matmul_precision="medium",
    )  # fmt: skip
    assert chained(session) == set("amy")
    exact, magnitudes = of_cpu(x, constants["w"]), of_cpu(abs(x), abs(constants["w"]))
    error = abs(session.run(None, {"x": x})[0] - exact)
    assert (error <= 2.0**-7 * magnitudes).all()
    if _C.cpu_features()["avx512_bf16"]:
        assert error.max() > 1e-3  # it has multiplied bfloat16


def rounded(x: np.ndarray) -> np.ndarray:
    """To bfloat16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


# Between two identities of so many channels, which pass on what is rounded: the nodes from a to m,
# and the shape of w.
STORED = {
    "depthwise": (72, [node("Conv", "a w", "m", group=72, pads=[1] * 4)], (72, 1, 3, 3)),
    "depthwise, strided": (
        40, [node("Conv", "a w", "m", group=40, pads=[2] * 4, strides=[2, 2])], (40, 1, 5, 5),
    ),
    "depthwise, few channels": (5, [node("Conv", "a w", "m", group=5)], (5, 1, 3, 3)),
    "depthwise, many channels": (
        201, [node("Conv", "a w", "m", group=201, pads=[1] * 4)], (201, 1, 3, 3),
    ),
    "depthwise, large": (
        130, [node("Conv", "a w", "m", group=130, pads=[1] * 4)], (130, 1, 3, 3),
    ),
    "MaxPool": (37, [node("MaxPool", "a", "m", kernel_shape=[3, 3], strides=[2, 2])], ()),
    "Mul": (300, [node("Mul", "w a", "m")], (1, 300, 1, 1)),
    "residual": (
        24,
        [node("Conv", "a w", "c"), node("Add", "c a", "s"), node("Relu", "s", "m")],
        (24, 24, 1, 1),
    ),
    "residual, odd": (
        13,
        [node("Conv", "a w", "c", pads=[1] * 4), node("Add", "a c", "m")],
        (13, 13, 3, 3),
    ),
}  # fmt: skip


@pytest.mark.skipif(not _C.cpu_features()["avx512_bf16"], reason="values are stored as float32")
@pytest.mark.parametrize("kind", STORED)
def test_values_stored_as_bfloat16(kind):
    """Each is rounded once, to 2^-8 of it."""
    channels, middle, shape = STORED[kind]
    constants = {"w": rounded(weight(*shape))} if shape else {}
    x = array(2, channels, *((39, 41) if "large" in kind else (11, 15)))
    identity = np.eye(channels, dtype=np.float32)[..., None, None]

    def of(x: np.ndarray, ends: list[onnx.NodeProto], constants, dtype) -> onnx.ModelProto:
        nodes = [*ends[:1], *middle, *ends[1:]]
        return onnx.load_from_string(
            model_of(nodes, {"x": x}, {n: v.astype(dtype) for n, v in constants.items()}, opset=22)
        )

    ends = [node("Conv", "x identity", "a"), node("Conv", "m identity", "y")]
    model = of(x, ends, constants | {"identity": identity}, np.float32).SerializeToString()
    session = npu_session(model, without_optimizations(), float32_matmul_precision="medium")
    assert {"a", "m", "y"} <= chained(session)
    y = session.run(None, {"x": x})[0]
    ends = [node("Identity", "x", "a"), node("Identity", "m", "y")]
    plain = of(x.astype(float), ends, constants, float)
    plain.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    exact = ReferenceEvaluator(plain).run(None, {"x": rounded(x).astype(float)})[0]
    # Sums of up to 117 products in float32, of a few units.
    np.testing.assert_allclose(y, exact, rtol=2.0**-8, atol=1e-5)
    np.testing.assert_array_equal(y, rounded(y))
    assert kind == "MaxPool" or abs(y - exact).max() > 1e-4


@pytest.mark.skipif(not _C.cpu_features()["avx512_bf16"], reason="values are stored as float32")
def test_the_ends_of_a_chain_are_not_rounded():
    nodes = [
        node("Conv", "x first", "a"), node("GlobalAveragePool", "a", "p"),
        node("Conv", "a last", "y"), node("Mul", "a f", "z"),
    ]  # fmt: skip
    x = array(2, 20, 9, 7) + 1
    constants = {"first": np.eye(20, dtype=np.float32)[..., None, None],
                 "last": weight(33, 20, 1, 1), "f": array(1, 20, 1, 1)}  # fmt: skip
    model = model_of(nodes, {"x": x}, constants, ["p", "y", "z"], opset=22)
    session = npu_session(model, without_optimizations(), float32_matmul_precision="medium")
    assert chained(session) == set("apyz")
    a = rounded(x).astype(float)
    y = np.einsum("oc,nchw->nohw", rounded(constants["last"])[..., 0, 0].astype(float), a)
    expected = [a.mean((2, 3), keepdims=True), y, a * constants["f"]]
    for got, exact in zip(session.run(None, {"x": x}), expected, strict=True):
        # Sums of up to 63 terms of a few units in float32.
        np.testing.assert_allclose(got, exact, rtol=1e-6, atol=1e-5)
        assert (got != rounded(got)).any()


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_a_value_of_one_position_that_a_factor_scales(precision):
    """Which input is the factor follows from the order, where shapes do not tell."""
    nodes = [
        node("Conv", "x first", "a"), node("Mul", "f a", "m"), node("Conv", "m last", "y"),
    ]  # fmt: skip
    constants = {"first": weight(18, 6, 1, 1), "last": weight(3, 18, 1, 1),
                 "f": array(1, 18, 1, 1)}  # fmt: skip
    x = array(2, 6, 1, 1)
    model = model_of(nodes, {"x": x}, constants, dynamic=True, opset=22)
    session = npu_session(model, without_optimizations(), float32_matmul_precision=precision)
    assert chained(session) == set("amy")
    cpu = ort.InferenceSession(model, without_optimizations(), providers=[CPU])
    got, expected = (s.run(None, {"x": x})[0] for s in (session, cpu))
    # In bfloat16 x, both weights and both values on the way are rounded, to 2^-8 each.
    of_each = 1e-6 if precision == "highest" else 5.1 * 2.0**-8
    first, last = (abs(constants[n])[..., 0, 0] for n in ("first", "last"))
    magnitudes = (abs(x)[..., 0, 0] @ first.T * abs(constants["f"])[..., 0, 0]) @ last.T
    assert (abs(got - expected)[..., 0, 0] <= of_each * magnitudes).all()


@pytest.mark.parametrize("channels", [3, 24])
def test_rounded_products_read_no_other_pixels(channels):
    """Rows of tiles go on over the padding, and channels are filled up: what is infinite in one
    pixel reaches the outputs that read it, and no other.
    """
    before = np.eye(channels, dtype=np.float32)[..., None, None]
    constants = {"w": abs(weight(40, channels, 3, 3)) + 0.1, "before": before}
    x = abs(array(1, channels, 12, 13))
    x[0, 1, 0, 12], x[0, -1, 7, 0] = np.inf, np.nan
    nodes = [
        node("Relu", "x", "r"),
        node("Conv", "r before", "a"),
        node("Conv", "a w", "m", pads=[1, 1, 1, 1]),
        node("Relu", "m", "y"),
    ]
    model = model_of(nodes, {"x": x}, constants, opset=22)
    session = npu_session(model, without_optimizations(), float32_matmul_precision="medium")
    assert {"a", "m"} <= chained(session)
    finite = np.isfinite(session.run(None, {"x": x})[0][0])
    expected = np.ones((12, 13), bool)
    expected[0:2, 11:13] = expected[6:9, 0:2] = False
    np.testing.assert_array_equal(finite, np.broadcast_to(expected, finite.shape))


@pytest.mark.parametrize("channels", [8, 24, 67])
@pytest.mark.parametrize("depthwise", [False, True])
def test_residuals_and_activations(channels, depthwise):
    """A residual that is channels last, and one that is an input of the model."""
    w = weight(channels, 1 if depthwise else channels, 3, 3)
    conv = node("Conv", "a w", "c", pads=[1] * 4, group=channels if depthwise else 1)
    for residual, activation in itertools.product("ar", ["Relu", "HardSwish", "Sigmoid"]):
        nodes = [
            node("Conv", "x first", "a"), conv, node("Add", f"c {residual}", "s"),
            node(activation, "s", "m"), node("Conv", "m last", "y"),
        ]  # fmt: skip
        feeds = {"x": array(2, 4, 9, 10), "r": array(2, channels, 9, 10)}
        if residual == "a":
            del feeds["r"]
        constants = {"w": w, "first": weight(channels, 4, 1, 1), "last": weight(3, channels, 1, 1)}
        assert check(model_of(nodes, feeds, constants, opset=22), feeds) == set("acsmy")


POOLS = {
    "MaxPool": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    "MaxPool, dilated": {"kernel_shape": [2, 3], "dilations": [2, 1], "pads": [0, 0, 1, 2]},
    "MaxPool, rounded up": {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1},
}


@pytest.mark.parametrize("kind", POOLS)
def test_max_pools(kind):
    pool = node("MaxPool", "a", "m", **POOLS[kind])
    x = array(2, 6, 10, 12)
    assert check(between(x.shape, [pool], {"channels": 21}, 21), {"x": x}) == set("amy")


def test_a_window_far_larger_than_the_image():
    """Its taps and channels are 2^64 and more."""
    side = 2**30
    pool = node("MaxPool", "a", "m", kernel_shape=[side, side], pads=[side // 2] * 4)
    x = array(1, 6, 5, 4)
    assert check(between(x.shape, [pool], {"channels": 16}, 16), {"x": x}) == set("amy")


def test_a_pool_propagates_nan():
    """As the provider's pools of plain values do."""
    pool = node("MaxPool", "a", "m", kernel_shape=[2, 2], strides=[2, 2])
    model = between((1, 1, 4, 4), [pool], {"channels": 17}, 17)
    x = np.zeros((1, 1, 4, 4), np.float32)
    x[0, 0, 0, 1] = np.nan
    session = npu_session(model, without_optimizations())
    assert chained(session) == set("amy")
    (y,) = session.run(None, {"x": x})
    assert np.isnan(y[:, :, 0, 0]).all() and np.isfinite(np.delete(y.reshape(5, 4), 0, 1)).all()


MEANS = {
    "GlobalAveragePool": (node("GlobalAveragePool", "m", "p"), {}),
    "ReduceMean": (node("ReduceMean", "m axes", "p"), {"axes": np.array([-1, 2])}),
}


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("order", ["m g", "g m"])
def test_squeeze_and_excitation(mean, order):
    pool, constants = MEANS[mean]
    nodes = [
        node("Conv", "x first", "m"), pool, node("Conv", "p inner", "q"),
        node("HardSigmoid", "q", "g"), node("Mul", order, "z"), node("Conv", "z last", "y"),
    ]  # fmt: skip
    constants = constants | {
        "first": weight(150, 6, 1, 1), "inner": weight(150, 150, 1, 1), "last": weight(9, 150, 1, 1)
    }  # fmt: skip
    x = array(3, 6, 9, 8) + 1
    assert check(model_of(nodes, {"x": x}, constants, opset=22), {"x": x}) == set("mpzy")


@pytest.mark.parametrize(("images", "factors"), [(3, 1), (1, 3)])
def test_factors_for_other_numbers_of_images(images, factors):
    nodes = [
        node("Conv", "x first", "a"), node("Mul", "a f", "m"), node("Conv", "m last", "y"),
    ]  # fmt: skip
    feeds = {"x": array(images, 6, 5, 4), "f": array(factors, 18, 1, 1)}
    constants = {"first": weight(18, 6, 1, 1), "last": weight(3, 18, 1, 1)}
    assert check(model_of(nodes, feeds, constants, opset=22), feeds) == set("amy")


OTHERS = {
    # Readers or writers that know no other order, and convolutions that have none.
    "Softmax": [node("Softmax", "a", "m", axis=3)],
    "Transpose": [node("Transpose", "a", "m", perm=[0, 1, 3, 2])],
    "groups": [node("Conv", "a w", "m", group=4)],
    "padding": [node("Conv", "a v", "m", pads=[0, 0, 0, 40], group=8)],
    "stride": [node("Conv", "a v", "m", strides=[5, 1], group=8)],
    "indices": [node("MaxPool", "a", "m indices", kernel_shape=[2, 2]),
                node("ReduceMax", "indices", "unread")],
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_values_of_others_are_plain(kind):
    names = {n for other in OTHERS[kind] for n in other.input}
    weights = {"w": weight(8, 2, 1, 1), "v": weight(8, 1, 1, 1)}
    constants = {"channels": 8} | {n: v for n, v in weights.items() if n in names}
    x = array(1, 3, 12, 10)
    assert check(between(x.shape, OTHERS[kind], constants, 8), {"x": x}) == set()


def test_results_of_the_model_and_values_with_other_readers_are_plain():
    nodes = [
        node("Conv", "x first", "a"), node("Conv", "a second", "b"), node("Conv", "b third", "y"),
        node("Abs", "a", "z"),
    ]  # fmt: skip
    constants = {name: weight(4, 4, 1, 1) for name in ("first", "second", "third")}
    x = array(1, 4, 6, 5)
    assert check(model_of(nodes, {"x": x}, constants, ["y", "z"]), {"x": x}) == set("by")
    assert check(model_of(nodes[:3], {"x": x}, constants, ["y", "a", "b"]), {"x": x}) == set()


def test_branches_with_equal_names_and_a_value_that_they_read():
    """A plan is of one graph: names repeat in the branches of an If."""

    def branch(kernel: int) -> onnx.GraphProto:
        w = {"v": weight(6, 4, kernel, kernel), "w": weight(2, 6, 1, 1)}
        nodes = [node("Conv", "a v", "h", pads=[kernel // 2] * 4), node("Conv", "h w", "out")]
        if kernel == 1:
            nodes.append(node("Abs", "h", "unread"))
        out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
        tensors = [onnx.numpy_helper.from_array(value, name) for name, value in w.items()]
        return helper.make_graph(nodes, "branch", [], [out], tensors)

    nodes = [
        node("Conv", "x first", "c"), node("Conv", "c second", "a"),
        helper.make_node("If", ["which"], ["y"], "if", then_branch=branch(3),
                         else_branch=branch(1)),
    ]  # fmt: skip
    feeds = {"x": array(1, 3, 8, 7), "which": np.array(True)}
    constants = {"first": weight(5, 3, 1, 1), "second": weight(4, 5, 1, 1)}
    model = model_of(nodes, feeds, constants, opset=22)
    assert {"c", "a", "h", "out"} == check(model, feeds, feeds | {"which": np.array(False)})


def test_sizes_that_only_a_run_knows():
    """Ranks of intermediate values follow from those of the weights."""
    constants = {"channels": 16, "w": weight(20, 16, 3, 3)}
    conv = node("Conv", "a w", "m", pads=[1] * 4)
    model = between((1, 6, 9, 9), [conv], constants, 20, dynamic=True)
    shapes = [(2, 6, 9, 5), (1, 6, 1, 1), (0, 6, 3, 3), (1, 6, 40, 31)]
    assert check(model, *({"x": array(*shape)} for shape in shapes)) == set("amy")
    session = npu_session(model)
    for shape in ((1, 5, 9, 9), (1, 7, 3, 3)):
        with pytest.raises(Exception, match=r"\[Conv\] expected W \[M, C / group, kernel\]"):
            session.run(None, {"x": array(*shape)})
    narrow = between((1, 6, 9, 9), [node("Conv", "a w", "m")], constants, 20, dynamic=True)
    with pytest.raises(Exception, match=r"\[Conv\] expected"):
        npu_session(narrow).run(None, {"x": array(1, 6, 2, 9)})


def test_options():
    """Replays, operators that are left to the CPU, and no fusion at all."""
    constants = {"channels": 16, "w": weight(20, 16, 3, 3)}
    model = between((1, 6, 9, 9), [node("Conv", "a w", "m")], constants, 20)
    feeds = {"x": array(1, 6, 9, 9)}
    assert check(model, feeds, cpu_operators="Conv") == set()
    assert check(model, feeds, fusion="0") == set()
    session = npu_session(model, without_optimizations(), enable_npu_graph="1")
    assert chained(session) == set("amy")
    expected = ort.InferenceSession(model, providers=[CPU]).run(None, feeds)[0]
    y = ort.OrtValue.ortvalue_from_shape_and_type(list(expected.shape), TensorProto.FLOAT, "npu")
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime_npu.ortvalue_from_numpy(feeds["x"]))
    binding.bind_ortvalue_output("y", y)
    for _ in range(3):
        session.run_with_iobinding(binding)
        got = onnxruntime_npu.ortvalue_to_numpy(y)
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


# Of convolutions of 3 × 3 taps with many channels: height and width, attributes.
SHARED_TILES = {
    "even": ((8, 6), {"pads": [1, 1, 1, 1]}),
    "odd": ((7, 9), {"pads": [1, 1, 1, 1]}),
    "without padding": ((9, 8), {}),
    "few outputs": ((3, 4), {}),
    "uneven padding": ((6, 7), {"pads": [0, 3, 2, 1]}),
    "more padding than image": ((2, 1), {"pads": [4, 5, 3, 4]}),
    "many tiles": ((40, 38), {"pads": [1, 1, 1, 1]}),
}


@pytest.mark.parametrize("channels, out", [(16, 16), (37, 51), (64, 24)])
@pytest.mark.parametrize("kind", SHARED_TILES)
def test_convolutions_whose_outputs_share_tiles(kind, channels, out):
    size, attributes = SHARED_TILES[kind]
    constants = {"channels": channels, "w": weight(out, channels, 3, 3), "b": array(out)}
    x = array(2, 6, *size)
    conv = node("Conv", "a w b", "m", **attributes)
    assert check(between(x.shape, [conv], constants, out), {"x": x}) == set("amy")


def shared_tiles(x: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
    """The results of this convolution behind an identity, channels last and of the CPU provider."""
    nodes = [node("Conv", "x before", "a"), node("Conv", "a w", "y", pads=[1, 1, 1, 1])]
    before = np.eye(x.shape[1], dtype=np.float32)[..., None, None]
    model = model_of(nodes, {"x": x}, {"w": w, "before": before}, opset=22)
    session = npu_session(model, without_optimizations())
    assert chained(session) == set("ay")
    cpu = ort.InferenceSession(model, without_optimizations(), providers=[CPU])
    return [s.run(None, {"x": x})[0] for s in (session, cpu)]


def test_outputs_that_share_tiles_read_no_other_pixels():
    """What is infinite or no number reaches the outputs that read it, and no other."""
    x = array(2, 24, 9, 10)
    x[0, 3, 0, 9], x[0, 5, 4, 4], x[1, 20, 8, 1] = np.inf, np.nan, -np.inf
    got, expected = shared_tiles(x, abs(weight(40, 24, 3, 3)) + 0.1)
    finite = np.isfinite(expected)
    assert 0 < (~finite).sum() < finite.size / 2
    np.testing.assert_array_equal(np.isfinite(got), finite)
    np.testing.assert_allclose(got[finite], expected[finite], rtol=2e-5, atol=2e-5)


def test_large_pixels_whose_differences_overflow():
    x = np.where(array(1, 24, 9, 10) > 0, np.float32(3e38), np.float32(-3e38))
    got, expected = shared_tiles(x, weight(40, 24, 3, 3) / 100)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * 3e36)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
def test_a_weight_that_is_infinite_or_nearly_so_reaches_its_own_channel(value):
    x, w = abs(array(1, 24, 9, 10)) * 0.1 + 0.1, weight(40, 24, 3, 3)
    w[7, 9, 1, 1] = value
    got, expected = shared_tiles(x, w)
    others = np.arange(40) != 7
    np.testing.assert_allclose(got[:, others], expected[:, others], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(got[:, 7], expected[:, 7], rtol=2e-5)
