"""Biases of scores by the distance of keys, and sinks, over caches of every kind."""

from __future__ import annotations

import types

import pytest
import torch
from onnxruntime_npu.exporter.alibi import Alibi, read_slopes
from onnxruntime_npu.exporter.caches.step import with_sinks
from onnxruntime_npu.exporter.key_numbers import by_numbers
from onnxruntime_npu.exporter.proof import NotProven
from transformers.models.bloom import modeling_bloom
from transformers.models.falcon import modeling_falcon
from transformers.models.gpt_oss import modeling_gpt_oss

HEADS, TOKENS = 6, 700  # not a power of two; positions that bfloat16 has not


def of_rows(mask):
    """Return the bias of Bloom and of Falcon for rows of tokens, [B, HEADS, 1, T]."""
    return [
        code.build_alibi_tensor(mask, HEADS, torch.float32).unflatten(0, (-1, HEADS))
        for code in (modeling_bloom, modeling_falcon)
    ]


def test_bias_equals_that_of_models_but_for_a_constant_of_the_row():
    mask = torch.ones(2, TOKENS, dtype=torch.int64)
    mask[1, :5] = 0
    mask[1, 20:30] = 0
    keys = mask.cumsum(1) - 1
    bloom, falcon = of_rows(mask)
    hidden = (mask == 0)[:, None, None]
    slopes = read_slopes(bloom[0, :, 0])
    moved = Alibi(slopes).bias(keys, keys[:, -1:]) - bloom
    moved = (moved - moved[..., -1:]).masked_fill(hidden, 0)
    assert moved.abs().max() < 1e-3  # of biases up to 350
    rounded = Alibi(read_slopes(falcon[0, :, 0, :2]), rounded=True)
    actual = rounded.bias(keys, keys[:, -1:]).masked_fill(hidden, 0)
    assert torch.equal(actual, falcon.masked_fill(hidden, 0))


def test_bias_that_is_not_a_line_is_refused():
    bias = torch.arange(5.0)[None].repeat(2, 1)
    assert read_slopes(bias - 7) == (1.0, 1.0)
    bias[1, 4] = 9
    with pytest.raises(NotProven, match="a slope of each head"):
        read_slopes(bias)


def test_mask_functions_are_left_without_a_step():
    function = object()
    assert by_numbers(function, 5) is function


def test_sinks_are_a_share_of_the_weights():
    rng = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 5, 16, generator=rng)
    sinks = torch.randn(4, generator=rng)
    module = types.SimpleNamespace(num_key_value_groups=1, sinks=sinks, training=False)
    expected, _ = modeling_gpt_oss.eager_attention_forward(module, query, key, value, None, 0.25)
    scores = query @ key.transpose(2, 3) * 0.25
    attended = (scores.softmax(-1) @ value).transpose(1, 2)
    log_sums = scores.logsumexp(-1, keepdim=True).transpose(1, 2)
    torch.testing.assert_close(with_sinks(attended, log_sums, sinks), expected)
    nothing = torch.full_like(log_sums, -torch.inf)  # visible, of padding
    assert torch.equal(with_sinks(0 * attended, nothing, sinks), torch.zeros_like(attended))
