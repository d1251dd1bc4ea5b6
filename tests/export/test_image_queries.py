"""Models whose queries read images, and whose text is a causal language model of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from onnxruntime_npu import export_image_text_to_text
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.generation import ImageTextLM

from .conftest import enlarge
from .image_runs import (
    IMAGE_TOKEN,
    LAYERS,
    PROVIDERS,
    TEXT,
    VISION,
    arrays,
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


def inputs_for(model, tokens_per_image):
    """Return ``inputs_of``, with an instruction for each image if the model takes them."""
    inputs = inputs_of(model, tokens_per_image)
    if model.config.model_type == "instructblip":
        inputs["qformer_input_ids"] = torch.tensor([[4, 5, 6, 7], [8, 9, 0, 0], [10, 11, 12, 0]])
        inputs["qformer_attention_mask"] = (inputs["qformer_input_ids"] > 0).long()
    return inputs


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return ``exports_of`` the models of this file, by text and kind."""
    get = exports_of(lambda name: tiny_model(*name.split()), tmp_path_factory)
    return lambda names: get(" ".join(names))


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


MODELS = [("opt", "blip-2"), ("llama", "blip-2"), ("llama", "instructblip")]
KINDS = [MODELS[0], *(pytest.param(*each, marks=pytest.mark.slow) for each in MODELS[1:])]


@pytest.mark.parametrize(("text", "kind"), KINDS)
def test_logits_and_generated_tokens_equal_those_of_transformers(exported, text, kind):
    model, directory, report = exported((text, kind))
    assert report.gaps == []
    vision, embedding, layers = emitted_by(report)
    # Of the vision, and of queries to each other and to the image.
    assert vision["npu_fusion_attention"] == 2 + 3 and embedding == {}
    assert layers["npu_fused_infer_attention_score"] == 2
    lm = ImageTextLM(directory, providers=PROVIDERS[1:])
    assert lm.tokens_per_image == QUERIES
    inputs = inputs_for(model, lm.tokens_per_image)
    changed = {**inputs, "pixel_values": inputs["pixel_values"].flip(0)}
    check_runs(Whole(model), directory, inputs, changed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qformer_input_ids": None}, r"qformer_input_ids as integers \[3, tokens\]"),
        ({"qformer_input_ids": np.ones((2, 4), np.int64)}, "an instruction for each image"),
        ({"qformer_attention_mask": np.zeros((3, 4))}, "with a token in each row"),
        ({"qformer_attention_mask": np.ones((3, 5))}, r"got \[3, 5\]"),
    ],
)
def test_wrong_instructions_raise(exported, changes, message):
    model, directory, _ = exported(MODELS[-1])
    ids, given = arrays(inputs_for(model, QUERIES))
    given = {k: v for k, v in {**given, **changes}.items() if v is not None}
    with pytest.raises(ArgumentError, match=message):
        ImageTextLM(directory, providers=PROVIDERS[1:]).generate_from(ids, **given)


def test_text_of_an_encoder_decoder_is_refused(tmp_path):
    with pytest.raises(ExportError, match="expected text of a decoder, got the encoder-decoder"):
        export_image_text_to_text(tiny_model("t5"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_text_that_reads_images_in_another_way_is_refused(tmp_path):
    """As BLIP, whose text attends to an image that it has with all tokens."""
    config = transformers.AutoConfig.for_model(
        "blip",
        vision_config={**VISION, "patch_size": 4},
        text_config={**TEXT, "encoder_hidden_size": 32, "pad_token_id": 0},
    )
    model = transformers.AutoModelForImageTextToText.from_config(config)
    with pytest.raises(ExportError, match="expected get_image_features, whose results take"):
        export_image_text_to_text(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
