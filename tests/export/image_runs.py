"""Tiny models of images and text, and their runs beside those of transformers."""

from __future__ import annotations

import numpy as np
import torch
from onnxruntime_npu import export_image_text_to_text
from onnxruntime_npu.exporter.attention_interface import ATTENTION
from onnxruntime_npu.generation import ImageTextLM
from transformers import AttentionInterface

from .conftest import Forced, model_kept

PROVIDERS = ("NPUExecutionProvider", "CPUExecutionProvider")
IMAGE_TOKEN = 96
LAYERS = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
VISION = {**LAYERS, "num_hidden_layers": 2, "image_size": 16, "patch_size": 8}
TEXT = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 48,
}
FORCED = [12, IMAGE_TOKEN, 20]  # in a reply, the token has no image


def exports_of(tiny_model, tmp_path_factory):
    """Return a function that gives (model, directory, report) of an export, made once."""
    made = {}

    def get(kind):
        if kind not in made:
            model, place = tiny_model(kind), tmp_path_factory.mktemp(kind)
            # As in a new process, in which nothing was exported before.
            AttentionInterface._global_mapping.pop(ATTENTION, None)
            with model_kept(model):
                made[kind] = (model, place, export_image_text_to_text(model, place))
        return made[kind]

    return get


def emitted_by(report):
    """Return the counts of fused operators of each part."""
    return [
        {op: counts["emitted"] for op, counts in part.replaced.items()}
        for part in report.parts.values()
    ]


def arrays(inputs):
    """Return the token ids and the other arguments of ``generate_from``."""
    given = {name: inputs[name].numpy() for name in inputs if name != "token_type_ids"}
    return given.pop("input_ids"), given


def expected_logits(model, inputs):
    """Return transformers' logits [B, S, V] after the prompt and each forced token but the last."""
    mask = inputs["attention_mask"]
    with torch.no_grad():
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        out = model(**inputs, position_ids=positions, use_cache=True)
        logits = [out.logits[:, -1]]
        for token in FORCED[:-1]:
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            out = model(
                input_ids=torch.full((len(mask), 1), token),
                attention_mask=mask,
                position_ids=mask.sum(1, keepdim=True) - 1,
                past_key_values=out.past_key_values,
                use_cache=True,
            )
            logits.append(out.logits[:, -1])
    return torch.stack(logits, 1).float().numpy()


def forced_logits(lm, inputs, **given):
    """Return an exported model's logits [B, S, V] after the prompt and forced tokens."""
    lm.stop_tokens = frozenset()
    ids, arguments = arrays(inputs)
    sampler = Forced([FORCED] * len(ids))
    lm.generate_from(ids, **arguments, **given, max_new_tokens=len(FORCED), sampler=sampler)
    return np.stack(sampler.logits, 1)


def check_answers(directory, inputs, expected, generated, tolerance):
    """Compare logits and generated tokens with those of transformers; return the last runner."""
    ids, given = arrays(inputs)
    for provider in PROVIDERS:
        lm = ImageTextLM(directory, providers=[provider])
        actual = forced_logits(lm, inputs)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)
        result = lm.generate_from(ids, **given, max_new_tokens=7)
        assert result.tokens == generated[:, ids.shape[1] :].tolist()
        assert result.prompt_tokens == int(given["attention_mask"].sum())
    return lm


def check_runs(
    model,
    directory,
    inputs,
    changed,
    expected_logits=expected_logits,
    *,
    least=100,
    routed=False,
    **told,
):
    """Compare logits and generated tokens of rows, of which the last has no image.

    ``changed``: other inputs, whose logits differ in the rows with images, by at least so many
    tolerances; ``routed``: whether experts compute tokens of all rows in one product, so that a row
    without images may differ by rounding; ``told``: what transformers takes beside, to generate.
    """
    expected = expected_logits(model, inputs)
    # Float32 sums in another order; see exporter/proof.py.
    tolerance = 1e-4 * np.abs(expected).max()
    difference = np.abs(expected_logits(model, changed) - expected).max((1, 2))
    assert (difference[:-1] > least * tolerance).all()  # images matter
    assert difference[-1] <= (tolerance / 100 if routed else 0)
    with torch.no_grad():
        generated = model.generate(
            **inputs, **told, max_new_tokens=7, do_sample=False, eos_token_id=None
        )
    lm = check_answers(directory, inputs, expected, generated, tolerance)
    count = int(inputs["attention_mask"][-1].sum())
    alone = {
        name: inputs[name][-1:, -count:]
        for name in ("input_ids", "token_type_ids")
        if name in inputs
    }
    with torch.no_grad():
        generated = model.generate(**alone, max_new_tokens=7, do_sample=False, eos_token_id=None)
    result = lm.generate_from(alone["input_ids"].numpy(), max_new_tokens=7)
    assert result.tokens == generated[:, count:].tolist()
