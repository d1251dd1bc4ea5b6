"""Models whose layers keep states of a fixed size: what only they have, beside their forms."""

from __future__ import annotations

import contextlib
import copy
import sys

import numpy as np
import onnx
import pytest
import torch
from onnxruntime_npu import NPUModelForCausalLM, ortvalue_to_numpy
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.exporter import export_causal_lm, recurrences
from onnxruntime_npu.exporter.caches import CACHES, CacheChoice
from onnxruntime_npu.exporter.matrix_memory import MatrixMemory
from onnxruntime_npu.exporter.original import keep_original
from onnxruntime_npu.exporter.proof import NotProven
from onnxruntime_npu.exporter.state_layers import StateLayer
from onnxruntime_npu.exporter.whole_model import WholeModelProbe
from onnxruntime_npu.generation import CausalLM
from onnxruntime_npu.opdef import torch_library
from transformers.cache_utils import LinearAttentionLayer
from transformers.models.rwkv import modeling_rwkv

from .conftest import CONTINUATIONS, PROMPTS, expected_logits, tiny_model
from .genai_runs import engine_tokens, generator_tokens, open_in_genai
from .test_causal_lm import PROVIDERS, TOLERANCE, forced_logits
from .test_paged import IN_HOST_MEMORY, answer, greedy
from .test_paged import PROMPTS as LONG_PROMPTS

# Of two rows: one shorter than a convolution's window, one token after many, many after one.
TURNS = [
    [[5, 7], [3, 4, 5, 6, 7, 8, 9]],
    [[41, 42, 43, 44, 45, 46], [51]],
    [[61], [71]],
    [[62], [72]],
]


def last_logits(model, row):
    """Return transformers' logits after the last token of a row."""
    with torch.no_grad():
        return model(torch.tensor([row]), use_cache=False).logits[0, -1].numpy()


def test_a_module_that_convolves_by_itself_gets_kept_columns_before_new_ones():
    rng = torch.Generator().manual_seed(0)
    theirs, ours = LinearAttentionLayer(1), StateLayer(1, convolved=True)
    ours.joins, ours.conv_states[0] = True, torch.zeros(2, 3, 4)
    for tokens in (6, 1, 2):
        new = torch.randn(2, 3, tokens, generator=rng)
        expected = theirs.update_conv_state(new, conv_kernel_size=4)
        actual = ours.update_conv_state(new)
        seen = min(tokens + 3, expected.shape[-1])  # by the convolutions of the new tokens
        assert torch.equal(actual[..., -seen:], expected[..., -seen:])
        assert torch.equal(ours.conv_states[0], theirs.conv_states[0])
    ours.conv_states[0] = ours.conv_states[0].bfloat16()
    ours.update_conv_state(torch.randn(2, 3, 1))  # Inkling 2 convolves in float32
    assert ours.conv_states[0].dtype == torch.bfloat16


def test_columns_in_another_order_that_no_function_convolves_are_refused():
    layer = StateLayer(1, convolved=True)
    layer.conv_states[0] = torch.zeros(2, 3, 4)
    layer.update_conv_state(torch.zeros(2, 3, 1))
    with pytest.raises(NotProven, match="convolves cached columns by itself"):
        layer.refuse_unread()


@pytest.mark.parametrize("cache", CACHES)
def test_clamped_time_steps_keep_the_states(cache):
    """Which transformers clamps in several tokens, but not in one token alone."""
    torch_library.register()
    model = tiny_model("nemotron_h", time_step_min=0.3)
    decoder, findings = keep_original(copy.deepcopy(model), "for a test")
    WholeModelProbe(model).proven(decoder, CacheChoice(cache, False, "last"), findings)


@pytest.mark.parametrize(
    ("kind", "biased"),
    [("mamba", "use_bias"), ("falcon_h1", "mamba_proj_bias"), ("lfm2", "conv_bias")],
)
def test_biases_of_projections_leave_padding_out(kind, biased):
    """Padding of zeros is what a bias is, after a projection that has one."""
    torch_library.register()
    model = tiny_model(kind, **{biased: True})
    decoder, findings = keep_original(copy.deepcopy(model), "for a test")
    probe = WholeModelProbe(model)
    for int8 in (False, True)[: 1 if kind == "mamba" else 2]:  # which caches no keys and values
        probe.proven(decoder, CacheChoice("dynamic", int8, "last"), findings)
    assert findings.worst_difference.get("npu_dynamic_quant", 0) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "biased"), [("mamba", "use_bias"), ("bamba", "mamba_proj_bias")])
def test_biased_projections_are_exported_for_ragged_rows(tmp_path, kind, biased):
    model = tiny_model(kind, **{biased: True})
    report = export_causal_lm(model, tmp_path / "out", check=False)
    assert report.gaps == []
    for provider in PROVIDERS:
        actual = forced_logits(tmp_path / "out", provider, PROMPTS, CONTINUATIONS)
        for row, pair in enumerate(zip(PROMPTS, CONTINUATIONS, strict=True)):
            expected = expected_logits(model, *pair)
            np.testing.assert_allclose(actual[row], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("magnitude", [-200.0, 200.0])
def test_weighted_means_keep_exponentials_in_range(magnitude):
    rng = torch.Generator().manual_seed(0)
    key = torch.randn(2, 6, 8, generator=rng) + magnitude
    value = torch.randn(2, 6, 8, generator=rng)
    decay, bonus = torch.randn(2, 8, generator=rng)
    given = (decay, bonus, key, value)
    expected, sums = modeling_rwkv.rwkv_linear_attention_cpu(*given, return_state=True)
    given = (key, value, -decay.exp(), bonus)
    actual, state = recurrences.Recurrences().weighted_means(*given, initial=None)
    # The same formula in the same order, but for the state before the first token.
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(state, torch.stack(sums, 1))


@pytest.mark.parametrize("magnitude", [-15.0, 15.0])  # what gates are capped at
def test_memories_of_matrices_keep_exponentials_in_range(magnitude):
    """Of chunks, of single tokens after them, and after what earlier tokens have left."""
    rng = torch.Generator().manual_seed(0)
    model = tiny_model("xlstm", chunk_size=4)
    theirs = model.backbone.blocks[0].mlstm_layer.mlstm_backend
    ours = MatrixMemory(model.config.eps, recurrences.Recurrences())
    states = [None, None, None]
    for tokens in (7, 1):
        sizes = [(tokens, 16)] * 3 + [(tokens,)] * 2
        given = [torch.randn(2, 4, *size, generator=rng) for size in sizes]
        given[3] += magnitude
        expected, kept = theirs(*given, *states)
        actual, states = ours.forward(*given, *states)
        # Sums over chunks at once, against token by token.
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(states, kept, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cache", CACHES)
def test_beams_take_their_states_along(exported, cache):
    model, directory, _ = exported("falcon_h1", cache=cache)
    ours = NPUModelForCausalLM.from_pretrained(directory, providers=PROVIDERS[:1])
    padding = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (padding - len(row)) + row for row in PROMPTS])
    mask = torch.tensor([[0] * (padding - len(row)) + [1] * len(row) for row in PROMPTS])
    options = {"num_beams": 3, "max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    expected = model.generate(ids, attention_mask=mask, **options)
    assert ours.generate(ids, attention_mask=mask, **options).tolist() == expected.tolist()


def test_padding_between_tokens_of_a_row_of_a_growing_cache_is_refused(exported):
    _, directory, _ = exported("falcon_h1", cache="dynamic")
    ours = NPUModelForCausalLM.from_pretrained(directory, providers=PROVIDERS[:1])
    cache = ours.new_cache(20)
    begun = torch.tensor([[0, 5, 6], [7, 8, 9]])
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    ours(begun, attention_mask=mask, past_key_values=cache)  # padding before the first token
    mask = torch.cat([mask, torch.tensor([[0, 1], [1, 1]])], dim=1)
    with pytest.raises(ArgumentError, match=r"as many new tokens in every row.*, got \[1, 2\]"):
        ours(torch.tensor([[0, 5], [7, 8]]), attention_mask=mask, past_key_values=cache)


@pytest.mark.parametrize("kind", ["qwen3_next", "falcon_h1"])  # in graphs, and with ONNX's Scan
def test_rows_of_a_static_cache_keep_states_of_their_own_tokens(exported, kind):
    """Turns of several lengths, in one batch and in the next one, which has the same buffers."""
    model, directory, _ = exported(kind, cache="static")
    for provider in (*PROVIDERS, IN_HOST_MEMORY):
        steps = CausalLM(directory, providers=[provider]).step_model
        for turns in (TURNS, TURNS[::-1]):
            with contextlib.closing(steps.stepper(turns[0], 64)) as stepper:
                before = [[], []]
                for turn in turns:
                    logits = ortvalue_to_numpy(stepper.extend(turn))[:, 0]
                    before = [row + new for row, new in zip(before, turn, strict=True)]
                    np.testing.assert_allclose(
                        logits, [last_logits(model, row) for row in before], rtol=0, atol=TOLERANCE
                    )


def test_graphs_are_captured_of_models_without_control_flow_alone(exported):
    graphs = {
        kind: CausalLM(exported(kind, cache="static")[1], providers=PROVIDERS[:1]).step_model.graphs
        for kind in ("qwen3_next", "falcon_h1")
    }
    assert graphs == {"qwen3_next": True, "falcon_h1": False}


@pytest.mark.parametrize(
    ("kind", "provider"), [("qwen3_next", PROVIDERS[0]), ("falcon_h1", PROVIDERS[0]),
                           ("qwen3_next", (PROVIDERS[0], {"host_memory": "0"})),
                           *(pytest.param(kind, PROVIDERS[1], marks=pytest.mark.exhaustive)
                             for kind in ("qwen3_next", "falcon_h1"))],
)  # fmt: skip
def test_engine_of_genai_serves_ragged_requests_together(genai, exported, kind, provider):
    model, directory, _ = exported(kind, cache="paged")
    tokens, runs = engine_tokens(open_in_genai(directory, provider), LONG_PROMPTS, 12)
    assert runs < 2 * 12  # not one after the other
    assert tokens == [answer(model, prompt, 12) for prompt in LONG_PROMPTS]


def test_prompt_look_up_is_refused(exported):
    _, directory, _ = exported("falcon_h1", cache="paged")
    with pytest.raises(ArgumentError, match=r"keys and values alone, got one with states"):
        CausalLM(directory, providers=PROVIDERS[:1]).generate(
            [[1, 2, 3]], max_new_tokens=2, prompt_lookup_num_tokens=2
        )


@pytest.mark.parametrize("kind", ["lfm2", "falcon_h1"])  # convolutions alone, and recurrences
def test_generator_of_genai_keeps_the_states(genai, exported, kind):
    model, directory, _ = exported(kind, cache="dynamic")
    tokens = generator_tokens(open_in_genai(directory, PROVIDERS[0]), PROMPTS[1], 12)
    assert tokens == greedy(model, PROMPTS[1], 12)


def test_blocks_of_a_model_without_keys_and_values_are_refused_with_the_reason(tmp_path):
    message = r"\(mamba\): .* paged cache: its layers cache no keys and values.* cache='dynamic'"
    with pytest.raises(ExportError, match=message):
        export_causal_lm(tiny_model("mamba"), tmp_path, cache="paged")
    assert not list(tmp_path.iterdir())


def test_check_tells_models_the_positions_of_a_step(exported):
    """Bamba counts from 0 in every step that it is not told of."""
    _, _, report = exported("bamba", cache="dynamic", check=True)
    assert report.check is not None
    assert not [warning for warning in report.warnings if "check failed" in warning]


def test_recurrence_that_computes_something_else_is_not_replaced(monkeypatch):
    torch_library.register()
    model = tiny_model("mamba2")
    module = sys.modules[type(model).__module__]
    scan = module.mamba2_chunk_scan

    def without_decay(hidden_states, dt, A, *args, **options):
        return scan(hidden_states, dt, torch.zeros_like(A), *args, **options)

    monkeypatch.setattr(module, "mamba2_chunk_scan", without_decay)
    _, findings = keep_original(model, "a test")
    (kept,) = [part for part in findings.kept if part["role"] == "recurrence"]
    assert "output of the recurrence: differs by" in kept["reason"]


def test_layers_whose_weights_the_model_reads_stay_floats(exported):
    _, directory, report = exported("mamba", cache="dynamic", quant="w8a8_dynamic")
    reason = "not quantised: the model reads its weight itself"
    kept = {part["site"]: part["reason"] for part in report.kept if part["role"] == "linear"}
    layers = [f"decoder.model.backbone.layers.{i}.mixer" for i in range(2)]
    assert kept == {f"{layer}.dt_proj": reason for layer in layers}
    weights = onnx.load(directory / "model.onnx").graph.initializer
    floats = {weight.name for weight in weights if weight.data_type == onnx.TensorProto.FLOAT}
    assert {f"{layer}.dt_proj.weight" for layer in layers} <= floats
    # in_proj, x_proj and out_proj of each layer
    assert report.replaced["npu_quant_matmul"]["emitted"] == 3 * len(layers)
