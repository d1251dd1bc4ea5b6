"""Models whose text attends to images by layers of its own, as Llama 3.2 Vision."""

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
    FORCED,
    IMAGE_TOKEN,
    PROVIDERS,
    TEXT,
    VISION,
    arrays,
    check_answers,
    emitted_by,
    exports_of,
    forced_logits,
)

TILES = 4
RATIOS = [[1, 1], [1, 2], [2, 1], [2, 2]]


def tiny_model(kind="mllama"):
    """Return a random model whose activations are large enough for mistakes to show."""
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(
        kind,
        vision_config={
            **{**VISION, "patch_size": 4, "attention_heads": 2, "num_global_layers": 1},
            **{"intermediate_layers_indices": [0, 1], "supported_aspect_ratios": RATIOS},
            **{"max_num_tiles": TILES, "vision_output_dim": 96},
        },
        text_config={
            **{**TEXT, "num_hidden_layers": 3, "cross_attention_layers": [1]},
            **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        },
        image_token_index=IMAGE_TOKEN,
    )
    model = transformers.AutoModelForImageTextToText.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() == 1:  # gates, zeros, with which nothing is read of images
                parameter.fill_(0.5)
    return enlarge(model)


def inputs_of():
    """Return rows of two images, of one and of none, padded on the left, as a processor does."""
    rows = [[5, IMAGE_TOKEN, 7, IMAGE_TOKEN, 8, 9], [3, IMAGE_TOKEN, 4, 6], [20, 21, 22]]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    tiles = torch.tensor([[1, 4], [2, 0], [0, 0]])
    shown = (torch.arange(TILES) < tiles[..., None]).long()
    # A token sees the tiles of the images before it.
    seen = (ids == IMAGE_TOKEN).cumsum(1)
    after = (seen[..., None] > torch.arange(2)).long()
    aspect_ratio_mask = shown.clone()
    aspect_ratio_mask[..., 0] = 1  # also of what is no image
    return {
        "input_ids": ids,
        "attention_mask": torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in rows]),
        "pixel_values": torch.randn(
            3, 2, TILES, 3, 16, 16, generator=torch.Generator().manual_seed(9)
        ),
        "aspect_ratio_ids": torch.tensor([[1, 4], [2, 0], [0, 0]]),
        "aspect_ratio_mask": aspect_ratio_mask,
        "cross_attention_mask": after[..., None] * shown[:, None],
    }


def expected_logits(model, inputs):
    """Return transformers' logits [B, S, V] after the prompt and each forced token but the last."""
    ids = torch.cat([inputs["input_ids"], torch.tensor([FORCED[:-1]] * 3)], 1)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 2), value=1)
    given = {**inputs, "input_ids": ids, "attention_mask": mask}
    if "cross_attention_mask" in inputs:
        seen = inputs["cross_attention_mask"]
        given["cross_attention_mask"] = torch.cat([seen, seen[:, -1:], seen[:, -1:]], 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = model(**given, position_ids=positions, use_cache=False).logits
    return logits[:, -len(FORCED) :].float().numpy()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return (model, directory, report) of an export."""
    return exports_of(tiny_model, tmp_path_factory)("mllama")


def test_logits_and_generated_tokens_equal_those_of_transformers(exported):
    model, directory, report = exported
    assert report.gaps == [] and report.kept == []
    vision, tokens, text = emitted_by(report)
    assert vision["npu_fused_infer_attention_score"] == 3 and tokens == {}
    assert text["npu_fused_infer_attention_score"] == 3 and text["npu_swiglu"] == 3
    inputs = inputs_of()
    expected = expected_logits(model, inputs)
    tolerance = 1e-4 * np.abs(expected).max()  # float32 sums in another order; exporter/proof.py
    turned = {**inputs, "pixel_values": inputs["pixel_values"].flip(-1)}
    assert np.abs(expected_logits(model, turned) - expected)[:2].max() > 100 * tolerance
    text_alone = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    for given in (inputs, text_alone):
        expected = expected_logits(model, given)
        with torch.no_grad():
            generated = model.generate(
                **given, max_new_tokens=7, do_sample=False, eos_token_id=None
            )
        check_answers(directory, given, expected, generated, tolerance)


@pytest.mark.slow
def test_halves_and_quantised_text_are_as_exact_as_transformers(tmp_path):
    model, inputs = tiny_model(), inputs_of()
    exact = expected_logits(model, inputs)
    report = export_image_text_to_text(model, tmp_path / "halves", dtype="bfloat16")
    assert report.gaps == []
    rounded = {**inputs, "pixel_values": inputs["pixel_values"].bfloat16()}
    theirs = expected_logits(model.bfloat16(), rounded) - exact
    ours = forced_logits(ImageTextLM(tmp_path / "halves"), inputs) - exact
    # Both round at every step; the rounding errors are of similar size, not equal.
    assert np.sqrt((ours**2).mean()) <= 2 * np.sqrt((theirs**2).mean())
    report = export_image_text_to_text(tiny_model(), tmp_path / "w8", quant="w8a8_dynamic")
    assert report.gaps == []
    text = report.parts["text.onnx"].replaced
    assert text["npu_quant_matmul"]["emitted"] == 2 * 6 + 4  # not of keys and values of images
    ours = forced_logits(ImageTextLM(tmp_path / "w8"), inputs) - exact
    assert np.sqrt((ours**2).mean()) <= 0.1 * exact.std()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"pixel_values": None},
            "expected pixel_values beside aspect_ratio_ids, aspect_ratio_mask",
        ),
        ({"aspect_ratio_ids": None}, r"aspect_ratio_ids as integers \[3, 2\], got float64 \[0\]"),
        ({"cross_attention_mask": np.ones((3, 5, 2, 4), int)}, r"\[3, 6, 2, 4\], got int64"),
        ({"pixel_values": np.ones((2, 2, 4, 3, 16, 16), "f")}, "a row for each of the prompt"),
    ],
)
def test_wrong_images_raise(exported, changes, message):
    ids, given = arrays(inputs_of())
    given = {name: x for name, x in {**given, **changes}.items() if x is not None}
    with pytest.raises(ArgumentError, match=message):
        ImageTextLM(exported[1], providers=PROVIDERS[1:]).generate_from(ids, **given)


def test_a_static_cache_is_refused(tmp_path):
    with pytest.raises(ExportError, match="attends to images over a growing cache alone"):
        export_image_text_to_text(tiny_model(), tmp_path / "out", cache="static")
    assert not (tmp_path / "out").exists()
