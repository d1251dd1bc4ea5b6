"""Thinkers of Qwen's Omni models, whose images lie between tokens of their own."""

from __future__ import annotations

import pytest
import torch
import transformers
from onnxruntime_npu.errors import ExportError
from onnxruntime_npu.exporter import export_image_text_to_text

from .conftest import enlarge
from .image_runs import FORCED, IMAGE_TOKEN, TEXT, check_runs, emitted_by, exports_of

START, END = 93, 92  # around an image
GRIDS = [[1, 4, 6], [1, 2, 2], [1, 8, 4]]  # patches of three images
_VISION = {"depth": 2, "num_heads": 2, "patch_size": 4, "hidden_size": 32, "out_hidden_size": 64}
_SOUND = {
    **{"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32},
    **{"output_dim": 64, "num_mel_bins": 8, "max_source_positions": 20, "n_window": 4},
    **{"downsample_hidden_size": 8, "conv_chunksize": 10, "n_window_infer": 8},
}
# Classes, settings of the vision and of the text.
MODELS = {
    "qwen2_5_omni_thinker": (
        "Qwen2_5OmniThinkerForConditionalGeneration",
        {"intermediate_size": 48, "window_size": 16, "fullatt_block_indexes": [1]},
        {},
    ),
    "qwen3_omni_moe_thinker": (
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        {
            **{"intermediate_size": 48, "num_position_embeddings": 9},
            "deepstack_visual_indexes": [0, 1],
        },
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    ),
}


def tiny_model(kind, **changes):
    """Return a random model whose activations are large enough for mistakes to show."""
    name, vision, text = MODELS[kind]
    torch.manual_seed(5)
    sections = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 3, 3]}
    tokens = {"image": IMAGE_TOKEN, "video": 95, "audio": 94, "vision_start": START}
    tokens |= {"vision_end": END, "audio_start": 91, "audio_end": 90}
    config = transformers.AutoConfig.for_model(
        kind,
        audio_config=_SOUND,
        vision_config={**_VISION, **vision},
        text_config={**TEXT, "head_dim": 16, "rope_parameters": sections, **text},
        pad_token_id=0,
        **{f"{place}_token_id": token for place, token in tokens.items()},
        **{f"{place}_token_index": tokens[place] for place in ("image", "video", "audio")},
    )
    for setting, value in changes.items():
        setattr(config, setting, value)
    return enlarge(getattr(transformers, name)(config).eval())


def inputs_of():
    """Return rows of two images, of one and of none, padded on the left."""
    first, second, third = (
        [START, *[IMAGE_TOKEN] * (rows * columns // 4), END] for _, rows, columns in GRIDS
    )
    rows = [[5, *first, 8, *second, 9, 10], [*third, 4], [20, 21, 22]]
    longest = max(map(len, rows))
    patches = sum(rows * columns for _, rows, columns in GRIDS)
    pixels = torch.randn(patches, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(9))
    return {
        "input_ids": torch.tensor([[0] * (longest - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in rows]),
        "pixel_values": pixels,
        "image_grid_thw": torch.tensor(GRIDS),
    }


def expected_logits(model, inputs):
    """Return transformers' logits [B, S, V] after the prompt and each forced token but the last."""
    ids = torch.cat([inputs["input_ids"], torch.tensor([FORCED[:-1]] * 3)], 1)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 2), value=1)
    shown = ids == IMAGE_TOKEN
    shown[:, -2:] = False  # in a reply, the token has no image
    images = {name: inputs[name] for name in ("pixel_values", "image_grid_thw")}
    with torch.no_grad():
        positions, _ = model.get_rope_index(
            ids, image_grid_thw=images["image_grid_thw"], attention_mask=mask
        )
        features = model.get_image_features(**images)
        embeds = model.get_input_embeddings()(ids)
        found = features.pooler_output
        found = torch.cat([*found]) if isinstance(found, (list, tuple)) else found
        embeds = embeds.masked_scatter(shown[..., None].expand_as(embeds), found)
        given = {"inputs_embeds": embeds, "attention_mask": mask, "position_ids": positions}
        if stacked := getattr(features, "deepstack_features", None):
            stacked = [torch.cat([*each]) for each in stacked]
            given |= {"visual_pos_masks": shown, "deepstack_visual_embeds": stacked}
        logits = model.lm_head(model.get_decoder()(**given).last_hidden_state)
    return logits[:, -len(FORCED) :].numpy()


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_logits_and_generated_tokens_equal_those_of_transformers(tmp_path_factory, kind):
    model, directory, report = exports_of(tiny_model, tmp_path_factory)(kind)
    assert report.gaps == [] and report.kept == []
    vision, _, text = emitted_by(report)
    assert vision["npu_fusion_attention"] == 2 and text["npu_fused_infer_attention_score"] == 2
    inputs = inputs_of()
    turned = {**inputs, "image_grid_thw": inputs["image_grid_thw"][:, [0, 2, 1]]}
    check_runs(model, directory, inputs, turned, expected_logits, routed="moe" in kind)


def test_images_without_tokens_around_them_are_not_exported(tmp_path):
    model = tiny_model("qwen2_5_omni_thinker", vision_end_token_id=None)
    with pytest.raises(ExportError, match="expected vision_end_token_id in the configuration"):
        export_image_text_to_text(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
