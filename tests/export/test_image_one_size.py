"""More models of images of one size: logits and generated tokens equal to transformers'."""

from __future__ import annotations

import pytest
import torch
import transformers
from onnxruntime_npu import export_image_text_to_text
from onnxruntime_npu.errors import ExportError
from onnxruntime_npu.generation import ImageTextLM

from .conftest import enlarge
from .image_runs import (
    IMAGE_TOKEN,
    PROVIDERS,
    TEXT,
    VISION,
    check_runs,
    emitted_by,
    exports_of,
)
from .test_image_text import inputs_of

# Tokens of the prompts, of which one is also of a row without an image, and of a reply.
INDICATORS = [7, 8, 9, 3, 20]
_WINDOW = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
# Settings of the vision, of the text and of the whole.
MODELS = {
    "ovis2": (
        {"hidden_stride": 2, "vocab_size": 40},
        {},
        {"hidden_size": 64, "vocab_size": 97, "visual_indicator_token_ids": INDICATORS},
    ),
    "cohere2_vision": ({}, {**_WINDOW, "pad_token_id": 0}, {"alignment_intermediate_size": 64}),
    "aya_vision": (
        {"model_type": "siglip_vision_model"},
        {**_WINDOW, "pad_token_id": 0},
        {"alignment_intermediate_size": 64},
    ),
    "aria": (
        {"model_type": "idefics3_vision", "patch_size": 8},
        {"model_type": "aria_text", "moe_num_experts": 4},
        {"projector_patch_to_query_dict": {4: 4}},  # features of an image by its patches
    ),
    "deepseek_vl": ({"model_type": "siglip_vision_model"}, {"model_type": "llama"}, {}),
    "janus": (
        {"model_type": "janus_vision_model", "projection_dim": 64},
        {"model_type": "llama"},
        {"vq_config": {"base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1}},
    ),
    "vipllava": (
        {"model_type": "clip_vision_model"},
        {"model_type": "llama"},
        {"vision_feature_layers": [-2, -1]},
    ),
    "qianfan_ocr": ({}, {"head_dim": 16}, {}),
    "llama4": (
        {
            **{"intermediate_size": 128, "vision_output_dim": 32},
            **{"projector_input_dim": 32, "projector_output_dim": 32},
        },
        {"head_dim": 16, "num_local_experts": 4, "moe_layers": [1], "intermediate_size_mlp": 96},
        {},
    ),
}
KINDS = ["ovis2", *(pytest.param(k, marks=pytest.mark.slow) for k in [*MODELS][1:])]


def tiny_model(kind):
    """Return a random model whose activations are large enough for mistakes to show."""
    torch.manual_seed(5)
    vision, text, settings = MODELS[kind]
    config = transformers.AutoConfig.for_model(
        kind,
        vision_config={**VISION, "patch_size": 4, **vision},
        text_config={**TEXT, **text},
        image_token_id=IMAGE_TOKEN,
        **settings,
    )
    return enlarge(transformers.AutoModelForImageTextToText.from_config(config).eval())


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return ``exports_of`` the models of this file."""
    return exports_of(tiny_model, tmp_path_factory)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_generated_tokens_equal_those_of_transformers(exported, kind):
    model, directory, report = exported(kind)
    assert report.gaps == []
    vision, embedding, text = emitted_by(report)
    assert vision["npu_fusion_attention"] == 2 and embedding == {}
    # Experts are beside one that every token has, in both layers or in the second.
    gates = {"aria": 4, "llama4": 3}.get(kind, 2)
    assert text["npu_fused_infer_attention_score"] == 2 and text["npu_swiglu"] == gates
    inputs = inputs_of(model, ImageTextLM(directory, providers=PROVIDERS[1:]).tokens_per_image)
    changed = {**inputs, "pixel_values": inputs["pixel_values"].flip(0)}
    check_runs(model, directory, inputs, changed, routed=kind in ("aria", "llama4"))


def test_tokens_that_a_model_embeds_in_its_own_way_are_refused(tmp_path):
    """As those around images of Ovis 2, of a model that finds them otherwise."""
    model = tiny_model("ovis2")
    own = model.model.get_image_features

    def changed(**given):
        found = own(**given)
        found.visual_indicator_features = found.visual_indicator_features.flip(0)
        return found

    model.model.get_image_features = changed
    with pytest.raises(ExportError, match="embeddings of tokens that the configuration names"):
        export_image_text_to_text(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
