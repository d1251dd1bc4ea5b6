"""Exported models against transformers, on both providers and with both caches."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_npu
import pytest
import torch
import transformers
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.generation import CausalLM

from .conftest import (
    CONFIGS,
    CONTINUATIONS,
    PROMPTS,
    Forced,
    expected_logits,
    tiny_model,
)
from .kinds import FORMS, marks_of_kind

PROVIDERS = ["NPUExecutionProvider", "CPUExecutionProvider"]
CACHES = ["dynamic", "static"]
TOLERANCE = 1e-4  # float32: sums of up to 112 products in another order, through two layers


def forced_logits(directory, provider, prompts, continuations):
    """Return the logits of every step, [rows, steps, V]: prefill and decode, ragged batch."""
    sampler = Forced(continuations)
    model = CausalLM(directory, providers=[provider])
    model.stop_tokens = frozenset()
    model.generate_tokens(prompts, max_new_tokens=len(continuations[0]), sampler=sampler)
    return np.stack(sampler.logits, axis=1)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(("kind", "cache"), FORMS)
def test_ragged_prefill_and_decode_match_transformers(exported, kind, cache, provider):
    model, directory, _ = exported(kind, cache=cache)
    actual = forced_logits(directory, provider, PROMPTS, CONTINUATIONS)
    for row, (prompt, continuation) in enumerate(zip(PROMPTS, CONTINUATIONS, strict=True)):
        expected = expected_logits(model, prompt, continuation)
        np.testing.assert_allclose(actual[row], expected, rtol=0, atol=TOLERANCE)


def empty_past(session, rows):
    """Return growing caches without tokens, and states of zeros."""
    return {
        value.name: np.zeros(
            [rows, *(0 if isinstance(d, str) else d for d in value.shape[1:])], np.float32
        )
        for value in session.get_inputs()
        if value.name.startswith("past")
    }


def last_logits(session, past, ids, mask):
    """Return the last token's logits [B, V] and the grown cache, for left-padded rows."""
    positions = np.maximum(mask.cumsum(1) - 1, 0)[:, -ids.shape[1] :]
    given = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    names = {value.name for value in session.get_inputs()}  # some models have no positions
    logits, *present = session.run(None, {n: v for n, v in given.items() if n in names} | past)
    return logits[:, -1], dict(zip(past, present, strict=True))


@pytest.mark.parametrize(
    "provider",
    [PROVIDERS[0], pytest.param(PROVIDERS[1], marks=pytest.mark.exhaustive)],
)
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=marks_of_kind(kind)) for kind in CONFIGS],
)
def test_second_turn_matches_transformers(exported, kind, provider):
    """Several new tokens at once, after what a ragged prompt left in the cache."""
    model, directory, _ = exported(kind, cache="dynamic")
    session = ort.InferenceSession(directory / "model.onnx", providers=[provider])
    past = empty_past(session, 2)
    first = np.array([[0, 0, 5, 7, 9], [3, 4, 5, 6, 7]], np.int64)
    second = np.array([[41, 42, 43, 44], [51, 52, 53, 54]], np.int64)
    shown = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], np.int64)
    _, past = last_logits(session, past, first, shown)
    shown = np.concatenate([shown, np.ones_like(second)], 1)
    actual, _ = last_logits(session, past, second, shown)
    for row, start in enumerate([2, 0]):
        tokens = np.concatenate([first[row, start:], second[row]])
        with torch.no_grad():
            expected = model(torch.tensor(tokens[None])).logits[0, -1].numpy()
        np.testing.assert_allclose(actual[row], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_all_logits_match_transformers(exported, provider):
    model, directory, _ = exported("llama", cache="dynamic", logits="all")
    session = ort.InferenceSession(directory / "model.onnx", providers=[provider])
    ids = np.array([[3, 14, 15, 92, 65], [0, 0, 35, 89, 79]], np.int64)
    mask = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]], np.int64)
    positions = np.maximum(mask.cumsum(1) - 1, 0)
    past = empty_past(session, 2)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **past}
    logits, *present = session.run(None, inputs)
    assert logits.shape == (2, 5, 97)
    assert all(p.shape == (2, 2, 5, 16) for p in present)
    for row, start in enumerate([0, 2]):
        with torch.no_grad():
            expected = model(torch.tensor(ids[row : row + 1, start:])).logits[0].numpy()
        np.testing.assert_allclose(logits[row, start:], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("cache", CACHES)
def test_generation_from_all_logits_takes_each_row_s_last(exported, cache):
    model, directory, _ = exported("llama", cache=cache, logits="all")
    actual = forced_logits(directory, PROVIDERS[0], PROMPTS, CONTINUATIONS)
    for row, pair in enumerate(zip(PROMPTS, CONTINUATIONS, strict=True)):
        np.testing.assert_allclose(
            actual[row], expected_logits(model, *pair), rtol=0, atol=TOLERANCE
        )


@pytest.mark.parametrize("provider", PROVIDERS)
def test_right_padding_in_attention_mask(exported, provider):
    """onnxruntime-genai pads prompts on the right and masks the gap in every later step."""
    model, directory, _ = exported("llama", cache="dynamic", logits="all")
    session = ort.InferenceSession(directory / "model.onnx", providers=[provider])
    past = empty_past(session, 1)
    tokens = [5, 6, 7, 8]
    mask = np.array([[1, 1, 1, 0, 0]], np.int64)
    ids = np.array([[5, 6, 7, 0, 0]], np.int64)
    positions = np.array([[0, 1, 2, 0, 0]], np.int64)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **past}
    first, *present = session.run(None, inputs)
    past = dict(zip(past, present, strict=True))
    mask = np.array([[1, 1, 1, 0, 0, 1]], np.int64)
    ids, positions = np.array([[8]], np.int64), np.array([[3]], np.int64)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **past}
    second = session.run(["logits"], inputs)[0]
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    np.testing.assert_allclose(first[0, :3], expected[:3], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(second[0, 0], expected[3], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=marks_of_kind(kind))
        for kind in ("bloom", "gpt_oss", "gpt_neo", "llama4_text", "mistral", "mpt")
    ],
)
def test_padding_between_tokens_is_not_counted(exported, kind):
    """By windows, chunks and biases of distances, in a row that was padded on the right."""
    model, directory, _ = exported(kind, cache="dynamic")
    session = ort.InferenceSession(directory / "model.onnx", providers=PROVIDERS[:1])
    first = np.array([[5, 7, 0, 0, 0], [3, 4, 5, 6, 7]], np.int64)
    second = np.array([[41, 42, 43], [51, 52, 53]], np.int64)
    shown = np.array([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]], np.int64)
    _, past = last_logits(session, empty_past(session, 2), first, shown)
    shown = np.concatenate([shown, np.ones_like(second)], 1)
    actual, _ = last_logits(session, past, second, shown)
    for row, length in enumerate([2, 5]):
        tokens = torch.tensor([[*first[row, :length], *second[row]]])
        with torch.no_grad():
            expected = model(tokens).logits[0, -1].numpy()
        np.testing.assert_allclose(actual[row], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("cache", CACHES)
def test_half_precision_error_is_within_that_of_transformers(exported, dtype, cache):
    model, directory, report = exported("llama", cache=cache, dtype=dtype)
    assert not report.gaps
    halved = tiny_model("llama").to(getattr(torch, dtype))
    actual = forced_logits(directory, PROVIDERS[0], PROMPTS, CONTINUATIONS)
    for row, (prompt, continuation) in enumerate(zip(PROMPTS, CONTINUATIONS, strict=True)):
        exact = expected_logits(model, prompt, continuation)
        theirs = np.abs(expected_logits(halved, prompt, continuation) - exact)
        ours = np.abs(actual[row] - exact)
        # Both round at every step; the rounding errors are of similar size, not equal.
        assert np.sqrt((ours**2).mean()) <= 2 * np.sqrt((theirs**2).mean())


@pytest.mark.parametrize("kind", ["llama", "qwen2_moe"])
def test_float16_runs_on_cpu_through_function_bodies(exported, kind):
    _, directory, _ = exported(kind, cache="dynamic", dtype="float16")
    npu, cpu = (forced_logits(directory, p, PROMPTS, CONTINUATIONS) for p in PROVIDERS)
    np.testing.assert_allclose(npu, cpu, rtol=0, atol=0.02 * np.abs(cpu).max())


def float_tensors(model):
    """Return the names of activations: floating-point values that are not initializers."""
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    return {v.name for v in values if v.type.tensor_type.elem_type in floats}


def assert_activations_on_npu(directory, at_least):
    """Assert that all nodes left to the CPU do arithmetic on sizes only."""
    model = onnx.load(directory / "model.onnx", load_external_data=False)
    nodes = {node.name: node for node in model.graph.node}
    activations = float_tensors(model)
    rows = onnxruntime_npu.assignment(CausalLM(directory).session)
    assert sum(row["provider"] == "NPUExecutionProvider" for row in rows) >= at_least
    for row in rows:
        if row["provider"] == "NPUExecutionProvider":
            continue
        touched = {*nodes[row["node"]].input, *nodes[row["node"]].output} & activations
        assert not touched, f"{row['op_type']} on {row['provider']}: {row['reason']}"


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_node_that_touches_activations_runs_on_the_npu(exported, cache, dtype):
    _, directory, _ = exported("llama", cache=cache, dtype=dtype)
    assert_activations_on_npu(directory, at_least=40)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("cache", CACHES)
def test_report_counts_replacements_and_resulting_nodes(exported, kind, cache):
    _, directory, report = exported(kind, cache=cache)
    layers = 2
    expected = {
        "npu_add_rms_norm": 2 * layers,
        "npu_fused_infer_attention_score": layers,
        "npu_rms_norm": 1 + (2 * layers if kind == "qwen3" else 0),
        "npu_rotary_mul": 2 * layers,
        "npu_swiglu": layers,
    }
    if cache == "static":
        expected["npu_scatter_nd_update"] = 2 * layers
    assert {op: counts["emitted"] for op, counts in report.replaced.items()} == expected
    assert report.gaps == [] and report.kept == [] and report.without_body == []
    written = json.loads((directory / "export_report.json").read_text())
    assert written["replaced"] == report.replaced
    assert written["opset"] == 18 and written["cache"] == cache
    assert written["files"]["model.onnx.data"] == (directory / "model.onnx.data").stat().st_size
    for package in ("torch", "transformers", "onnx", "onnxscript", "onnxruntime"):
        assert package in written["versions"]


@pytest.mark.parametrize("cache", CACHES)
def test_graph_is_small_with_named_dimensions(exported, cache):
    _, directory, report = exported("llama", cache=cache)
    per_layer = 16  # 4 MatMul, 6 npu:: without cache, 2 cache updates, Split, Transpose, 2 Reshape
    around = {"dynamic": 22, "static": 30}[cache]
    assert report.node_count <= 2 * per_layer + around, report.nodes
    assert not {"Where", "Trilu", "Constant", "Identity"} & set(report.nodes)
    # With the static cache, one that gathers each row's last token.
    assert report.nodes.get("Expand", 0) == {"dynamic": 0, "static": 1}[cache]
    model = onnx.load(directory / "model.onnx", load_external_data=False)
    shapes = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in (*model.graph.input, *model.graph.output)
    }
    tokens = {"dynamic": ("past", "total"), "static": ("capacity", "capacity")}[cache]
    assert shapes["input_ids"] == ["batch", "sequence"]
    assert shapes["past_key_values.1.key"] == ["batch", 2, tokens[0], 16]
    assert shapes["present.1.value"] == ["batch", 2, tokens[1], 16]
    assert shapes["logits"] == ["batch", 1, 97]
    targets = [n.input[1] for n in model.graph.node if n.op_type == "Reshape"]
    assert set(targets) <= {t.name for t in model.graph.initializer}


def test_tied_embeddings_are_stored_once(exported):
    sizes = {}
    for kind in ("llama", "llama-tied"):
        _, directory, _ = exported(kind, cache="dynamic")
        sizes[kind] = (directory / "model.onnx.data").stat().st_size
    assert sizes["llama"] - sizes["llama-tied"] == 97 * 64 * 4


def test_onnx_checker_accepts_the_model(exported):
    _, directory, _ = exported("llama", cache="dynamic")
    onnx.checker.check_model(directory / "model.onnx")


def test_export_does_not_modify_a_loaded_model(tmp_path):
    model = tiny_model("llama", num_hidden_layers=1).half().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    export_causal_lm(model, tmp_path / "out")
    assert model.training
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_model_that_returns_logits_of_routers_has_a_cache(tmp_path):
    """As checkpoints say that were saved after training; their loss fails beside a cache."""
    model = tiny_model("mixtral", num_hidden_layers=1, output_router_logits=True)
    report = export_causal_lm(model, tmp_path, check=False)
    assert model.config.output_router_logits
    assert report.kept == [] and "token_state" not in str(report.inputs)
    actual = forced_logits(tmp_path, PROVIDERS[0], PROMPTS, CONTINUATIONS)
    expected = expected_logits(model, PROMPTS[1], CONTINUATIONS[1])
    np.testing.assert_allclose(actual[1], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("opset", [pytest.param(19, marks=pytest.mark.slow), 21])
def test_other_opsets(tmp_path, opset):
    model = tiny_model("llama")
    report = export_causal_lm(model, tmp_path, opset=opset, check=False)
    assert report.opset == opset
    written = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    assert {o.domain: o.version for o in written.opset_import}[""] == opset
    actual = forced_logits(tmp_path, "CPUExecutionProvider", PROMPTS, CONTINUATIONS)
    expected = expected_logits(model, PROMPTS[0], CONTINUATIONS[0])
    np.testing.assert_allclose(actual[0], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "expected dtype to be one of float32, float16, bfloat16, got 'int8'"),
        ({"quant": "int3"}, "expected quant to be one of none, keep, w8a16, .*, got 'int3'"),
        ({"cache": "ring"}, "expected cache to be one of dynamic, static, paged, got 'ring'"),
        ({"cache_dtype": "int4"}, "expected cache_dtype to be one of auto, int8, got 'int4'"),
        ({"logits": "first"}, "expected logits to be one of last, all, got 'first'"),
        ({"opset": 11}, "expected an opset from 18 to 23, got 11"),
    ],
)
def test_bad_arguments_list_supported_values(tmp_path, options, message):
    with pytest.raises(ArgumentError, match=message):
        export_causal_lm(tmp_path, tmp_path / "out", **options)


def test_output_path_must_not_be_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(ArgumentError, match="expected a directory to write to"):
        export_causal_lm(tiny_model("llama"), path)


def test_model_without_decoder_is_refused_by_name(tmp_path):
    with pytest.raises(ExportError, match=r"cannot export Linear: expected a transformers"):
        export_causal_lm(torch.nn.Linear(2, 2), tmp_path)
    assert not list(tmp_path.iterdir())


def test_models_with_inputs_besides_tokens_are_refused_by_name(tmp_path):
    config = {"vocab_size": 97, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**config, num_heads=4))
    message = r"cannot export T5ForConditionalGeneration \(t5\): expected logits from input_ids"
    with pytest.raises(ExportError, match=message):
        export_causal_lm(model, tmp_path)
    config = transformers.BertConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=1, num_attention_heads=4
    )
    with pytest.raises(ExportError, match=r"cannot export BertModel \(bert\): expected logits"):
        export_causal_lm(transformers.BertModel(config), tmp_path)
    assert not list(tmp_path.iterdir())


def test_text_part_of_a_model_whose_sizes_are_in_its_text_configuration(tmp_path):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**sizes, "intermediate_size": 48, "num_key_value_heads": 2, "vocab_size": 97}
    vision = {**sizes, "mlp_dim": 48, "image_size": 28, "patch_size": 14, "global_attn_indexes": []}
    config = transformers.GotOcr2Config(
        text_config={**text, "model_type": "qwen2", "max_position_embeddings": 64},
        vision_config={**vision, "output_channels": 16},
        image_token_id=96,
    )
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    export_causal_lm(model, tmp_path / "out", check=False)
    described = json.loads((tmp_path / "out" / "genai_config.json").read_text())["model"]
    assert described["context_length"] == 64 and described["decoder"]["hidden_size"] == 32
    actual = forced_logits(tmp_path / "out", PROVIDERS[0], PROMPTS, CONTINUATIONS)
    for row, (prompt, continuation) in enumerate(zip(PROMPTS, CONTINUATIONS, strict=True)):
        expected = expected_logits(model, prompt, continuation)
        np.testing.assert_allclose(actual[row], expected, rtol=0, atol=TOLERANCE)
