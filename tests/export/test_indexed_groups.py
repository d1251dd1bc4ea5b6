"""Attention to groups of keys that an indexer chooses, and embeddings of hashed n-grams."""

from __future__ import annotations

import pytest
import torch
from onnxruntime_npu.exporter import indexed_groups, ngram_embedding
from onnxruntime_npu.exporter.original_cache import StepLayer
from onnxruntime_npu.exporter.proof import NotProven
from onnxruntime_npu.exporter.replaced_functions import ReplacedFunctions
from onnxruntime_npu.exporter.state_layers import StateLayer
from transformers.cache_utils import DynamicIndexedLayer, DynamicLayer

from .conftest import tiny_model


class Cache:
    """A cache of one layer, which every module finds at its own number."""

    def __init__(self, layer):
        self.layers = {0: layer, 1: layer}

    def update_indexer(self, keys, layer_idx):
        return self.layers[layer_idx].update_indexer(keys)


@pytest.fixture(scope="module")
def model():
    return tiny_model("qwen4_exp_text")


def module_of(model, name):
    return next(each for each in model.modules() if type(each).__name__.endswith(name))


def replaced(replace, model):
    functions = ReplacedFunctions()
    replace(model, functions)
    return functions.replaced()


def choices(model, steps):
    """Return the keys that every query of two rows sees, one of which has padding."""
    indexer = module_of(model, "QSAIndexer")
    tokens = torch.randn(2, steps[-1], 64, generator=torch.Generator().manual_seed(0))
    is_token = torch.arange(steps[-1]) >= torch.tensor([[0], [3]])
    visible = is_token[:, None, None] & torch.ones(steps[-1], steps[-1], dtype=torch.bool).tril()
    positions = (is_token.cumsum(1) - 1).clamp(min=0).expand(3, -1, -1)
    cos, sin = model.model.rotary_emb(tokens, positions)
    cache, begin, chosen = Cache(DynamicIndexedLayer()), 0, []
    for end in steps:
        new = slice(begin, end)
        mask = visible[:, :, new, :end]
        tables = cos[:, :end], sin[:, :end]
        seen = indexer(tokens[:, new], tables, mask, cache) & mask
        chosen.append(torch.nn.functional.pad(seen, (0, steps[-1] - end)))
        begin = end
    return torch.cat(chosen, 2)


@pytest.mark.parametrize("steps", [(17,), (9, 10, 11, 12, 17)])
def test_chosen_groups_are_those_of_transformers(model, steps):
    expected = choices(model, steps)
    with replaced(indexed_groups.choose_groups_in_graph, model):
        actual = choices(model, steps)
    assert torch.equal(actual, expected)
    assert (expected.sum(-1) <= 5).all()  # two groups of two, and a begun one


def test_embeddings_know_the_tokens_of_earlier_steps(model):
    module = module_of(model, "NGramEmbedding")
    end = module.eos_token_id
    tokens = torch.tensor([[7, 8, end, 9, 7, 8, 10, end, end, 7], [9, 9, 8, 7, 7, end, 8, 7, 8, 9]])
    expected = module(tokens, None)
    layer = DynamicLayer()
    layer.conv_states = {2: torch.zeros(2, module.context_len)}  # as a cache begins
    with replaced(ngram_embedding.keep_tokens_as_states, model):
        parts = [module(part, Cache(layer)) for part in tokens.split([1, 4, 1, 3, 1], dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0, atol=0)
    assert layer.conv_states[2].dtype == torch.float32


def test_caches_whose_rows_end_with_padding_are_refused_with_the_reason(model):
    given = StateLayer(3, convolved=True), StepLayer(None, None)
    module, indexer = module_of(model, "NGramEmbedding"), module_of(model, "QSAIndexer")
    with (
        replaced(ngram_embedding.keep_tokens_as_states, model),
        pytest.raises(NotProven, match="n-grams need rows that end with their last tokens"),
    ):
        module(torch.tensor([[1, 2]]), Cache(given[0]))
    tokens = torch.zeros(1, 2, 64)
    tables = model.model.rotary_emb(tokens, torch.zeros(3, 1, 2, dtype=torch.int64))
    mask = torch.ones(1, 1, 2, 2, dtype=torch.bool)
    with (
        replaced(indexed_groups.choose_groups_in_graph, model),
        pytest.raises(NotProven, match="its indexer rotates groups of keys"),
    ):
        indexer(tokens, tables, mask, Cache(given[1]))
