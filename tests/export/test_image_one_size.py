"""More models of images of one size: logits and generated tokens equal to transformers'."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from onnxruntime_npu import export_image_text_to_text
from onnxruntime_npu.errors import ExportError
from onnxruntime_npu.generation import ImageTextLM

from .conftest import Forced, enlarge
from .test_image_text import (
    FORCED,
    IMAGE_TOKEN,
    PROVIDERS,
    TEXT,
    VISION,
    arrays,
    expected_logits,
    exports_of,
    inputs_of,
)

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
    "qianfan_ocr": ({}, {"head_dim": 16}, {}),
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
    vision, embedding, text = (
        {op: counts["emitted"] for op, counts in part.replaced.items()}
        for part in report.parts.values()
    )
    assert vision["npu_fusion_attention"] == 2 and embedding == {}
    assert text["npu_fused_infer_attention_score"] == 2 and text["npu_swiglu"] == 2
    inputs = inputs_of(model, ImageTextLM(directory, providers=PROVIDERS[1:]).tokens_per_image)
    expected = expected_logits(model, inputs)
    # Float32 sums in another order; see exporter/proof.py.
    tolerance = 1e-4 * np.abs(expected).max()
    other = {**inputs, "pixel_values": inputs["pixel_values"].flip(0)}
    difference = np.abs(expected_logits(model, other) - expected).max((1, 2))
    assert (difference[:2] > 100 * tolerance).all() and difference[2] == 0  # images matter
    with torch.no_grad():
        generated = model.generate(**inputs, max_new_tokens=7, do_sample=False, eos_token_id=None)
    ids, given = arrays(inputs)
    for provider in PROVIDERS:
        lm = ImageTextLM(directory, providers=[provider])
        lm.stop_tokens = frozenset()
        sampler = Forced([FORCED] * 3)
        lm.generate_from(ids, **given, max_new_tokens=len(FORCED), sampler=sampler)
        actual = np.stack(sampler.logits, 1)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)
        result = lm.generate_from(ids, **given, max_new_tokens=7)
        assert result.tokens == generated[:, ids.shape[1] :].tolist()


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
