"""Models of images as patches with places: logits and tokens equal to transformers'."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.generation import ImageTextLM

from .conftest import enlarge
from .image_runs import (
    IMAGE_TOKEN,
    LAYERS,
    PROVIDERS,
    TEXT,
    check_runs,
    emitted_by,
    exports_of,
)

BLOCKS = [[2, 3], [1, 1], [4, 1]]  # rows and columns of tokens of three images
PADDING = 2  # blocks after the largest one
PLACES = 12  # that patches can have in a direction
VALUES = 3 * 4 * 4  # of a patch: channels, rows, columns

_TOWER = {
    **LAYERS,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "patch_size": 4,
    "pooling_kernel_size": 2,
    "position_embedding_size": PLACES,
}
_CLIPPING = {**_TOWER, "use_clipped_linears": True}
_NO_TOWER = {
    "patch_size": 2,
    "pooling_kernel_size": 2,
    "mm_embed_dim": 48,
    "mm_posemb_size": PLACES,
    "output_proj_dims": 48,
}
# Layers take embeddings of tokens of their own, the last two the keys and values of the first two.
_PER_LAYER = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "vocab_size_per_layer_input": 97,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 2,
}
# Tokens of an image see each other in both directions, in the first layer.
_BOTH_WAYS = {
    "layer_types": ["sliding_attention", "full_attention"],
    "use_bidirectional_attention": "vision",
    "hidden_size_per_layer_input": 0,
}
# Settings of the vision and of the text, and the operators of both.
_TWO_LAYERS = {
    "npu_add_rms_norm": 2,
    "npu_fused_infer_attention_score": 2,
    "npu_geglu": 2,
    "npu_rms_norm": 11,
    "npu_rotary_mul": 4,
}
_ATTENTION = {"npu_add_rms_norm": 4, "npu_fusion_attention": 2, "npu_gelu": 2, "npu_rms_norm": 8}
MODELS = {
    "gemma4": (
        "gemma4",
        {**_TOWER, "standardize": True},
        _PER_LAYER,
        _ATTENTION,
        {
            "npu_add_rms_norm": 4,
            "npu_fused_infer_attention_score": 4,
            "npu_geglu": 4,
            "npu_gelu": 4,
            "npu_rms_norm": 24,
            "npu_rotary_mul": 6,
        },
    ),
    "gemma4-both-ways": ("gemma4", _CLIPPING, _BOTH_WAYS, _ATTENTION, _TWO_LAYERS),
    "gemma4_unified": (
        "gemma4_unified",
        _NO_TOWER,
        {"layer_types": _BOTH_WAYS["layer_types"]},
        {"npu_layer_norm_eval": 3},
        _TWO_LAYERS,
    ),
}
KINDS = ["gemma4", *(pytest.param(k, marks=pytest.mark.slow) for k in [*MODELS][1:])]


def tiny_model(kind):
    """Return a random model whose activations are large enough for mistakes to show."""
    torch.manual_seed(5)
    name, vision, text, *_ = MODELS[kind]
    config = transformers.AutoConfig.for_model(
        name,
        vision_config=vision,
        text_config={**TEXT, "head_dim": 16, "global_head_dim": 32, "sliding_window": 6, **text},
        image_token_id=IMAGE_TOKEN,
        video_token_id=95,
        audio_token_id=94,
    )
    model = enlarge(transformers.AutoModelForImageTextToText.from_config(config).eval())
    for parameter, values in model.named_parameters():
        if "position_embedding_table" in parameter or "pos_embedding" in parameter:
            torch.nn.init.normal_(values)  # ones and zeros
    for buffer, values in model.named_buffers():
        if "std_" in buffer:  # not set
            torch.nn.init.normal_(values)
        if buffer.endswith(("_min", "_max")):  # infinite; queries, keys and values have their own
            values.copy_((1 + torch.rand(())) * (-1 if buffer.endswith("_min") else 1))
    return model


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return ``exports_of`` the models of this file."""
    return exports_of(tiny_model, tmp_path_factory)


def inputs_of(model):
    """Return rows of two images, of one and of none, padded on the left."""
    merge = 2 if hasattr(model.model, "vision_tower") else 1
    first, second, third = ([IMAGE_TOKEN] * (rows * columns) for rows, columns in BLOCKS)
    rows = [[5, *first, 7, *second, 9, 95], [*third, 4], [20, 94, 22]]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    patches = (max(rows * columns for rows, columns in BLOCKS) + PADDING) * merge**2
    places = torch.full((len(BLOCKS), patches, 2), -1)
    for place, size in zip(places, BLOCKS, strict=True):
        grid = torch.meshgrid(*(torch.arange(n * merge) for n in size), indexing="ij")
        grid = torch.stack(grid, -1).flatten(0, 1).flip(1)
        place[: len(grid)] = grid
    return {
        "input_ids": ids,
        "attention_mask": torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in rows]),
        # Not zeros where it is padding, which nothing may depend on.
        "pixel_values": torch.rand(
            *places.shape[:2], VALUES, generator=torch.Generator().manual_seed(9)
        ),
        "image_position_ids": places,
        "mm_token_type_ids": (ids == IMAGE_TOKEN).long(),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_generated_tokens_equal_those_of_transformers(exported, kind):
    model, directory, report = exported(kind)
    assert report.gaps == []
    # Projections of the tower's MLPs are modules of their own, which may clip.
    assert {each["role"] for each in report.kept} <= {"mlp"}
    vision, embedding, text = emitted_by(report)
    *_, of_vision, of_text = MODELS[kind]
    assert vision == of_vision and embedding == {} and text == of_text
    inputs = inputs_of(model)
    turned = {**inputs, "image_position_ids": inputs["image_position_ids"].flip(2)}
    check_runs(model, directory, inputs, turned)


def changed(places, index, value):
    places = places.copy()
    places[index] = value
    return places


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pixel_values": None}, r"image_position_ids as integers \[0, 0, 2\]"),
        ({"pixel_values": np.zeros((3, 32, 47), np.float32)}, r"shape \[images, patches, 48\]"),
        ({"pixel_values": np.zeros((96, 48), np.float32)}, r"shape \[images, patches, 48\]"),
        ({"pixel_values": np.zeros((3, 32, 48), np.uint8)}, "pixel_values of float32"),
        ({"image_position_ids": None}, r"image_position_ids as integers \[3, 32, 2\]"),
        ({"image_position_ids": np.zeros((3, 31, 2), np.int64)}, r"int64 \[3, 31, 2\]"),
        ({"image_position_ids": np.zeros((3, 32, 2))}, r"float64 \[3, 32, 2\]"),
        ({"image_position_ids": ((0, 0), 1)}, "of each patch of an image, row by row"),
        ({"image_position_ids": ((2, 15), -1)}, "of each patch of an image, row by row"),
        ({"image_position_ids": ((2, 16), 0)}, "of each patch of an image, row by row"),
        ({"image_position_ids": ((2, slice(14, 16)), -1)}, "that are multiples of 2"),
        ({"image_position_ids": (1, -1)}, "got up to 0 columns and 0 rows"),
        ({"image_position_ids": (1, -(2**62))}, "got up to 0 columns and 0 rows"),
        ({"image_position_ids": (1, 2**62)}, "multiples of 2 and at most 12"),
        ({"image_position_ids": (1, 13)}, "and at most 12, got up to 14 columns"),
        ({"input_ids": np.array([[IMAGE_TOKEN] * 6])}, "expected 11 image tokens for 3 images"),
    ],
)
def test_wrong_inputs_raise(exported, changes, message):
    model, directory, _ = exported("gemma4")
    given = {name: tensor.numpy() for name, tensor in inputs_of(model).items()}
    if "input_ids" in changes:
        del given["attention_mask"]
    if isinstance(change := changes.get("image_position_ids"), tuple):
        changes = {"image_position_ids": changed(given["image_position_ids"], *change)}
    lm = ImageTextLM(directory, providers=PROVIDERS[1:])
    with pytest.raises(ArgumentError, match=message) as caught:
        lm.generate_from(**{**given, **changes})
    assert "\n" not in str(caught.value)
