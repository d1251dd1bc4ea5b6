"""Models that take patches of images of any size: logits and tokens equal to transformers'."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
import transformers
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.exporter.images import image_part_of
from onnxruntime_npu.exporter.proof import NotProven
from onnxruntime_npu.exporter.token_kinds import TokenKinds
from onnxruntime_npu.generation import ImageTextLM

from .conftest import enlarge
from .image_runs import FORCED, IMAGE_TOKEN, PROVIDERS, TEXT, check_runs, emitted_by, exports_of

GRIDS = [[1, 4, 6], [1, 2, 2], [1, 8, 4]]  # patches of three images
# Of a patch: values of channels, two times, rows and columns, or what a kind has instead.
VALUES = [3 * 2 * 4 * 4]
PATCHES = {
    "ernie4_5_vl_moe": [3 * 4 * 4],
    "paddleocr_vl": [3, 4, 4],
    "video_llama_3": [3 * 4 * 4],
}
START, END = 92, 91  # tokens around an image, which ERNIE's experts of images take, too

# What is given to a kind beside, of images whose patches are not merged.
MERGED_BY = {"video_llama_3": {"image_merge_sizes": torch.ones(3, dtype=torch.int64)}}

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
_NORMED_OUTPUTS = {"npu_rms_norm": 5}  # of attention and of MLPs
# Queries and keys of both layers, and what is added to their input; only the first rotates.
_NORMED_SUMMANDS = {"npu_add_rms_norm": 1, "npu_rms_norm": 8, "npu_rotary_mul": 2}
_EXPERTS_OF_LAST = {  # beside one that every token has
    "_npu_grouped_matmul": 2,
    "npu_moe_finalize_routing": 1,
    "npu_moe_gating_top_k": 1,
    "npu_moe_init_routing_v2": 1,
}
_EXPERTS_OF_KINDS = {op: 2 * count for op, count in _EXPERTS_OF_LAST.items()}
# Operators of the text. Those of experts are beside one that every token has, but of Qwen3-VL.
FUSED = {
    "qwen2_vl": _ATTENTION | _MLPS,
    "qwen2_5_vl": _ATTENTION | _MLPS,
    "qwen3_vl": _ATTENTION | _NORMED_HEADS | _MLPS,
    "qwen3_5": _ATTENTION | _STATES | _MLPS,
    "qwen3_vl_moe": _ATTENTION | _NORMED_HEADS | _EXPERTS | _MLPS,
    "qwen3_5_moe": _ATTENTION | _STATES | _EXPERTS | {"npu_swiglu": 4},
    "glm4v": _ATTENTION | _NORMED_OUTPUTS | _MLPS,
    "glm4v_moe": _ATTENTION | _EXPERTS_OF_LAST | {"npu_swiglu": 3},
    "glm46v": _ATTENTION | _NORMED_OUTPUTS | _MLPS,
    "glm_ocr": _ATTENTION | _NORMED_OUTPUTS | _MLPS,
    "paddleocr_vl": _ATTENTION | _MLPS,
    "video_llama_3": _ATTENTION | _MLPS,
    "ernie4_5_vl_moe": _ATTENTION | _EXPERTS_OF_KINDS | {"npu_swiglu": 4},
    "exaone4_5": _ATTENTION | _NORMED_SUMMANDS | _MLPS,
}
_SLOW = (
    "ernie4_5_vl_moe",
    "exaone4_5",
    "glm46v",
    "glm4v_moe",
    "glm_ocr",
    "paddleocr_vl",
    "qwen2_5_vl",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_vl_moe",
    "video_llama_3",
)
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
_SAMPLED = {**_WIDTHS, "image_size": 12}  # positions between those of a 3 x 3 grid
# As many layers and heads, by other names; patches have no time.
_PROJECTED = {**_SAMPLED, "num_hidden_layers": 2, "num_attention_heads": 2}
_HALF = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
_HALF_ROTATED = {"rope_parameters": {**_HALF, "mrope_section": [1, 1, 2]}}
# Counted positions, which the second layer does not use.
_SLIDING = {
    "model_type": "exaone4",
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"],
}
# Rows and columns take turns.
_TURNS = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [3, 3, 2]}
_ROUTED_BY_KINDS = {
    "rope_parameters": _TURNS,
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_num_shared_experts": 1,
    "moe_intermediate_size": [48, 32],
}
_ROUTED_OF_GLM = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
# Settings of the vision and of the text.
_SETTINGS = {
    "qwen2_vl": ({"embed_dim": 32, "hidden_size": 64}, {}),
    "qwen2_5_vl": ({**_WIDTHS, **_WINDOWS}, {}),
    "qwen3_vl": (_STACKED, {}),
    "qwen3_5": (_LEARNED, _DELTA),
    "qwen3_vl_moe": (_STACKED, _ROUTED),
    "qwen3_5_moe": (_LEARNED, {**_DELTA, **_ROUTED, "shared_expert_intermediate_size": 48}),
    "glm4v": (_SAMPLED, _HALF_ROTATED),
    "glm4v_moe": (_SAMPLED, {**_HALF_ROTATED, **_ROUTED_OF_GLM}),
    "glm46v": (_SAMPLED, {}),
    "glm_ocr": (_WIDTHS, {}),
    "paddleocr_vl": (_PROJECTED, {"head_dim": 16}),
    "video_llama_3": (_PROJECTED, {}),
    "ernie4_5_vl_moe": (_WIDTHS, _ROUTED_BY_KINDS),
    "exaone4_5": ({**_WIDTHS, **_WINDOWS, "num_heads": 4, "num_key_value_heads": 2}, _SLIDING),
}


def tiny_model(kind, **changes):
    """Return a random model whose activations are large enough for mistakes to show.

    ``changes``: of the vision's settings.
    """
    torch.manual_seed(5)
    vision, text = _SETTINGS[kind]
    sections = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 3, 3]}
    config = transformers.AutoConfig.for_model(
        kind,
        vision_config={"depth": 2, "num_heads": 2, "patch_size": 4, **vision, **changes},
        text_config={**TEXT, "rope_parameters": sections, **text},
        image_token_id=IMAGE_TOKEN,
        video_token_id=95,
        vision_start_token_id=94,
        vision_end_token_id=93,
        image_start_token_id=START,
        image_end_token_id=END,
        video_start_token_id=90,
        video_end_token_id=89,
    )
    return enlarge(transformers.AutoModelForImageTextToText.from_config(config).eval())


def tokens_of(kind, grid):
    return [IMAGE_TOKEN] * (grid[1] * grid[2] // (1 if kind in MERGED_BY else 4))


def inputs_of(kind):
    """Return rows of two images, of one and of none, padded on the left."""
    first, second, third = (tokens_of(kind, grid) for grid in GRIDS)
    rows = [[START, *first, END, 8, *second, 9, 10], [3, *third, 4], [20, 21, 22]]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    shape = sum(rows * columns for _, rows, columns in GRIDS), *PATCHES.get(kind, VALUES)
    return {
        "input_ids": ids,
        "attention_mask": torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in rows]),
        "pixel_values": torch.randn(shape, generator=torch.Generator().manual_seed(9)),
        "image_grid_thw": torch.tensor(GRIDS),
        **MERGED_BY.get(kind, {}),
    }


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return ``exports_of`` the models of this file."""
    return exports_of(tiny_model, tmp_path_factory)


def takes_kinds(model):
    return "moe_mm_token_type_ids" in inspect.signature(model.forward).parameters


def kinds_of_experts(ids, generated=0):
    """Return as the processor does which tokens are of images, those around them, too."""
    kinds = torch.isin(ids, torch.tensor([IMAGE_TOKEN, START, END])).int()
    return torch.nn.functional.pad(kinds, (0, generated))


def expected_logits(model, inputs):
    """Return transformers' logits [B, S, V] after the prompt and each forced token but the last."""
    forced = torch.tensor([FORCED[:-1]]).repeat(len(inputs["input_ids"]), 1)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, forced.shape[1]), value=1)
    ids = torch.cat([inputs["input_ids"], forced], 1)
    kinds = (ids == IMAGE_TOKEN).long()
    kinds[:, -forced.shape[1] :] = 0  # in a reply, the token has no image
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    if hasattr(model.model, "get_rope_index"):
        positions, _ = model.model.get_rope_index(
            ids, kinds, image_grid_thw=inputs["image_grid_thw"], attention_mask=mask
        )
    with torch.no_grad():
        text = ("input_ids", "attention_mask")
        given = {name: value for name, value in inputs.items() if name not in text}
        features = model.get_image_features(**given)
        embeds = model.get_input_embeddings()(ids)
        shown = kinds.bool()[..., None].expand_as(embeds)
        embeds = embeds.masked_scatter(shown, torch.cat(features.pooler_output))
        given = {"inputs_embeds": embeds, "attention_mask": mask, "position_ids": positions}
        if stacked := getattr(features, "deepstack_features", None):
            given["visual_pos_masks"] = kinds.bool()
            given["deepstack_visual_embeds"] = [torch.cat(each) for each in stacked]
        if takes_kinds(model):
            given["moe_mm_token_type_ids"] = kinds_of_experts(inputs["input_ids"], len(FORCED) - 1)
        logits = model.lm_head(model.model.language_model(**given).last_hidden_state)
    return logits[:, -len(FORCED) :].numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_generated_tokens_equal_those_of_transformers(exported, kind):
    inputs = inputs_of(kind)
    model, directory, report = exported(kind)
    assert report.gaps == [] and report.kept == []
    vision, embedding, text = emitted_by(report)
    assert embedding == {} and vision["npu_fusion_attention"] == 2
    assert text == FUSED[kind]
    nodes = onnx.load(directory / "vision.onnx", load_external_data=False).graph.node
    assert not {"SplitToSequence", "If", "Loop"} & {node.op_type for node in nodes}
    turned = {**inputs, "image_grid_thw": inputs["image_grid_thw"][:, [0, 2, 1]]}
    told = {}
    if hasattr(model.model, "get_rope_index"):
        told["mm_token_type_ids"] = (inputs["input_ids"] == IMAGE_TOKEN).int()
    if takes_kinds(model):
        told["moe_mm_token_type_ids"] = kinds_of_experts(inputs["input_ids"])
    # Of VideoLLaMA 3, places matter in the rotation of its vision alone.
    least = 10 if kind == "video_llama_3" else 100
    routed = kind.endswith("_moe")
    check_runs(
        model, directory, inputs, turned, expected_logits, least=least, routed=routed, **told
    )


def test_kinds_of_tokens_that_are_not_known_are_refused():
    class Model:
        config = SimpleNamespace(image_token_id=IMAGE_TOKEN)

        def forward(self, input_ids, other_token_type_ids):
            """Take kinds of tokens by another name."""

    with pytest.raises(NotProven, match=r"expected kinds .*, got other_token_type_ids"):
        TokenKinds(Model())


def test_features_are_not_exported_where_the_next_token_is_elsewhere(monkeypatch):
    model = tiny_model("qwen2_vl")
    owner = type(model.model)
    own = owner.get_rope_index

    def shifted(*args, **kwargs):
        positions, deltas = own(*args, **kwargs)
        return positions, deltas + torch.tensor([[0], [1], [0]])  # after an image

    monkeypatch.setattr(owner, "get_rope_index", shifted)
    assert "follow the highest position of an image" in image_part_of(model).obstacle


def test_features_are_not_exported_where_positions_end_otherwise(monkeypatch):
    model = tiny_model("glm4v", image_size=96)  # a border of which small images reach nothing
    own = torch.nn.functional.grid_sample

    def without_border(*args, **kwargs):
        return own(*args, **{**kwargs, "padding_mode": "zeros"})

    monkeypatch.setattr(torch.nn.functional, "grid_sample", without_border)
    assert "features of an image: differs" in image_part_of(model).obstacle


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_grid_thw": None}, r"pixel_values of float32 and shape \[0, 96\]"),
        ({"image_grid_thw": np.ones(3, np.int64)}, r"image_grid_thw as integers \[images, 3\]"),
        ({"image_grid_thw": np.ones((3, 3))}, r"image_grid_thw as integers \[images, 3\]"),
        (  # whose product is 0 in int64
            {"image_grid_thw": np.array([[1, 2**32, 2**32]]), "pixel_values": None},
            r"shape \[18446744073709551616, 96\]",
        ),
        ({"image_grid_thw": np.array([[2, 4, 6]])}, "of 1 and multiples of 2 .*, got .2, 4, 6"),
        ({"image_grid_thw": np.array([[1, 4, 5]])}, "of 1 and multiples of 2 .*, got .1, 4, 5"),
        ({"image_grid_thw": np.array([[1, 0, 4]])}, "of 1 and multiples of 2 .*, got .1, 0, 4"),
        (
            {"image_merge_sizes": np.ones(3, np.int64)},
            "expected pixel_values and image_grid_thw and .*, got image_merge_sizes",
        ),
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
def test_wrong_inputs_raise(exported, changes, message):
    given = {name: tensor.numpy() for name, tensor in inputs_of("qwen3_vl").items()}
    if "input_ids" in changes:
        del given["attention_mask"]
    lm = ImageTextLM(exported("qwen3_vl")[1], providers=PROVIDERS[1:])
    with pytest.raises(ArgumentError, match=message):
        lm.generate_from(**{**given, **changes})


@pytest.mark.slow
def test_other_merge_sizes_raise(exported):
    given = {name: tensor.numpy() for name, tensor in inputs_of("video_llama_3").items()}
    given["image_merge_sizes"] = np.array([1, 2, 1])
    lm = ImageTextLM(exported("video_llama_3")[1], providers=PROVIDERS[1:])
    message = r"expected image_merge_sizes of 1 for each image, got \[1, 2, 1\]"
    with pytest.raises(ArgumentError, match=message):
        lm.generate_from(**given)
