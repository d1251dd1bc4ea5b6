"""Conv and ConvTranspose against torch's CPU convolution, in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from onnx_nodes import (
    FLOATS,
    Node,
    make_model,
    make_session,
    npu_nodes,
    random,
    run_npu,
    run_session,
)

# (input shape, weight shape, attributes)
CASES = [
    ((2, 3, 17), (4, 3, 5), {"strides": [2], "pads": [3, 1]}),
    ((1, 4, 9), (6, 2, 3), {"group": 2, "dilations": [3], "pads": [0, 4]}),
    ((2, 3, 9, 11), (8, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 3, 9, 11), (5, 3, 2, 4), {"pads": [0, 3, 2, 1], "strides": [2, 3]}),
    ((1, 5, 12, 10), (7, 5, 3, 2), {"dilations": [2, 3], "strides": [1, 2]}),
    ((3, 16, 7, 5), (24, 16, 1, 1), {}),  # without columns
    ((2, 16, 8, 6), (24, 16, 1, 1), {"strides": [2, 2]}),
    ((1, 8, 6, 6), (12, 2, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    ((2, 6, 9, 8), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),  # depthwise
    ((2, 3, 9, 8), (6, 1, 5, 2), {"group": 3, "pads": [4, 2, 0, 1], "strides": [2, 2]}),
    ((1, 2, 6, 7), (2, 1, 3, 3), {"group": 2, "dilations": [2, 2], "strides": [3, 1]}),
    ((1, 1, 8, 8), (3, 1, 3, 3), {}),  # one channel
    ((2, 64, 9, 7), (64, 1, 3, 5), {"group": 64, "pads": [0, 2, 1, 3], "dilations": [2, 1]}),
    ((2, 20, 7, 7), (20, 1, 5, 5), {"group": 20, "pads": [2, 2, 2, 2]}),  # a block and a part
    ((3, 6, 15, 13), (18, 1, 7, 7), {"group": 6, "pads": [3, 0, 1, 3], "strides": [2, 1]}),
    ((1, 17, 70, 61), (17, 1, 5, 3), {"group": 17, "pads": [2, 1, 2, 1]}),  # several parts of lines
    ((2, 18, 21), (18, 1, 5), {"group": 18, "pads": [1, 3], "strides": [2]}),
    ((1, 2, 3, 3), (2, 2, 1, 1), {"pads": [4, 0, 3, 2]}),  # more padding than kernel
    ((1, 2, 2, 9), (2, 2, 1, 3), {"pads": [0, 9, 0, 9], "dilations": [1, 7]}),
    ((1, 3, 5, 6, 7), (4, 3, 2, 3, 2), {"pads": [1, 0, 1, 0, 2, 1], "strides": [2, 1, 2]}),
    ((1, 4, 4, 5, 6), (4, 1, 3, 3, 3), {"group": 4, "pads": [1, 1, 1, 1, 1, 1]}),
    ((1, 64, 40, 40), (32, 64, 3, 3), {"pads": [1, 1, 1, 1]}),  # several pieces of columns
    ((1, 320, 14, 14), (48, 320, 3, 3), {"pads": [1, 1, 1, 1]}),
]
# Sums in float32 of terms of up to 1 in another order, and one rounding of the result.
ROUNDING = {"float64": 1e-14, "float32": 2.0**-22, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def reference(x, w, b, attributes: dict) -> np.ndarray:
    """The result in float64; torch's padding is symmetric, so the input is padded first."""
    rank = x.ndim - 2
    pads = attributes.get("pads", [0] * 2 * rank)
    margins = [side for d in reversed(range(rank)) for side in (pads[d], pads[d + rank])]
    wide = [None if a is None else torch.from_numpy(a.astype(np.float64)) for a in (x, w, b)]
    return torch.nn.functional.__dict__[f"conv{rank}d"](
        torch.nn.functional.pad(wide[0], margins),
        wide[1],
        wide[2],
        attributes.get("strides", 1),
        0,
        attributes.get("dilations", 1),
        attributes.get("group", 1),
    ).numpy()


def tolerance(w: np.ndarray, dtype: str) -> float:
    """Rounding of the partial sums, as many as the window has terms, and of the result."""
    terms = math.prod(w.shape[1:])
    return terms * ROUNDING["float64" if dtype == "float64" else "float32"] + ROUNDING[dtype] * 8


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape, kernel, attributes", CASES, ids=str)
def test_conv(shape, kernel, attributes, dtype) -> None:
    rng = np.random.default_rng(1)
    bound = 1 / math.sqrt(math.prod(kernel[1:]))  # sums of about 1
    x, w = random(rng, dtype, *shape, low=-1, high=1), random(rng, dtype, *kernel, low=-1, high=1)
    w = (w.astype(np.float64) * bound).astype(w.dtype)
    b = random(rng, dtype, kernel[0], low=-1, high=1)
    for bias in (None, b):
        got = run_npu("Conv", [x, w, bias], opset=22, kernel_shape=kernel[2:], **attributes)[0]
        expected = reference(x, w, bias, attributes)
        assert got.dtype == x.dtype and got.shape == expected.shape
        np.testing.assert_allclose(
            got.astype(np.float64), expected, rtol=0, atol=tolerance(w, dtype)
        )


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_auto_pad_of_conv(mode, stride) -> None:
    rng = np.random.default_rng(2)
    x, w = random(rng, "float32", 1, 2, 10, 7), random(rng, "float32", 3, 2, 4, 3)
    pads = [0, 0, 0, 0]
    if mode != "VALID":
        for d, (n, k) in enumerate(((10, 4), (7, 3))):
            whole = max(0, (math.ceil(n / stride) - 1) * stride + k - n)
            less = whole // 2
            pads[d], pads[d + 2] = (
                (less, whole - less) if mode == "SAME_UPPER" else (whole - less, less)
            )
    got = run_npu("Conv", [x, w], auto_pad=mode, strides=[stride, stride])[0]
    expected = reference(x, w, None, {"pads": pads, "strides": [stride, stride]})
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=0, atol=24 * 16 * 2.0**-22)


def test_conv_of_infinite_values_and_nan_reads_no_padding() -> None:
    x = np.full((1, 1, 1, 5), np.inf, np.float32)
    w = np.ones((1, 1, 1, 3), np.float32)
    assert np.isposinf(run_npu("Conv", [x, w], pads=[0, 1, 0, 1])[0]).all()
    x = np.zeros((1, 2, 1, 5), np.float32)
    x[0, 1, 0, 2] = np.nan
    w = np.ones((1, 2, 1, 3), np.float32)
    got = run_npu("Conv", [x, w], pads=[0, 1, 0, 1])[0]
    assert np.isnan(got[0, 0, 0]).tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("shape, kernel, attributes", CASES, ids=str)
def test_padding_of_conv_is_zero_in_used_memory(shape, kernel, attributes) -> None:
    rng = np.random.default_rng(5)
    x, w = random(rng, "float32", *shape), random(rng, "float32", *kernel)
    pads = attributes.get("pads", [0] * 2 * (x.ndim - 2))
    margins = [(0, 0), (0, 0), *zip(pads[: x.ndim - 2], pads[x.ndim - 2 :], strict=True)]
    padded = np.pad(x, margins)
    without = {**attributes, "kernel_shape": kernel[2:], "pads": [0] * len(pads)}
    # Planes of the same size, which leave NaN where the others have their padding.
    run_npu("Conv", [np.full_like(padded, np.nan), w], opset=22, **without)
    got = run_npu("Conv", [x, w], opset=22, kernel_shape=kernel[2:], **attributes)[0]
    np.testing.assert_array_equal(got, run_npu("Conv", [padded, w], opset=22, **without)[0])


@pytest.mark.parametrize("groups", [1, 2])
def test_conv_of_almost_nothing_but_padding_takes_no_memory_for_it(groups) -> None:
    huge = 2**30
    x, w = np.full((1, 2, 1, 1), 3, np.float32), np.ones((2, 2 // groups, 3, 3), np.float32)
    options = {"pads": [huge] * 4, "dilations": [huge, huge], "group": groups}
    assert run_npu("Conv", [x, w], **options)[0].ravel().tolist() == [6 / groups] * 2


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("images", [1, 3])
def test_conv_of_planes_with_few_positions_and_a_constant_weight(images, dtype) -> None:
    rng = np.random.default_rng(3)
    x = random(rng, dtype, images, 40, 7, 6, low=-1, high=1)
    w, b = random(rng, dtype, 64, 40, 3, 3, low=-1, high=1), random(rng, dtype, 64, low=-1, high=1)
    w = (w.astype(np.float64) / 20).astype(w.dtype)
    attributes = {"pads": [1, 1, 0, 2], "strides": [1, 2]}
    model = make_model("Conv", [x, w, b], constant=[1, 2], opset=22, **attributes)
    for dim, size in zip(model.graph.input[0].type.tensor_type.shape.dim, x.shape, strict=True):
        dim.dim_value = size  # the weight is packed when the planes' size is known
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "images"
    session = make_session(model)
    assert npu_nodes(session) == ["Conv"]
    got = run_session(session, {"x0": x})[0].astype(np.float64)
    np.testing.assert_allclose(
        got, reference(x, w, b, attributes), rtol=0, atol=tolerance(w, dtype)
    )


def test_empty_batch_of_conv() -> None:
    x, w = np.zeros((0, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32)
    assert run_npu("Conv", [x, w])[0].shape == (0, 4, 6, 6)


WRONG = [
    ((1, 4, 8, 8), (2, 3, 3, 3), (2,), {}, r"expected W \[M, C / group, kernel\] for C = 4"),
    ((1, 4, 8, 8), (3, 2, 3, 3), (3,), {"group": 2}, r"expected W \[M, C / group, kernel\]"),
    ((1, 4, 8, 8), (2, 4, 3, 3), (3,), {}, r"expected B of shape \[2\], got \[3\]"),
    ((1, 4, 8), (2, 4, 3, 3), (2,), {}, "W of the same rank"),
    ((1, 4, 8, 8), (2, 4, 3, 3), (2,), {"kernel_shape": [2, 2]}, "kernel_shape to be W's"),
    ((1, 4, 2, 8), (2, 4, 3, 3), (2,), {}, "expected a window that fits"),
    ((1, 4, 8, 8), (2, 4, 3, 3), (2,), {"strides": [0, 1]}, "expected strides from 1"),
    ((1, 4, 8, 8), (2, 4, 3, 3), (2,), {"pads": [-1, 0, 0, 0]}, "expected pads from 0"),
    ((1, 4, 8, 8), (2, 4, 3, 3), (2,), {"pads": [1]}, "expected 4 pads"),
    ((1, 4, 8, 8), (2, 4, 3, 3), (2,), {"dilations": [2**40, 1]}, "expected dilations from 1"),
    ((1, 4, 8, 8), (2, 4, 3, 3), (2,), {"group": 0}, "expected a group of 1 or more"),
    ((1, 4, 8, 8), (2, 4, 0, 3), (2,), {}, "expected a kernel with taps"),
]


@pytest.mark.parametrize("x, w, b, attributes, message", WRONG, ids=str)
def test_wrong_arguments_of_conv_are_refused(x, w, b, attributes, message) -> None:
    arrays = [np.ones(shape, np.float32) for shape in (x, w, b)]
    with pytest.raises(Exception, match=message):
        Node("Conv", arrays, **attributes)(*arrays)
    assert run_npu("Conv", [np.ones((1, 1, 3), np.float32)] * 2)[0].item() == 3


# (input shape, weight shape, attributes)
TRANSPOSED = [
    ((2, 4, 9), (4, 3, 5), {"strides": [2], "pads": [3, 1]}),
    ((1, 4, 7), (4, 3, 3), {"group": 2, "dilations": [3], "output_padding": [1], "strides": [2]}),
    ((2, 3, 5, 6), (3, 8, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 3, 5, 6), (3, 5, 2, 4), {"pads": [0, 3, 1, 1], "strides": [2, 3]}),
    ((1, 5, 4, 6), (5, 7, 3, 2), {"dilations": [2, 3], "strides": [1, 2]}),
    ((3, 16, 7, 5), (16, 24, 1, 1), {}),
    ((1, 8, 6, 6), (8, 3, 2, 2), {"group": 4, "strides": [2, 2]}),  # windows that do not overlap
    ((2, 6, 4, 5), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((1, 3, 3, 4, 3), (3, 4, 2, 3, 2), {"pads": [1, 0, 1, 0, 2, 1], "strides": [2, 1, 2]}),
    ((1, 64, 20, 20), (64, 32, 4, 4), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
]


def transposed_reference(x, w, b, attributes: dict) -> np.ndarray:
    """The result in float64: of the whole output, the part between the pads."""
    rank = x.ndim - 2
    pads = attributes.get("pads", [0] * 2 * rank)
    more = attributes.get("output_padding", [0] * rank)
    wide = [torch.from_numpy(a.astype(np.float64)) for a in (x, w)]
    strides, dilations = attributes.get("strides", [1] * rank), attributes.get("dilations", 1)
    whole = torch.nn.functional.__dict__[f"conv_transpose{rank}d"](
        *wide, None, strides, 0, 0, attributes.get("group", 1), dilations
    )
    # Output padding only makes the result longer, also beyond what any input reaches.
    margins = [m for d in reversed(range(rank)) for m in (-pads[d], more[d] - pads[d + rank])]
    y = torch.nn.functional.pad(whole, margins).numpy()
    return y if b is None else y + b.astype(np.float64).reshape(-1, *[1] * rank)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape, kernel, attributes", TRANSPOSED, ids=str)
def test_conv_transpose(shape, kernel, attributes, dtype) -> None:
    rng = np.random.default_rng(1)
    x, w = random(rng, dtype, *shape, low=-1, high=1), random(rng, dtype, *kernel, low=-1, high=1)
    w = (w.astype(np.float64) / math.sqrt(shape[1])).astype(w.dtype)
    b = random(rng, dtype, kernel[1] * attributes.get("group", 1), low=-1, high=1)
    for bias in (None, b):
        got = run_npu("ConvTranspose", [x, w, bias], opset=22, **attributes)[0]
        expected = transposed_reference(x, w, bias, attributes)
        assert got.dtype == x.dtype and got.shape == expected.shape
        terms = shape[1] * math.prod(kernel[2:])  # of a sum, at most
        near = terms * ROUNDING["float64" if dtype == "float64" else "float32"]
        np.testing.assert_allclose(
            got.astype(np.float64), expected, rtol=0, atol=near + 8 * ROUNDING[dtype]
        )


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "NOTSET"])
@pytest.mark.parametrize("size", [None, [9, 12], [10, 11]])
def test_sizes_of_conv_transpose(size, mode) -> None:
    rng = np.random.default_rng(2)
    x, w = random(rng, "float32", 1, 2, 5, 6), random(rng, "float32", 2, 3, 3, 4)
    options = {"strides": [2, 2], "auto_pad": mode, **({"output_shape": size} if size else {})}
    pads = [0] * 4
    wanted = size or ([10, 12] if mode != "NOTSET" else None)
    for d, (n, k) in enumerate(((5, 3), (6, 4))):
        if wanted is not None:
            cut = (n - 1) * 2 + k - wanted[d]
            less = cut // 2
            pads[d], pads[d + 2] = (
                (less, cut - less) if mode == "SAME_UPPER" else (cut - less, less)
            )
    got = run_npu("ConvTranspose", [x, w], **options)[0]
    expected = transposed_reference(x, w, None, {"pads": pads, "strides": [2, 2]})
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=0, atol=24 * 16 * 2.0**-22)


WRONG_TRANSPOSED = [
    ((1, 4, 8, 8), (3, 2, 3, 3), (2,), {}, r"expected W \[C, M / group, kernel\] for C = 4"),
    ((1, 4, 8, 8), (4, 2, 3, 3), (3,), {}, r"expected B of shape \[2\], got \[3\]"),
    ((1, 4, 8, 8), (4, 2, 3, 3), (2,), {"group": 3}, "group = 3"),
    ((1, 4, 8, 8), (4, 2, 3, 3), (2,), {"pads": [9, 9, 9, 9]}, "output with elements"),
    ((1, 4, 8, 8), (4, 2, 3, 3), (2,), {"output_padding": [-1, 0]}, "output_padding from 0"),
    ((1, 4, 8, 8), (4, 2, 3, 3), (2,), {"strides": [2**40, 1]}, "strides from 1"),
    ((1, 4, 8, 8), (4, 2, 3, 3), (2,), {"output_shape": [1, 2, 3]}, "output_shape of 2"),
    ((1, 4, 0, 8), (4, 2, 3, 3), (2,), {}, "spatial dimensions with elements"),
]


@pytest.mark.parametrize("x, w, b, attributes, message", WRONG_TRANSPOSED, ids=str)
def test_wrong_arguments_of_conv_transpose_are_refused(x, w, b, attributes, message) -> None:
    arrays = [np.ones(shape, np.float32) for shape in (x, w, b)]
    with pytest.raises(Exception, match=message):
        model = make_model("ConvTranspose", arrays, any_rank=True, **attributes)
        del model.graph.value_info[:]
        make_session(model).run(None, dict(zip(("x0", "x1", "x2"), arrays, strict=True)))
    assert run_npu("ConvTranspose", [np.ones((1, 1, 1), np.float32)] * 2)[0].item() == 1


# (image, block, attributes)
FOLDS = [
    ((5, 6), (2, 3), {}),
    ((7, 5), (3, 2), {"strides": [2, 1], "pads": [1, 0, 1, 0]}),
    ((8, 9), (2, 3), {"dilations": [3, 2], "pads": [0, 2, 0, 2], "strides": [1, 2]}),
]


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "int64"])
@pytest.mark.parametrize("image, block, attributes", FOLDS, ids=str)
def test_col2im(image, block, attributes, dtype) -> None:
    how = {name: attributes.get(name, [1, 1]) for name in ("strides", "dilations")}
    pads = attributes.get("pads", [0] * 4)
    fold = torch.nn.Fold(image, block, how["dilations"], pads[:2], how["strides"])
    ones = torch.ones(1, 1, *image)
    unfold = torch.nn.Unfold(block, how["dilations"], pads[:2], how["strides"])
    x = random(np.random.default_rng(5), dtype, 2, 3 * math.prod(block), unfold(ones).shape[2])
    inputs = [x, np.array(image), np.array(block)]
    got = run_npu("Col2Im", inputs, opset=18, **attributes)[0]
    expected = fold(torch.from_numpy(x.astype(np.float64))).numpy()
    unit = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
    # Up to 6 values below 4 are added, with a rounding each.
    np.testing.assert_allclose(
        got.astype(np.float64), expected, rtol=0, atol=6 * 24 * unit.get(dtype, 0)
    )


def test_col2im_of_other_dimensions() -> None:
    x = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    got = run_npu("Col2Im", [x, np.array([6]), np.array([3])], opset=18)[0]
    expected = [sum(x[0, k, p - k] for k in range(3) if 0 <= p - k < 4) for p in range(6)]
    assert got.tolist() == [[expected]]


def test_wrong_arguments_of_col2im_are_refused() -> None:
    x, image, block = np.ones((1, 4, 9), np.float32), np.array([4, 4]), np.array([2, 2])
    node = Node("Col2Im", [x, image, block], opset=18)
    assert node(x, image, block)[0].shape == (1, 1, 4, 4)
    for wrong in (x[:, :3], x[..., :8], x[0]):
        with pytest.raises(Exception, match=r"expected an input \[N, C \* 4, 9\]"):
            node(wrong, image, block)
    with pytest.raises(Exception, match="as many spatial dimensions"):
        node(x, image, np.array([2]))
    for size in (0, -1, 2**40):
        with pytest.raises(Exception, match="sizes of images and blocks from 1"):
            node(x, np.array([4, size]), block)
    with pytest.raises(Exception, match="a block that fits the padded image"):
        node(x, image, np.array([2, 5]))


def deform_conv(x, w, offset, bias, mask, how: dict) -> np.ndarray:
    """Every sample of every tap, read between pixels, by the definition, in double."""
    (batch, channels, rows, columns), (out, _, kh, kw) = x.shape, w.shape
    groups, sets = how.get("group", 1), how.get("offset_group", 1)
    (top, left), (down, across) = how.get("pads", [0] * 4)[:2], how.get("strides", [1, 1])
    gap_y, gap_x = how.get("dilations", [1, 1])
    height, width = offset.shape[2:]
    moves = offset.reshape(batch, sets, kh, kw, 2, height, width)
    counts = np.ones((batch, sets, kh, kw, height, width)) if mask is None else mask
    counts = counts.reshape(batch, sets, kh, kw, height, width)
    padded = np.pad(x, [(0, 0), (0, 0), (1, 2), (1, 2)])  # what is outside counts 0
    y = np.zeros((batch, out, height, width)) + (0 if bias is None else bias[:, None, None])
    for n, m, i, j, oh, ow in np.ndindex(batch, out, kh, kw, height, width):
        for c in range(channels // groups):
            channel = m // (out // groups) * (channels // groups) + c
            s = channel // (channels // sets)
            py = oh * down - top + i * gap_y + moves[n, s, i, j, 0, oh, ow]
            px = ow * across - left + j * gap_x + moves[n, s, i, j, 1, oh, ow]
            if not (-1 < py < rows and -1 < px < columns):
                continue
            r, q = math.floor(py), math.floor(px)
            near = padded[n, channel, r + 1 : r + 3, q + 1 : q + 3]
            value = np.array([1 - (py - r), py - r]) @ near @ np.array([1 - (px - q), px - q])
            y[n, m, oh, ow] += w[m, c, i, j] * value * counts[n, s, i, j, oh, ow]
    return y


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("full", [False, True])
def test_deform_conv(full, dtype) -> None:
    rng = np.random.default_rng(8)
    how = {
        "group": 2,
        "offset_group": 4,
        "pads": [1, 0, 2, 1],
        "strides": [2, 1],
        "dilations": [1, 2],
    }
    how = how if full else {}
    size = (4, 2) if full else (5, 4)  # of the result of 6 by 5 pixels
    sets, groups = (4, 2) if full else (1, 1)
    x, w = random(rng, dtype, 2, 4, 6, 5), random(rng, dtype, 4, 4 // groups, 2, 2 + full)
    taps = sets * 2 * (2 + full)
    if full:
        size = ((6 + 3 - 2) // 2 + 1, 5 + 1 - 5 + 1)
    offset = random(rng, dtype, 2, 2 * taps, *size, low=-2, high=2)
    bias = random(rng, dtype, 4) if full else None
    mask = random(rng, dtype, 2, taps, *size, low=0, high=1) if full else None
    got = run_npu("DeformConv", [x, w, offset, bias, mask], opset=22, **how)[0]
    wide = [None if a is None else a.astype(np.float64) for a in (x, w, offset, bias, mask)]
    expected = deform_conv(*wide, how)
    assert got.dtype == x.dtype and got.shape == expected.shape
    # Up to 16 products below 16, and one rounding of their sum.
    bits = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}[dtype]
    unit = 2.0**-bits
    near = 16 * 16 * (min(unit, 2.0**-24) * 16) + unit * np.abs(expected).max()
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=near)


def test_wrong_arguments_of_deform_conv_are_refused() -> None:
    x, w = np.ones((1, 4, 5, 5), np.float32), np.ones((2, 4, 2, 2), np.float32)
    offset, mask = np.zeros((1, 8, 4, 4), np.float32), np.ones((1, 4, 4, 4), np.float32)
    node = Node("DeformConv", [x, w, offset, None, mask], opset=22)
    assert (node(x, w, offset, None, mask)[0] == 16).all()
    for bad in (np.nan, np.inf, 1e30):
        node(x, w, offset + np.float32(bad), None, mask)  # reads nothing
    with pytest.raises(Exception, match=r"offset of shape \[1, 8, 4, 4\]"):
        node(x, w, offset[:, :7], None, mask)
    with pytest.raises(Exception, match=r"mask of shape \[1, 4, 4, 4\]"):
        node(x, w, offset, None, mask[..., :3])
    with pytest.raises(Exception, match=r"W \[M, C / group, kernel\]"):
        node(x, w[:, :3], offset, None, mask)
    for sets in (0, 3, 2**40):
        with pytest.raises(Exception, match="offset_group"):
            run_npu("DeformConv", [x, w, offset], opset=22, offset_group=sets)
