"""Compressed attention, as in DeepSeek-V4: rows of any length, steps of any size."""

from __future__ import annotations

import pytest
import torch
from onnxruntime_npu.exporter import compressed_attention
from onnxruntime_npu.exporter.compressed_attention import (
    CompressedAttention,
    fuse_compressed_attention,
)
from onnxruntime_npu.exporter.compressed_cache import ENTRIES, is_compressed_attention, new_layer
from onnxruntime_npu.exporter.proof import Findings, NotProven
from onnxruntime_npu.exporter.replaced_functions import ReplacedFunctions
from onnxruntime_npu.opdef import torch_library

from .conftest import tiny_model

TOKENS = 23
WINDOW_ONLY, CHOSEN, HEAVY = range(3)  # the layers of the tiny model
TOLERANCE = 1e-5  # float32: sums of at most 64 products in another order


@pytest.fixture(scope="module")
def layers():
    torch_library.register()
    return [
        module for module in tiny_model("deepseek_v4").modules() if is_compressed_attention(module)
    ]


def tables(module, positions):
    kind = module.rope_layer_type
    model = tiny_model("deepseek_v4").model
    return {kind: model.rotary_emb(torch.zeros(1), position_ids=positions, layer_type=kind)}


@torch.no_grad()
def alone(module, x):
    """Attend as transformers does, in one step without a cache; x [1, S, H]."""
    positions = torch.arange(x.shape[1])[None]
    behind = positions[0][:, None] - positions[0]
    hidden = (behind < 0) | (behind >= module.sliding_window)
    mask = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)[None, None]
    return module(x, tables(module, positions), positions, mask)[0]


@torch.no_grad()
def in_steps(module, rows, ends):
    """Attend from rows [S, H] of different lengths, which end together, up to each of ends."""
    padding = [TOKENS - len(row) for row in rows]
    x = torch.stack(
        [torch.nn.functional.pad(r, (0, 0, p, 0)) for r, p in zip(rows, padding, strict=True)]
    )
    positions = (torch.arange(TOKENS) - torch.tensor(padding)[:, None]).clamp(min=0)
    layer = new_layer(module, len(rows), 0)
    attention = CompressedAttention(module)
    cache = type("Cache", (), {"layers": [layer] * (module.layer_idx + 1)})
    results, begin = [], 0
    for end in ends:
        new, layer.slots = slice(begin, end), end
        given = x[:, new], tables(module, positions[:, new]), positions[:, new]
        results.append(attention.forward(*given, past_key_values=cache)[0])
        begin = end
    joined = torch.cat(results, 1)
    return [joined[row, p:] for row, p in enumerate(padding)], layer


@pytest.mark.parametrize("place", [WINDOW_ONLY, CHOSEN, HEAVY])
@pytest.mark.parametrize(
    "ends",
    [[TOKENS], [9, *range(10, TOKENS + 1)], [1, 3, 4, 12, 17, TOKENS]],
    ids=["one step", "prompt and single tokens", "chunks"],
)
def test_padded_rows_get_what_they_get_alone(layers, place, ends):
    module = layers[place]
    rows = [torch.randn(length, 64) for length in (TOKENS, TOKENS - 1, 9, 1)]
    actual, layer = in_steps(module, rows, ends)
    for row, found in zip(rows, actual, strict=True):
        torch.testing.assert_close(found, alone(module, row[None])[0], rtol=0, atol=TOLERANCE)
    if place != WINDOW_ONLY:  # a key for each whole window, and none for a part
        assert layer.kept[ENTRIES].shape[1] == TOKENS // module.compressor.compress_rate


def test_a_wrong_compressor_is_not_proven(layers, monkeypatch):
    right = compressed_attention.CompressedAttention._of_windows

    def wrong(self, compressor, tokens, windows):
        return right(self, compressor, tokens, windows + 1)

    monkeypatch.setattr(compressed_attention.CompressedAttention, "_of_windows", wrong)
    with pytest.raises(NotProven, match="compressed keys: differs"):
        fuse_compressed_attention(layers[HEAVY], ReplacedFunctions(), Findings())
