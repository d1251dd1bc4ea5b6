"""Models that take patches of images of any size: logits and tokens equal to transformers'."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.generation import ImageTextLM

from .conftest import Forced, enlarge
from .test_image_text import FORCED, IMAGE_TOKEN, PROVIDERS, TEXT, exports_of

GRIDS = [[1, 4, 6], [1, 2, 2], [1, 8, 4]]  # patches of three images
VALUES = 3 * 2 * 4 * 4  # of a patch: channels, two times, rows, columns


_ATTENTION = {
    "npu_add_rms_norm": 4,
    "npu_fused_infer_attention_score": 2,
    "npu_rms_norm": 1,
    "npu_rotary_mul": 4,
}
_NORMED_HEADS = {"npu_rms_norm": 5}  # queries and keys of both layers
_STATES = {  # where the first of two layers keeps them
    "npu_chunk_gated_delta_rule": 1,
    "npu_fused_causal_conv1d": 1,
    "npu_fused_infer_attention_score": 1,
    "npu_rms_norm": 3,
    "npu_rotary_mul": 2,
}
_MLPS = {"npu_swiglu": 2}
_EXPERTS = {
    "_npu_grouped_matmul": 4,
    "npu_moe_finalize_routing": 2,
    "npu_moe_gating_top_k_softmax": 2,
    "npu_moe_init_routing_v2": 2,
}
# Operators of the text; Qwen3.5's experts are beside one that every token has.
FUSED = {
    "qwen2_vl": _ATTENTION | _MLPS,
    "qwen2_5_vl": _ATTENTION | _MLPS,
    "qwen3_vl": _ATTENTION | _NORMED_HEADS | _MLPS,
    "qwen3_5": _ATTENTION | _STATES | _MLPS,
    "qwen3_vl_moe": _ATTENTION | _NORMED_HEADS | _EXPERTS,
    "qwen3_5_moe": _ATTENTION | _STATES | _EXPERTS | _MLPS,
}
_SLOW = ("qwen2_5_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl_moe")
KINDS = [pytest.param(k, marks=pytest.mark.slow) if k in _SLOW else k for k in FUSED]

# Windows of 4 x 4 patches in the first layer, which end with the image and before it.
_WINDOWS = {"window_size": 16, "fullatt_block_indexes": [1]}
_WIDTHS = {"hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48}
_LEARNED = {**_WIDTHS, "num_position_embeddings": 9}  # positions between those of a 3 x 3 grid
_STACKED = {**_LEARNED, "deepstack_visual_indexes": [0, 1]}  # features of both layers
_DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
_ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
# Settings of the vision and of the text.
_SETTINGS = {
    "qwen2_vl": ({"embed_dim": 32, "hidden_size": 64}, {}),
    "qwen2_5_vl": ({**_WIDTHS, **_WINDOWS}, {}),
    "qwen3_vl": (_STACKED, {}),
    "qwen3_5": (_LEARNED, _DELTA),
    "qwen3_vl_moe": (_STACKED, _ROUTED),
    "qwen3_5_moe": (_LEARNED, {**_DELTA, **_ROUTED, "shared_expert_intermediate_size": 48}),
}


def tiny_model(kind):
    """Return a random model whose activations are large enough for mistakes to show."""
    torch.manual_seed(5)
    vision, text = _SETTINGS[kind]
    sections = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 3, 3]}
    config = transformers.AutoConfig.for_model(
        kind,
        vision_config={"depth": 2, "num_heads": 2, "patch_size": 4, **vision},
        text_config={**TEXT, "rope_parameters": sections, **text},
        image_token_id=IMAGE_TOKEN,
        video_token_id=95,
        vision_start_token_id=94,
        vision_end_token_id=93,
    )
    return enlarge(transformers.AutoModelForImageTextToText.from_config(config).eval())


def tokens_of(grid):
    return [IMAGE_TOKEN] * (grid[1] * grid[2] // 4)


@pytest.fixture(scope="module")
def inputs():
    """Return rows of two images, of one and of none, padded on the left."""
    first, second, third = map(tokens_of, GRIDS)
    rows = [[5, *first, 7, 8, *second, 9, 10], [3, *third, 4], [20, 21, 22]]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    patches = sum(rows * columns for _, rows, columns in GRIDS)
    return {
        "input_ids": ids,
        "attention_mask": torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in rows]),
        "pixel_values": torch.randn(patches, VALUES, generator=torch.Generator().manual_seed(9)),
        "image_grid_thw": torch.tensor(GRIDS),
    }


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return ``exports_of`` the models of this file."""
    return exports_of(tiny_model, tmp_path_factory)


def expected_logits(model, inputs):
    """Return transformers' logits [B, S, V] after the prompt and each forced token but the last."""
    forced = torch.tensor([FORCED[:-1]]).repeat(len(inputs["input_ids"]), 1)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, forced.shape[1]), value=1)
    ids = torch.cat([inputs["input_ids"], forced], 1)
    kinds = (ids == IMAGE_TOKEN).long()
    kinds[:, -forced.shape[1] :] = 0  # in a reply, the token has no image
    positions, _ = model.model.get_rope_index(
        ids, kinds, image_grid_thw=inputs["image_grid_thw"], attention_mask=mask
    )
    with torch.no_grad():
        features = model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
        embeds = model.get_input_embeddings()(ids)
        shown = kinds.bool()[..., None].expand_as(embeds)
        embeds = embeds.masked_scatter(shown, torch.cat(features.pooler_output))
        given = {"inputs_embeds": embeds, "attention_mask": mask, "position_ids": positions}
        if stacked := getattr(features, "deepstack_features", None):
            given["visual_pos_masks"] = kinds.bool()
            given["deepstack_visual_embeds"] = [torch.cat(each) for each in stacked]
        logits = model.lm_head(model.model.language_model(**given).last_hidden_state)
    return logits[:, -len(FORCED) :].numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_generated_tokens_equal_those_of_transformers(exported, inputs, kind):
    model, directory, report = exported(kind)
    assert report.gaps == [] and report.kept == []
    vision, embedding, text = (
        {op: counts["emitted"] for op, counts in part.replaced.items()}
        for part in report.parts.values()
    )
    assert embedding == {} and vision["npu_fusion_attention"] == 2
    assert text == FUSED[kind]
    expected = expected_logits(model, inputs)
    # Float32 sums in another order; see exporter/proof.py.
    tolerance = 1e-4 * np.abs(expected).max()
    turned = {**inputs, "image_grid_thw": inputs["image_grid_thw"][:, [0, 2, 1]]}
    difference = np.abs(expected_logits(model, turned) - expected).max((1, 2))
    assert (difference[:2] > 100 * tolerance).all() and difference[2] == 0  # places matter
    kinds = (inputs["input_ids"] == IMAGE_TOKEN).int()
    with torch.no_grad():
        generated = model.generate(
            **inputs, mm_token_type_ids=kinds, max_new_tokens=7, do_sample=False, eos_token_id=None
        )
    given = {name: tensor.numpy() for name, tensor in inputs.items()}
    for provider in PROVIDERS:
        lm = ImageTextLM(directory, providers=[provider])
        lm.stop_tokens = frozenset()
        sampler = Forced([FORCED] * 3)
        lm.generate_from(**given, max_new_tokens=len(FORCED), sampler=sampler)
        actual = np.stack(sampler.logits, 1)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)
        result = lm.generate_from(**given, max_new_tokens=7)
        assert result.tokens == generated[:, given["input_ids"].shape[1] :].tolist()
    without = lm.generate_from(given["input_ids"][2:, -3:], max_new_tokens=7)
    assert without.tokens == result.tokens[2:]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_grid_thw": None}, r"pixel_values of float32 and shape \[0, 96\]"),
        ({"image_grid_thw": np.ones(3, np.int64)}, r"image_grid_thw as integers \[images, 3\]"),
        ({"image_grid_thw": np.ones((3, 3))}, r"image_grid_thw as integers \[images, 3\]"),
        ({"image_grid_thw": np.array([[2, 4, 6]])}, "of 1 and multiples of 2 .*, got .2, 4, 6"),
        ({"image_grid_thw": np.array([[1, 4, 5]])}, "of 1 and multiples of 2 .*, got .1, 4, 5"),
        ({"image_grid_thw": np.array([[1, 0, 4]])}, "of 1 and multiples of 2 .*, got .1, 0, 4"),
        ({"pixel_values": None}, r"shape \[60, 96\], as image_grid_thw says"),
        ({"pixel_values": np.zeros((60, 95), np.float32)}, r"shape \[60, 96\], .* \[60, 95\]"),
        ({"pixel_values": np.zeros((60, 96), np.int64)}, "pixel_values of float32"),
        (
            {"image_grid_thw": np.array(GRIDS)[[1, 0, 2]]},
            "expected 1, those of one image, image tokens next to each other, got 6",
        ),
        ({"input_ids": np.array([[1] + [IMAGE_TOKEN] * 15])}, "expected 6, those of one image,"),
        (
            {"input_ids": np.array([[IMAGE_TOKEN] * 6])},
            "expected 15 image tokens for 3 images, got 6",
        ),
    ],
)
def test_wrong_inputs_raise(exported, inputs, changes, message):
    given = {name: tensor.numpy() for name, tensor in inputs.items()}
    if "input_ids" in changes:
        del given["attention_mask"]
    lm = ImageTextLM(exported("qwen3_vl")[1], providers=PROVIDERS[1:])
    with pytest.raises(ArgumentError, match=message):
        lm.generate_from(**{**given, **changes})
