"""Every type of GGUF blocks that stays integers, against the package gguf's own dequantisation."""

from __future__ import annotations

import itertools

import gguf
import numpy as np
import pytest
import torch
from onnxruntime_npu.errors import ExportError
from onnxruntime_npu.exporter.checkpoint import load_checkpoint
from onnxruntime_npu.exporter.integers.gguf_blocks import bits_of, blocks_of, has_blocks
from onnxruntime_npu.exporter.integers.gguf_weights import integers_of
from onnxruntime_npu.exporter.integers.stored_linear import StoredLinear

from .test_gguf import write_gguf

# Where the halves of a block are: its scale, and its minimum if it has one.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}  # fmt: skip
DENORMAL = 2.0**-24  # the least of float16
EDGES = [0.0, -0.0, DENORMAL, -DENORMAL, 1000 * DENORMAL, 2.0**-14, 0.01, -0.75, 1.0, 60000.0]


def blocks(name, halves, rng):
    """Return a row of a block for each of the halves, with other bytes at random."""
    kind = gguf.GGMLQuantizationType[name]
    data = rng.integers(0, 256, (len(halves), gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    for at, values in zip(HALVES[name], np.array(halves, np.float16).T, strict=True):
        data[:, at : at + 2] = np.ascontiguousarray(values)[:, None].view(np.uint8)
    return kind, data


@pytest.mark.parametrize("kind", HALVES)
def test_blocks_of_gguf_are_restored_by_scale_and_offset(kind):
    kind = gguf.GGMLQuantizationType[kind]
    values, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(1)
    data = rng.integers(0, 256, (6, 3 * size), dtype=np.uint8)
    for start in range(0, 3 * size, size):  # halves of random bits may be NaN
        for at in HALVES[kind.name]:
            half = rng.uniform(0.01, 0.1, (6, 1)).astype(np.float16)
            data[:, start + at : start + at + 2] = half.view(np.uint8)
    blocks = blocks_of(kind, data)
    expected = gguf.dequantize(data, kind)
    actual = blocks.q * blocks.d[..., None]
    if blocks.m is not None:
        actual = actual + blocks.m[..., None]
    assert np.abs(blocks.q).max() <= 2 ** (bits_of(kind) - 1)
    assert expected.shape == (6, 3 * values)
    # Another order of operations in float32.
    np.testing.assert_allclose(
        actual.reshape(6, -1), expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )


def test_unknown_blocks_of_gguf_have_no_integers():
    assert not has_blocks(gguf.GGMLQuantizationType.IQ4_NL)


@pytest.mark.parametrize("name", HALVES)
def test_integers_are_what_gguf_restores(name):
    """Also scales and minima of zero, denormal ones and the largest, in all combinations."""
    rng = np.random.default_rng(5)
    halves = list(itertools.product(EDGES, repeat=len(HALVES[name])))
    kind, data = blocks(name, halves, rng)
    expected = gguf.dequantize(data, kind)
    actual = integers_of(kind, data, torch.arange(len(data))).floats().numpy()
    assert actual.shape == expected.shape
    # Groups have 16 or 32 values; each is a sum of products, of which every step rounds in float32.
    groups = expected.reshape(len(halves), -1, 16 if name == "Q6_K" else 32)
    least = np.array([[abs(m) if rest else 0.0] for _, *rest in halves for m in rest or [0.0]])
    scale = np.abs(groups).max(-1) + 63 * least
    difference = np.abs(actual - expected).reshape(groups.shape).max(-1)
    rounded = 2.0**-21 * scale
    # Of a group whose steps float16 cannot tell apart, the one value in its place is in the middle.
    spread = np.ptp(groups, -1)
    one_value = (spread > 0) & (spread < 2.0**-10 * np.abs(groups).max(-1))
    assert np.all(difference <= np.where(one_value, 0.6 * spread, 0) + rounded)
    exact = {"Q4_0", "Q5_0", "Q8_0", "Q6_K"}  # which have no minimum
    assert name not in exact or np.array_equal(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name, halves in HALVES.items() if len(halves) == 2])
def test_groups_of_nearly_one_value_are_multiplied(name, dtype):
    """A minimum of many steps, of which float16 cannot have the number."""
    rng = np.random.default_rng(5)
    halves = [(step, least) for step in (DENORMAL, 64 * DENORMAL) for least in (0.03, -0.7)]
    kind, data = blocks(name, halves * 8, rng)
    expected = torch.from_numpy(gguf.dequantize(data, kind))
    layer = StoredLinear(integers_of(kind, data, torch.arange(len(data))), None).as_operator(dtype)
    actual = layer(torch.eye(expected.shape[1], dtype=dtype)).float().t()
    # The integer with its offset is rounded, the scale, and the product.
    step = torch.finfo(dtype).eps
    assert torch.all((actual - expected).abs() <= 2 * step * expected.abs().amax(1, keepdim=True))


@pytest.mark.parametrize("half", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("at", HALVES["Q4_1"])
def test_blocks_that_are_not_finite_are_refused(tmp_path, half, at):
    path = write_gguf(tmp_path, "llama", "Q4_1")
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.ffn_up.weight")
    data = bytearray(path.read_bytes())
    begin = int(tensor.data_offset) + at
    data[begin : begin + 2] = np.float16(half).tobytes()
    path.write_bytes(data)
    # Of an infinite scale times zero, too: all 32 values of the block.
    with pytest.raises(ExportError, match=r"up_proj.weight has 32 values that are not finite$"):
        load_checkpoint(path, integers=True)
