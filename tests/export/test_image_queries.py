"""Models whose queries read images, and whose text is a causal language model of its own."""

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
    LAYERS,
    PROVIDERS,
    TEXT,
    VISION,
    check_runs,
    emitted_by,
    exports_of,
)
from .test_image_text import inputs_of

QUERIES = 3
OPT = {"model_type": "opt", "ffn_dim": 112, "word_embed_proj_dim": 64, "pad_token_id": 0}
TEXTS = {
    "opt": {**TEXT, **OPT},
    "llama": {**TEXT, "model_type": "llama"},
    "t5": {"model_type": "t5", "d_model": 64, "num_layers": 1, "vocab_size": 97},
}


def tiny_model(text, kind="blip-2"):
    """Return a random model whose activations are large enough for mistakes to show."""
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(
        kind,
        vision_config={**VISION, "patch_size": 4, "initializer_range": 0.02},
        qformer_config={
            **LAYERS,
            **{"num_hidden_layers": 2, "encoder_hidden_size": 32, "vocab_size": 30},
        },
        text_config=TEXTS[text],
        num_query_tokens=QUERIES,
        image_token_index=IMAGE_TOKEN,
    )
    model = transformers.AutoModelForImageTextToText.from_config(config).eval()
    torch.nn.init.normal_(model.query_tokens)  # zeros, in which all queries were alike
    return enlarge(model)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return ``exports_of`` the models of this file."""
    return exports_of(tiny_model, tmp_path_factory)


class Whole:
    """A model that takes text alone, and steps after a prompt: its language model runs these."""

    def __init__(self, model):
        self.model = model

    def __call__(self, pixel_values=None, **given):
        if pixel_values is None:
            return self.model.language_model(**given)
        out = self.model(pixel_values=pixel_values, **given)
        return out.language_model_outputs

    def generate(self, **given):
        model = self.model if "pixel_values" in given else self.model.language_model
        return model.generate(**given)


@pytest.mark.parametrize("text", ["opt", pytest.param("llama", marks=pytest.mark.slow)])
def test_logits_and_generated_tokens_equal_those_of_transformers(exported, text):
    model, directory, report = exported(text)
    assert report.gaps == []
    vision, embedding, layers = emitted_by(report)
    # Of the vision, and of queries to each other and to the image.
    assert vision["npu_fusion_attention"] == 2 + 3 and embedding == {}
    assert layers["npu_fused_infer_attention_score"] == 2
    lm = ImageTextLM(directory, providers=PROVIDERS[1:])
    assert lm.tokens_per_image == QUERIES
    inputs = inputs_of(model, lm.tokens_per_image)
    changed = {**inputs, "pixel_values": inputs["pixel_values"].flip(0)}
    check_runs(Whole(model), directory, inputs, changed)


def test_text_of_an_encoder_decoder_is_refused(tmp_path):
    with pytest.raises(ExportError, match="expected text of a decoder, got the encoder-decoder"):
        export_image_text_to_text(tiny_model("t5"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
