"""Resize against onnx's reference implementation in float64, and against torch's CPU kernels."""

from __future__ import annotations

import numpy as np
import onnxruntime_npu
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_nodes import (
    FIXED_WIDTH,
    FLOATS,
    Node,
    assert_close,
    make_model,
    make_session,
    npu_nodes,
    random,
    run_cpu,
    run_npu,
)

TRANSFORMATIONS = [
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
]
# (shape, scales or sizes)
TARGETS = [
    ((1, 2, 5, 7), [1, 1, 2, 3]),
    ((2, 1, 6, 9), [1.0, 1.0, 0.5, 0.4]),
    ((2, 3, 5), [1.0, 2.5, 0.6]),
    ((1, 1, 4, 3, 5), [1, 1, 0.75, 1.5, 2]),
    ((8, 300), [1.5, 1.0]),
]
SIZES = [((1, 2, 5, 7), (1, 2, 3, 11)), ((3, 8), (5, 2)), ((2, 600, 3), (4, 250, 3))]


# The reference computes cubic weights in float32; torch's results are compared more tightly.
CUBIC = 2e-5


def lists(target, by: str):
    """The inputs roi, scales and sizes of a node."""
    if by == "sizes":
        return [None, None, np.array(target, np.int64)]
    return [None, np.array(target, np.float32)]


def reference(x: np.ndarray, inputs, **attributes) -> np.ndarray:
    """The result of onnx's reference implementation, computed in float64."""
    wide = x.astype(np.float64)
    names = [f"x{i}" if a is not None else "" for i, a in enumerate([x, *inputs])]
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), None)
        for name, a in zip(names, [wide, *inputs], strict=True)
        if a is not None
    ]
    node = helper.make_node("Resize", names, ["y"], **attributes)
    result = helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)
    graph = helper.make_graph([node], "g", values, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    feeds = {n: a for n, a in zip(names, [wide, *inputs], strict=True) if a is not None}
    return ReferenceEvaluator(model).run(None, feeds)[0]


def resize(x: np.ndarray, inputs, **attributes) -> np.ndarray:
    """The result of the NPU; the lists are constants, as in models."""
    constant = [i + 1 for i, a in enumerate(inputs) if a is not None]
    return run_npu("Resize", [x, *inputs], opset=19, constant=constant, **attributes)[0]


def check(x: np.ndarray, inputs, dtype: str, **attributes) -> None:
    """Compares sums of a few terms that may cancel, within the rounding of the terms."""
    got, wanted = resize(x, inputs, **attributes), inputs
    if attributes.get("coordinate_transformation_mode") == "align_corners":
        wanted = [None, None, np.array(got.shape)]  # the reference aligns fractions of elements
    expected = reference(x, wanted, **attributes)
    if dtype not in FLOATS or attributes.get("mode", "nearest") == "nearest":
        assert_close(got, expected.astype(x.dtype), dtype)
        return
    assert got.dtype == x.dtype and got.shape == expected.shape
    # 16-bit results are rounded once; the sums are computed in float32 or float64.
    near = {"float32": 4e-6, "float64": 1e-14, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    if attributes["mode"] == "cubic":
        near = max(near, CUBIC)
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=near)


@pytest.mark.parametrize(
    "by, case", [("scales", c) for c in TARGETS] + [("sizes", c) for c in SIZES]
)
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_modes(mode, transformation, by, case) -> None:
    shape, target = case
    x = random(np.random.default_rng(1), "float32", *shape)
    inputs = lists(target, by)
    options = dict(mode=mode, coordinate_transformation_mode=transformation)
    if mode == "nearest":
        for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
            check(x, inputs, "float32", nearest_mode=rounding, **options)
        return
    check(x, inputs, "float32", **options)
    check(x, inputs, "float32", exclude_outside=1, **options)
    check(x, inputs, "float32", cubic_coeff_a=-0.5, **options)
    if by == "scales" and transformation == "align_corners":
        return  # the width of the filter is that of the scale
    check(x, inputs, "float32", antialias=1, **options)
    check(x, inputs, "float32", antialias=1, exclude_outside=1, **options)


@pytest.mark.parametrize("dtype", FIXED_WIDTH)
def test_nearest_of_every_dtype(dtype) -> None:
    x = random(np.random.default_rng(2), dtype, 2, 3, 5, low=-90, high=90)
    check(x, lists([1, 2.0, 0.6], "scales"), dtype)
    check(x, lists([1, 4, 9], "sizes"), dtype, coordinate_transformation_mode="align_corners")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_interpolation_of_every_float_dtype(mode, dtype) -> None:
    x = random(np.random.default_rng(3), dtype, 2, 3, 9, 270, low=-1, high=1)
    for target in ([1, 1, 2, 1], [1, 1, 0.4, 0.5], [1, 1, 1, 1.5], [2, 1, 1.5, 1]):
        check(x, lists(target, "scales"), dtype, mode=mode)
        check(x, lists(target, "scales"), dtype, mode=mode, antialias=1)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("axes", [[2, 3], [3, 2], [-1], [0, -2]])
def test_axes_and_policies(axes, mode) -> None:
    x = random(np.random.default_rng(4), "float32", 2, 3, 6, 8)
    positive = [a % 4 for a in axes]  # the reference accepts no others
    sizes = [None, None, np.array([9, 5][: len(axes)], np.int64)]
    for policy in ("stretch", "not_larger", "not_smaller"):
        options = dict(mode=mode, keep_aspect_ratio_policy=policy)
        got = resize(x, sizes, axes=axes, **options)
        expected = reference(x, sizes, axes=positive, **options)
        np.testing.assert_allclose(got, expected, rtol=0, atol=CUBIC)


@pytest.mark.parametrize("roi_type", ["float32", "float16", "float64"])
@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_crops(mode, roi_type) -> None:
    x = random(np.random.default_rng(5), "float32", 1, 2, 6, 8)
    roi = np.array([0, 0, 0.25, -0.5, 1, 1, 0.75, 1.25], roi_type)
    inputs = [roi, None, np.array([1, 2, 5, 9], np.int64)]
    for value in (0.0,) if mode == "nearest" else (0.0, 10.0):
        options = dict(mode=mode, extrapolation_value=value)
        check(x, inputs, "float32", coordinate_transformation_mode="tf_crop_and_resize", **options)


@pytest.mark.parametrize("mode, torch_mode", [("linear", "bilinear"), ("cubic", "bicubic")])
@pytest.mark.parametrize("size", [(3, 4), (20, 5), (40, 33)])
def test_antialias_matches_torch(mode, torch_mode, size) -> None:
    x = random(np.random.default_rng(6), "float64", 2, 3, 17, 13)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(x), size, mode=torch_mode, antialias=True
    ).numpy()
    # As in Pillow: the cubic coefficient is -0.5, and pixels outside the image are excluded.
    sizes = [None, None, np.array((2, 3, *size), np.int64)]
    got = resize(x, sizes, mode=mode, antialias=1, cubic_coeff_a=-0.5, exclude_outside=1)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("mode, torch_mode", [("linear", "bilinear"), ("cubic", "bicubic")])
@pytest.mark.parametrize("size", [(3, 4), (20, 5), (40, 33)])
def test_interpolation_matches_torch(mode, torch_mode, size) -> None:
    x = random(np.random.default_rng(7), "float64", 2, 3, 17, 13)
    sizes = [None, None, np.array((2, 3, *size), np.int64)]
    for aligned in (False, True):
        expected = torch.nn.functional.interpolate(
            torch.from_numpy(x), size, mode=torch_mode, align_corners=aligned
        ).numpy()
        transformation = "align_corners" if aligned else "half_pixel"
        got = resize(x, sizes, mode=mode, coordinate_transformation_mode=transformation)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("mode, torch_mode", [("linear", "bilinear"), ("cubic", "bicubic")])
def test_corners_of_a_fractional_size_are_those_that_torch_aligns(mode, torch_mode) -> None:
    """torch.onnx exports scale_factor as constant scales."""
    x = random(np.random.default_rng(7), "float32", 1, 2, 8, 9, low=-1, high=1)
    with torch.no_grad():
        expected = torch.nn.functional.interpolate(
            torch.from_numpy(x), scale_factor=(1.7, 0.7), mode=torch_mode, align_corners=True
        ).numpy()
    scales = np.array([1, 1, 1.7, 0.7], np.float32)
    options = {"mode": mode, "coordinate_transformation_mode": "align_corners"}
    got = resize(x, [None, scales], **options)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6)  # weights in float32


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crops_to_a_fractional_size_are_those_of_the_cpu_provider(mode) -> None:
    x = random(np.random.default_rng(8), "float32", 1, 2, 8, 9, low=-1, high=1)
    roi = np.array([0, 0, 0.1, 0.2, 1, 1, 0.8, 0.9], np.float32)
    inputs = [x, roi, np.array([1, 1, 1.7, 0.6], np.float32)]
    options = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize"}
    options |= {"opset": 19, "constant": (1, 2)}
    expected = run_cpu("Resize", inputs, **options)[0]
    np.testing.assert_allclose(run_npu("Resize", inputs, **options)[0], expected, atol=2e-6)


def test_corners_are_not_aligned_by_scales_that_are_no_constant() -> None:
    inputs = [np.ones((1, 1, 4, 4), np.float32), None, np.ones(4, np.float32)]
    options = {"coordinate_transformation_mode": "align_corners", "opset": 19}
    assert npu_nodes(make_session(make_model("Resize", inputs, **options))) == []
    assert npu_nodes(make_session(make_model("Resize", inputs, constant=[2], **options)))


def test_empty_images() -> None:
    for shape in ((0, 2, 3), (2, 0, 3)):
        x = np.zeros(shape, np.float32)
        for mode in ("nearest", "linear"):
            y = resize(x, lists([1, 1, 2], "scales"), mode=mode)
            assert y.shape == (*shape[:2], 6)
    y = resize(np.ones((2, 3), np.float32), lists([2, 0], "sizes"), mode="cubic")
    assert y.shape == (2, 0)


X = np.ones((2, 3), np.float32)
NAN = float("nan")
REFUSED = r"expected|overflow|memory|size"


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "scales",
    [[1, 0], [1, -1], [1, NAN], [1, np.inf], [1e30, 1], [3e18, 3e18], [1e12, 1e12], [1], [1, 1, 1]],
    ids=str,
)
def test_hostile_scales(scales, mode) -> None:
    node = Node("Resize", [X, None, np.ones(2, np.float32)], opset=19, mode=mode)
    with pytest.raises(Exception, match=REFUSED):
        node(X, None, np.array(scales, np.float32))
    assert (node(X, None, np.array([1, 2], np.float32))[0] == np.ones((2, 6))).all()


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "sizes", [[2, -1], [2**62, 3], [2**62, 2**62], [-(2**63), 1], [2], [2, 3, 4]], ids=str
)
def test_hostile_sizes(sizes, mode) -> None:
    node = Node("Resize", [X, None, None, np.ones(2, np.int64)], opset=19, mode=mode)
    with pytest.raises(Exception, match=REFUSED):
        node(X, None, None, np.array(sizes, np.int64))
    assert (node(X, None, None, np.array([4, 3]))[0] == np.ones((4, 3))).all()


def test_empty_axis_cannot_grow() -> None:
    node = Node("Resize", [X, None, None, np.ones(2, np.int64)], opset=19, mode="linear")
    with pytest.raises(Exception, match="a size that axis 1 of 0 elements can have"):
        node(np.ones((2, 0), np.float32), None, None, np.array([2, 4]))


@pytest.mark.parametrize("roi", [[NAN] * 4, [np.inf, 0, -np.inf, 1], [1e30, -1e30, 1e30, 1e30]])
def test_hostile_roi(roi) -> None:
    for mode in ("linear", "cubic", "nearest"):
        inputs = [np.array(roi, np.float32), None, np.array([4, 5], np.int64)]
        y = resize(X, inputs, mode=mode, coordinate_transformation_mode="tf_crop_and_resize")
        assert y.shape == (4, 5)
        assert (y == 0).all()


def test_crop_without_bounds_is_an_error() -> None:
    options = dict(mode="linear", coordinate_transformation_mode="tf_crop_and_resize")
    node = Node("Resize", [X, np.ones(4, np.float32), np.ones(2, np.float32)], opset=19, **options)
    with pytest.raises(Exception, match="two bounds of roi for each of 2 axes, got 3"):
        node(X, np.ones(3, np.float32), np.ones(2, np.float32))


@pytest.mark.parametrize(
    "dtype, options, reason",
    [
        ("int32", {"mode": "linear"}, "floats"),
        ("uint8", {"mode": "cubic"}, "floats"),
        (
            "float32",
            {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 1.0},
            "extrapolation_value",
        ),
    ],
)
def test_unsupported_options_are_left_to_the_cpu(dtype, options, reason) -> None:
    x = np.ones((1, 1, 2, 2), dtype)
    inputs = [x, np.ones(8, np.float32), np.array([1, 1, 2, 2], np.float32)]
    session = make_session(make_model("Resize", inputs, opset=19, constant=[1, 2], **options))
    assert npu_nodes(session) == []
    assert any(reason in n["reason"] for n in onnxruntime_npu.assignment(session))


# Upsample, and Resize before version 11, take whole elements at `position / scale`.
OLD_FORMS = [("Upsample", 8), ("Upsample", 9), ("Resize", 10)]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("op_type, opset", OLD_FORMS)
def test_forms_before_version_11(op_type, opset, mode) -> None:
    x = random(np.random.default_rng(7), "float32", 2, 3, 5, 8)
    for scales in ([1, 1, 2, 3], [1, 1, 2.5, 1.0], [1, 1, 0.5, 0.6], [1, 1, 2.5, 0.6]):
        given = np.array(scales, np.float32)
        if op_type == "Upsample" and min(scales) < 1:
            continue  # onnx defines it for factors of at least 1
        if opset == 8:
            got = run_npu(op_type, [x], opset=opset, mode=mode, scales=given.tolist())[0]
        else:
            got = run_npu(op_type, [x, given], opset=opset, constant=[1], mode=mode)[0]
        # One axis after the other: the nearest sample is that before where it grows, as upsampling
        # repeats samples, and that behind where it shrinks.
        expected = x
        for axis, scale in enumerate(scales):
            only = np.ones(4, np.float32)
            only[axis] = scale
            nearest = "floor" if scale >= 1 else "ceil"
            expected = reference(
                expected,
                [None, only],
                coordinate_transformation_mode="asymmetric",
                nearest_mode=nearest,
                mode=mode,
            )
        np.testing.assert_allclose(got, expected, rtol=0, atol=4e-6)
        if opset == 10:
            on_cpu = run_cpu(op_type, [x, given], opset=opset, constant=[1], mode=mode)[0]
            np.testing.assert_allclose(got, on_cpu, rtol=0, atol=4e-6)


def test_forms_before_version_11_check_their_scales() -> None:
    x = np.ones((1, 1, 2, 2), np.float32)
    for scales in ([1, 1, 2], [1, 1, 0, 1], [1, 1, np.nan, 1], [1, 1, 1e30, 1e30]):
        with pytest.raises(Exception, match=r"\[(Upsample|Resize)\] |calar|scale|ize"):
            run_npu("Resize", [x, np.array(scales, np.float32)], opset=10)
