"""Blocks of int8 whose rows end with their scales, which onnxruntime-genai's engine caches."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper
from onnxruntime_npu.converters.model_file import read
from onnxruntime_npu.errors import ExportError
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.caches import scaled_rows
from onnxruntime_npu.onnx_models.join_groups import join_groups
from onnxruntime_npu.onnx_models.node_groups import DOMAIN

from .conftest import tiny_model
from .genai_runs import engine_tokens, open_in_genai
from .joined_layers import (
    CPU,
    NPU,
    OUTPUTS,
    PROVIDERS,
    TYPES,
    feeds,
    fused,
    model_of,
    rounded_layer,
    run,
    session_of,
)
from .test_causal_lm import assert_activations_on_npu
from .test_int8_cache import RoundingCache
from .test_paged import PROMPTS

STEPS = {"float32": 2**-20, "float16": 2**-9, "bfloat16": 2**-6}  # of sums, in units of values


@pytest.fixture(scope="module")
def session_of_bytes():
    """Bytes of float32 [n], and the floats of these."""
    graph = helper.make_graph(
        [fused("BytesOfFloats", "x", "bytes"), fused("FloatsOfBytes", "bytes", "y")],
        "bytes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [
            helper.make_tensor_value_info("bytes", TensorProto.INT8, ["n", 4]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"]),
        ],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    scaled_rows.attach_functions(model)
    given = ir.to_proto(model).SerializeToString()
    return lambda provider: ort.InferenceSession(given, providers=[provider])


@pytest.mark.parametrize("provider", [NPU, CPU])
def test_bytes_are_those_of_the_floats(session_of_bytes, provider):
    powers = np.exp2(np.arange(-126, 128, dtype=np.float64)).astype(np.float32)
    random = np.random.default_rng(3).integers(2**23, 2**31 - 2**23, 20000, np.int32)
    x = np.concatenate(
        [
            np.zeros(1, np.float32),
            powers,
            np.nextafter(powers, np.float32(0))[1:],
            np.nextafter(powers, np.float32(np.inf)),
            random.view(np.float32),
        ]
    )
    found, back = session_of_bytes(provider).run(None, {"x": x})
    np.testing.assert_array_equal(found, x.view(np.int8).reshape(-1, 4))
    np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [64, 20])
def test_a_layer_is_one_node_which_computes_what_the_nodes_do(tmp_path, size, dtype):
    arrays = feeds(size, scaled=True)
    model = model_of(rounded_layer(), size, dtype, scaled=True)
    expected = run(session_of(model, tmp_path, NPU), arrays)
    joined = {"ScaledRows": 2, "ScaledRowAttention": 1, "PagedSelfAttention": 1}
    assert join_groups(model) == joined
    assert {node.op_type for node in model.graph} == {"Cast", "PagedSelfAttention"}
    for provider in PROVIDERS:
        attended, *caches = run(session_of(model, tmp_path, provider), arrays)
        for found, cache in zip(caches, expected[1:], strict=True):
            # A rotated key beside the border of two integers may be rounded to either, and a scale
            # may be another at its last bit, since a multiply-add may be contracted or not.
            assert np.abs(found[..., :-4] - cache[..., :-4]).max() <= 1
            scales, of_nodes = (_scales(each) for each in (found, cache))
            np.testing.assert_allclose(scales, of_nodes, rtol=2.0**-7)
        np.testing.assert_allclose(attended, expected[0], rtol=0, atol=8 * STEPS[dtype])


def _scales(cache):
    return np.ascontiguousarray(cache[..., -4:]).astype(np.int8).view(np.float32)


@pytest.mark.parametrize("provider", PROVIDERS[:2], ids=["device", "host"])
def test_attention_alone_reads_such_rows(tmp_path, provider):
    """As of a model whose keys have a norm behind the projection."""
    arrays = feeds(32, scaled=True)
    nodes = rounded_layer()
    model = model_of(nodes, scaled=True, outputs=(*OUTPUTS, "rotated_k"))
    expected = run(session_of(model, tmp_path, NPU), arrays)
    assert join_groups(model) == {"ScaledRows": 2, "ScaledRowAttention": 1}
    found = run(session_of(model, tmp_path, provider), arrays)
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-5)
    for a, b in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(a, b)
    kept = {node.op_type for node in read(ir.to_proto(model)).graph}
    assert {"ScaledRows", "ScaledRowAttention"} <= kept


@pytest.mark.parametrize(
    ("kind", "attention"),
    [
        ("mistral", "PagedSelfAttention"),
        ("qwen3", "ScaledRowAttention"),
        ("deepseek_v3", "ScaledRowAttention"),
    ],
)
def test_exports_have_no_copies_of_caches(exported, kind, attention):
    _, directory, _ = exported(kind, cache="paged", cache_dtype="int8")
    nodes = onnx.load(directory / "model.onnx", load_external_data=False).graph.node
    types = [node.op_type for node in nodes]
    assert types.count(attention) == 2
    assert not {"BytesOfFloats", "FloatsOfBytes"} & set(types)
    assert_activations_on_npu(directory, at_least=10)


def rounded_answer(model, prompt, count):
    """Return transformers' tokens with rounded keys and values, before the one that ends."""
    ids, cache = torch.tensor([prompt]), RoundingCache()
    tokens = []
    with torch.no_grad():
        for _ in range(count):
            logits = model(ids, past_key_values=cache).logits[0, -1]
            tokens.append(int(logits.argmax()))
            if tokens[-1] == model.config.eos_token_id:
                return tokens[:-1]
            ids = torch.tensor([tokens[-1:]])
    return tokens


@pytest.mark.parametrize("kind", ["mistral", "qwen3"])
def test_engine_of_genai_caches_such_rows(genai, exported, kind):
    model, directory, report = exported(kind, cache="paged", cache_dtype="int8")
    assert not any("genai" in each for each in report.warnings)
    settings = json.loads((directory / "genai_config.json").read_text())["model"]["decoder"]
    assert settings["head_size"] == model.config.head_dim + 4
    tokens, _ = engine_tokens(open_in_genai(directory, NPU), PROMPTS, 12)
    assert tokens == [rounded_answer(model, prompt, 12) for prompt in PROMPTS]


def test_odd_head_sizes_are_refused(tmp_path):
    model = tiny_model("llama", hidden_size=72, num_attention_heads=4, num_key_value_heads=2)
    with pytest.raises(ExportError, match="head sizes have to be multiples of 4, not 18"):
        export_causal_lm(model, tmp_path / "out", cache="paged", cache_dtype="int8")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"past_keys": np.zeros((7, 32, 2, 4), np.int8)}, "expected past_keys of shape"),
        ({"past_keys": np.zeros((7, 32, 2, 34), np.int8)}, "expected past_keys of shape"),
        ({"past_values": np.zeros((7, 32, 2, 40), np.int8)}, "expected past_keys and past_values"),
        ({"table": np.full((4, 3), 7, np.int32)}, "expected block_table entries"),
    ],
    ids=["no elements", "no multiple of 4", "other values", "no such block"],
)
def test_wrong_caches_are_refused_and_the_session_goes_on(tmp_path, changes, message):
    arrays = feeds(32, scaled=True)
    model = model_of(rounded_layer(), scaled=True)
    join_groups(model)
    for value in model.graph.inputs:
        if value.name.startswith("past"):
            value.shape = ir.Shape([None] * 4)
    session = session_of(model, tmp_path, NPU)
    expected = run(session, arrays)
    with pytest.raises(Exception, match=rf"\[PagedSelfAttention\] {message}"):
        run(session, arrays | changes)
    for a, b in zip(run(session, arrays), expected, strict=True):
        np.testing.assert_array_equal(a, b)
