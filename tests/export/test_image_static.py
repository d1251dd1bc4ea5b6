"""Models of images and text with a preallocated cache: rows of other lengths, written in place."""

from __future__ import annotations

import pytest
from onnxruntime_npu import cli, export_image_text_to_text
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.generation import ImageTextLM

from . import test_image_patches, test_image_queries, test_image_text
from .conftest import model_kept
from .image_runs import IMAGE_TOKEN, arrays, check_runs, emitted_by

MODELS = {
    "clip": lambda: test_image_text.tiny_model("clip"),
    "qwen3_vl": lambda: test_image_patches.tiny_model("qwen3_vl"),
    "qwen3_5": lambda: test_image_patches.tiny_model("qwen3_5"),
    "blip-2": lambda: test_image_queries.tiny_model("opt"),
}
# Layers of the text that keep keys and values.
ATTENDING = {"qwen3_5": 1}


@pytest.mark.parametrize(
    "kind", ["clip", *(pytest.param(k, marks=pytest.mark.slow) for k in [*MODELS][1:])]
)
def test_logits_and_generated_tokens_equal_those_of_transformers(tmp_path, kind):
    model = MODELS[kind]()
    with model_kept(model):
        report = export_image_text_to_text(model, tmp_path, cache="static")
    assert report.gaps == []
    _, _, text = emitted_by(report)
    layers = ATTENDING.get(kind, 2)
    assert text["npu_scatter_nd_update"] == 2 * layers
    assert text["npu_fused_infer_attention_score"] == layers
    lm = ImageTextLM(tmp_path)
    taken = {value.name: value.shape for value in lm.text.get_inputs()}
    assert "attention_mask" not in taken and taken["total_lengths"] == ["batch"]
    assert lm.graphs
    if kind in test_image_patches.FUSED:
        inputs = test_image_patches.inputs_of(kind)
        changed = {**inputs, "pixel_values": inputs["pixel_values"].flip(1)}
        logits = test_image_patches.expected_logits
        kinds = (inputs["input_ids"] == IMAGE_TOKEN).int()
        check_runs(model, tmp_path, inputs, changed, logits, mm_token_type_ids=kinds)
    else:
        inputs = test_image_text.inputs_of(model, lm.tokens_per_image)
        changed = {**inputs, "pixel_values": inputs["pixel_values"].flip(0)}
        whole = test_image_queries.Whole(model) if kind == "blip-2" else model
        check_runs(whole, tmp_path, inputs, changed)


def test_steps_of_batches_of_the_same_size_are_replayed(tmp_path):
    """Buffers are those of the batch before; what it left in them is not read."""
    model = MODELS["clip"]()
    with model_kept(model):
        export_image_text_to_text(model, tmp_path, cache="static")
    lm = ImageTextLM(tmp_path)
    lm.stop_tokens = frozenset()
    ids, given = arrays(test_image_text.inputs_of(model, lm.tokens_per_image))
    first = lm.generate_from(ids, **given, max_new_tokens=9).tokens
    rows = lm.kept.last
    assert lm.generate_from(ids, **given, max_new_tokens=9).tokens == first
    assert lm.kept.last is rows
    alone = lm.generate_from(ids[-1:, -3:], max_new_tokens=9).tokens
    assert alone == ImageTextLM(tmp_path).generate_from(ids[-1:, -3:], max_new_tokens=9).tokens
    assert lm.kept.last is not rows
    assert lm.generate_from(ids, **given, max_new_tokens=9).tokens == first


def test_graphs_are_of_static_caches_and_may_be_left_out(tmp_path):
    model = MODELS["clip"]()
    answers = []
    for cache in ("static", "dynamic"):
        with model_kept(model):
            export_image_text_to_text(model, tmp_path / cache, cache=cache)
    for graphs in ("0", "1"):
        providers = [("NPUExecutionProvider", {"enable_npu_graph": graphs})]
        lm = ImageTextLM(tmp_path / "static", providers=providers)
        assert lm.graphs == (graphs == "1")
        ids, given = arrays(test_image_text.inputs_of(model, lm.tokens_per_image))
        answers += [lm.generate_from(ids, **given, max_new_tokens=6).tokens for _ in range(2)]
    assert all(answer == answers[0] for answer in answers)
    with pytest.raises(Exception, match="enable_npu_graph expected"):  # by session or runner
        ImageTextLM(tmp_path / "dynamic", providers=providers)


def test_caches_that_images_cannot_have_are_refused(tmp_path):
    with pytest.raises(ExportError, match="tells tokens of images or of prompts apart: pass cache"):
        export_image_text_to_text(
            test_image_text.tiny_model("gemma3"), tmp_path / "out", cache="static"
        )
    with pytest.raises(ArgumentError, match="one of dynamic, static, got 'paged': blocks serve"):
        export_image_text_to_text(MODELS["clip"](), tmp_path / "out", cache="paged")
    assert not (tmp_path / "out").exists()


def test_command_exports_a_static_cache(tmp_path):
    MODELS["clip"]().save_pretrained(tmp_path / "in")
    arguments = [str(tmp_path / "in"), str(tmp_path / "out"), "--cache", "static"]
    assert cli.main(["export-image-text-to-text", *arguments, "--dtype", "bfloat16"]) == 0
    lm = ImageTextLM(tmp_path / "out")
    assert "sequence_lengths" in {value.name for value in lm.text.get_inputs()}
