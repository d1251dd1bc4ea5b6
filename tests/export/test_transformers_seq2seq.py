"""Exported encoder-decoders under transformers' generate: the same tokens, or a refusal."""

from __future__ import annotations

import pytest
import torch
import transformers
from onnxruntime_npu import NPUModelForSeq2SeqLM
from onnxruntime_npu.errors import ArgumentError

from .test_seq2seq import model_and_export, source_of

NPU, CPU = "NPUExecutionProvider", "CPUExecutionProvider"
WAYS = {
    "greedy": {},
    "sampling": {"do_sample": True, "temperature": 2.0, "num_return_sequences": 2},
    "beams": {"num_beams": 4, "num_return_sequences": 2, "eos_token_id": [50, 60]},
    "without a cache": {"use_cache": False},
    "a prompt": {"decoder_input_ids": torch.tensor([[3, 41, 17]] * 3), "repetition_penalty": 1.5},
}


@pytest.fixture(scope="module")
def exported_kind(tmp_path_factory):
    """Return a function that gives a model and the directory of its export."""
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = model_and_export(tmp_path_factory, kind)[:2]
        return made[kind]

    return get


def generated(generate, source, **options):
    torch.manual_seed(5)
    defaults = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    return generate(**source, **{**defaults, **options}).tolist()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "provider"), [("bart", NPU), ("bart", CPU), ("whisper", NPU)])
def test_generate_is_that_of_transformers(exported_kind, kind, provider, way):
    original, directory = exported_kind(kind)
    model = NPUModelForSeq2SeqLM.from_pretrained(directory, providers=[provider])
    source = source_of(original)

    def generate(**inputs):  # of all models: Whisper has a way of its own
        return transformers.GenerationMixin.generate(original, **inputs)

    expected = generated(generate, source, **WAYS[way])
    assert generated(model.generate, source, **WAYS[way]) == expected


def test_calls_of_the_model(exported_kind):
    original, directory = exported_kind("bart")
    model = NPUModelForSeq2SeqLM.from_pretrained(directory)
    source = source_of(original)
    ids = torch.tensor([[3, 41, 17]] * 3)
    with torch.no_grad():
        expected = original(**source, decoder_input_ids=ids)
    output = model(**source, decoder_input_ids=ids)
    # float32, summed in another order: logits are some tens.
    torch.testing.assert_close(output.logits, expected.logits, rtol=0, atol=2e-3)
    seen = source["attention_mask"][..., None]
    torch.testing.assert_close(
        output.encoder_last_hidden_state * seen,
        expected.encoder_last_hidden_state * seen,
        rtol=0,
        atol=1e-4,
    )
    encoded = model.get_encoder()(**source)
    first = model(
        encoder_outputs=encoded, attention_mask=source["attention_mask"],
        decoder_input_ids=ids[:, :2],
    )  # fmt: skip
    second = model(
        encoder_outputs=encoded, attention_mask=source["attention_mask"],
        decoder_input_ids=ids[:, 2:], past_key_values=first.past_key_values, return_dict=False,
    )  # fmt: skip
    torch.testing.assert_close(second[0], expected.logits[:, 2:], rtol=0, atol=2e-3)


def test_other_calls_are_refused(exported_kind):
    original, directory = exported_kind("bart")
    model = NPUModelForSeq2SeqLM.from_pretrained(directory, providers=[CPU])
    source = source_of(original)
    ids = torch.tensor([[3, 41]] * 3)
    used = model(**source, decoder_input_ids=ids).past_key_values
    encoded = model.get_encoder()(**source)
    for options, error in (
        ({}, r"decoder_input_ids expected a tensor \[batch, tokens\]"),
        ({"decoder_input_ids": torch.tensor([[97]])}, "expected tokens from 0 to 96, got 97"),
        ({"decoder_input_ids": ids[:2], "past_key_values": used}, "the cache has 3 rows, got 2"),
        ({"decoder_input_ids": ids[:2]}, "expected a multiple of 3 rows, of the sources, got 2"),
        (
            {"decoder_input_ids": ids, "past_key_values": transformers.DynamicCache()},
            r"past_key_values expected new_cache\(length\), got DynamicCache",
        ),
        (
            {"decoder_input_ids": ids, "encoder_outputs": (torch.ones(3, 21, 64),)},
            "encoder_outputs expected what get_encoder",
        ),
        (
            {"decoder_input_ids": ids, "decoder_attention_mask": torch.tensor([[0, 1]] * 3)},
            "decoder_attention_mask expected ones",
        ),
        (
            {"decoder_input_ids": ids, "past_key_values": model.new_cache(1)},
            "the cache takes 1 tokens, got 0 and 2 more",
        ),
    ):
        given = source if "encoder_outputs" in options else {"encoder_outputs": encoded}
        with pytest.raises(ArgumentError, match=error):
            model(**given, **options)
    with pytest.raises(ArgumentError, match="expected the encoder's inputs input_ids"):
        model(decoder_input_ids=ids)
    with pytest.raises(ArgumentError, match="beams that continue beams of the same source"):
        used.reorder_cache(torch.tensor([1, 0, 2]))
    with pytest.raises(ArgumentError, match="max_length expected at most 64"):
        model.generate(**source, max_new_tokens=80)
