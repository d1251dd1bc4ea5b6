"""Exported directories in the place of transformers' models: the same results, or a refusal."""

from __future__ import annotations

import logging

import ml_dtypes
import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import pytest
import torch
import transformers
from onnxruntime_npu import NPUModelForCausalLM, NPUModelForFeatureExtraction
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.generation.row_choice import RowChoice
from onnxruntime_npu.session.ortvalue import ortvalue_from_numpy, ortvalue_to_numpy

from .conftest import PAD, letter_tokenizer

NPU, CPU = "NPUExecutionProvider", "CPUExecutionProvider"
CACHES = ["dynamic", "static", "paged"]
WAYS = {
    "greedy": {},
    "penalties": {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "eos_token_id": [50, 60]},
    "sampling": {"do_sample": True, "temperature": 2.0, "num_return_sequences": 2},
    "beams": {"num_beams": 4, "num_return_sequences": 3},
    "beams that end": {"num_beams": 2, "length_penalty": 2.0, "eos_token_id": 50},
    "sampled beams": {"num_beams": 3, "do_sample": True, "top_k": 5},
    "without a cache": {"use_cache": False},
}


@pytest.fixture(scope="module")
def pair(lettered):
    """Return a function that gives transformers' model and ours."""
    opened = {}

    def get(cache="dynamic", provider=CPU):
        original, directory = lettered(cache)
        key = (cache, provider)
        if key not in opened:
            opened[key] = NPUModelForCausalLM.from_pretrained(directory, providers=[provider])
        return original, opened[key]

    return get


def generated(model, inputs, **options):
    torch.manual_seed(5)
    return model.generate(**inputs, **{"do_sample": False, "max_new_tokens": 10, **options})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("cache", "provider"), [*((c, NPU) for c in CACHES), ("static", CPU)])
def test_generate_is_that_of_transformers(pair, way, cache, provider):
    original, model = pair(cache, provider)
    inputs = letter_tokenizer()(["Hello there", "Hi"], padding=True, return_tensors="pt")
    expected = generated(original, inputs, **WAYS[way])
    found = generated(model, inputs, **WAYS[way])
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("cache", CACHES)
def test_a_cache_continues_a_conversation(pair, cache):
    original, model = pair(cache, NPU)
    first = letter_tokenizer()(["Hello there", "Hi"], padding=True, return_tensors="pt")
    past = model.new_cache(60)
    begun = generated(model, first, past_key_values=past)
    assert past.get_seq_length() == begun.shape[1] - 1
    more = torch.tensor([[5, 6, 7], [8, 9, 10]])
    mask = torch.nn.functional.pad(first["attention_mask"], (0, 13), value=1)
    second = {"input_ids": torch.cat([begun, more], dim=1), "attention_mask": mask}
    expected = generated(original, second, num_beams=2)
    assert generated(model, second, past_key_values=past, num_beams=1).tolist() == (
        generated(original, second).tolist()
    )
    assert generated(model, second, num_beams=2).tolist() == expected.tolist()
    with pytest.raises(ArgumentError, match=r"the cache takes 60 tokens, got 3\d and 30 more"):
        model(torch.ones(2, 30, dtype=torch.long), past_key_values=past)
    with pytest.raises(ArgumentError, match=r"has \d+ tokens, got none behind them"):
        generated(model, first, past_key_values=past)
    with pytest.raises(ArgumentError, match="the cache has 2 rows, got 1"):
        model(torch.tensor([[1]]), past_key_values=past)


@pytest.mark.parametrize("cache", CACHES)
def test_calls_of_the_model(pair, cache):
    original, model = pair(cache)
    ids = torch.tensor([[5, 7, 9, 11], [3, 4, 5, 6]])
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    with torch.no_grad():
        whole = original(input_ids=ids, attention_mask=mask).logits
        step = original(input_ids=torch.cat([ids, ids[:, :1]], dim=1)).logits
    output = model(input_ids=ids, attention_mask=mask)
    # float32, summed in another order: logits are some tens.
    torch.testing.assert_close(output.logits, whole[:, -1:], rtol=0, atol=2e-3)
    output = model(ids)
    output = model(ids[:, :1], past_key_values=output.past_key_values, return_dict=False)
    torch.testing.assert_close(output[0], step[:, -1:], rtol=0, atol=2e-3)
    assert output[1].get_seq_length() == 5
    assert "past_key_values" not in model(ids, use_cache=False)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda m: m(torch.tensor([1, 2])), r"input_ids expected a tensor \[batch, sequence\]"),
        (lambda m: m(torch.tensor([[97]])), "expected tokens from 0 to 96, got 97"),
        (lambda m: m(torch.ones(1, 2)), "expected prompts as rows of token ids"),
        (lambda m: m(torch.ones(1, 129, dtype=int)), "at most 128 tokens, the model's context"),
        (
            lambda m: m(torch.tensor([[1, 2]]), attention_mask=torch.tensor([[1]])),
            r"attention_mask expected \[batch, total\]",
        ),
        (
            lambda m: m(torch.tensor([[1, 2]]), attention_mask=torch.tensor([1, 0])),
            r"attention_mask expected \[batch, total\] of input_ids \[1, 2\], got \[2\]",
        ),
        (
            lambda m: m(torch.tensor([[1, 2]]), attention_mask=torch.tensor([[0, 0]])),
            "a token of each row among the 2 new ones, got padding only in row 0",
        ),
        (
            lambda m: m.generate(
                torch.tensor([[0, 0, 1], [1, 2, 3]]),
                attention_mask=torch.tensor([[0, 0, 1], [1, 1, 1]]),
                prefill_chunk_size=2,
            ),
            "padding only in row 0: pass padded prompts whole, without prefill_chunk_size",
        ),
        (
            lambda m: m(torch.tensor([[1]]), past_key_values=transformers.DynamicCache()),
            "past_key_values expected an NPUCache, got DynamicCache",
        ),
        (
            lambda m: m.generate(torch.tensor([[1] * 100]), max_new_tokens=40),
            "max_length expected at most 128, the model's context, got 140",
        ),
        (
            lambda m: m.generate(torch.tensor([[1]]), cache_implementation="static"),
            "cache_implementation expected none, got static",
        ),
        (
            lambda m: m.generate(torch.tensor([[1, 2]]), prompt_lookup_num_tokens=3),
            "expected no assistant_model and prompt_lookup_num_tokens, got one of them",
        ),
        (
            lambda m: m.generate(torch.tensor([[1, 2]]), assistant_model=m),
            "expected no assistant_model and prompt_lookup_num_tokens, got one of them",
        ),
        (lambda m: m.generate(torch.tensor([[1]]), max_tokens=3), "max_tokens"),
        (
            lambda m: m.generate(torch.tensor([[1]]), output_attentions=True),
            "output_attentions expected false",
        ),
        (
            lambda m: m.generate(torch.tensor([[1]]), output_hidden_states=True),
            "output_hidden_states expected false",
        ),
        (lambda m: m.generate(inputs_embeds=torch.ones(1, 2, 4)), "inputs_embeds"),
        (lambda m: m.to("cuda"), "expected cpu or npu, got cuda"),
        (lambda m: m.to(torch.float16), "expected torch.float32, the exported dtype"),
    ],
)
def test_other_calls_are_refused(pair, call, error):
    with pytest.raises(ValueError, match=error):
        call(pair()[1])


def test_beams_choose_rows_that_exist(pair):
    _, model = pair()
    past = model.new_cache(8)
    with pytest.raises(ArgumentError, match="expected indices of all rows of a cache in use"):
        past.reorder_cache(torch.tensor([0]))
    model(torch.tensor([[1], [2]]), past_key_values=past)
    for rows, error in (([0], "expected indices of all rows"), ([0, 2], "rows from 0 to 1")):
        with pytest.raises(ArgumentError, match=error):
            past.reorder_cache(torch.tensor(rows))


@pytest.fixture
def errors(caplog):
    """Return a function that gives the errors that transformers has printed."""
    transformers.logging.enable_propagation()
    yield lambda: [each for each in caplog.records if each.levelno >= logging.ERROR]
    transformers.logging.disable_propagation()


def test_pipelines_generate_text(pair, errors):
    original, model = pair()
    tokenizer = letter_tokenizer()
    options = {"max_new_tokens": 8, "do_sample": False}
    pipelines = [
        transformers.pipeline("text-generation", model=each, tokenizer=tokenizer)
        for each in (original, model)
    ]
    (whole,) = pipelines[0]("Hello", **options)
    begun = whole["generated_text"][len("Hello") :]
    expected, found = (
        [
            each("Hello", **options),
            each(["Hello", "Hi"], batch_size=2, num_beams=2, **options),
            each("Hello", stop_sequence=begun[1], **options),
        ]
        for each in pipelines
    )
    assert expected[0] != expected[2], "the stop string ends nothing"
    assert found == expected
    assert errors() == []


def test_directories_of_other_models(lettered, tmp_path):
    with pytest.raises(ArgumentError, match=r"holds no model.onnx: export a model to it first"):
        NPUModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match="provider 'TPU' is not available"):
        NPUModelForCausalLM.from_pretrained(lettered()[1], providers=["TPU"])
    with pytest.raises(ArgumentError, match=r"a list of providers, got 'TPU': \['TPU'\]"):
        NPUModelForCausalLM.from_pretrained(lettered()[1], providers="TPU")
    with pytest.raises(ArgumentError, match="was not made by export_encoder"):
        NPUModelForFeatureExtraction.from_pretrained(lettered()[1], providers=[CPU])


def test_the_package_imports_without_transformers(run_python):
    code, output = run_python(
        "import sys, onnxruntime_npu; assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    assert code == 0, output


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A BERT and its export."""
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=64, pad_token_id=PAD,
    )  # fmt: skip
    original = transformers.BertModel(config).eval()
    directory = tmp_path_factory.mktemp("encoder")
    onnxruntime_npu.export_encoder(original, directory, tokenizer=letter_tokenizer())
    return original, directory


@pytest.mark.parametrize("provider", [NPU, CPU])
def test_features_are_those_of_transformers(encoder, provider, errors):
    original, directory = encoder
    tokenizer = letter_tokenizer()
    model = NPUModelForFeatureExtraction.from_pretrained(directory, providers=[provider])
    inputs = tokenizer(["Hello there", "Hi"], padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = original(**inputs).last_hidden_state
    output = model(**inputs)
    seen = inputs["attention_mask"][..., None]
    torch.testing.assert_close(output.last_hidden_state * seen, hidden * seen, rtol=0, atol=1e-5)
    mean = (hidden * seen).sum(1) / seen.sum(1)
    torch.testing.assert_close(output.sentence_embedding, mean, rtol=0, atol=1e-5)
    expected, found = (
        transformers.pipeline("feature-extraction", model=each, tokenizer=tokenizer)("Hello")
        for each in (original, model)
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert errors() == []
    for given, error in (
        ({"input_ids": torch.ones(1, 2)}, "input_ids expected a tensor of whole numbers"),
        ({"input_ids": torch.tensor([1])}, r"input_ids expected \[.*\], got \[1\]"),
        ({"input_ids": torch.ones(1, 65, dtype=int)}, "at most 64 tokens, .*, got 65: let the tok"),
        ({"input_ids": torch.ones(1, 0, dtype=int)}, "expected at least one token, got none"),
        ({"pixels": torch.ones(1)}, "expected input_ids, .*, got pixels"),
        ({}, "got none"),
    ):
        with pytest.raises(ArgumentError, match=error):
            model(**given)


@pytest.mark.parametrize("provider", [NPU, CPU])
def test_rows_of_caches_are_chosen_on_their_device(provider):
    dtypes = {
        "float": (np.float32, 1),
        "float16": (np.float16, 10),
        "bfloat16": (ml_dtypes.bfloat16, 16),
        "int8": (np.int8, 3),
    }
    arrays = [np.arange(24).reshape(4, 3, 2).astype(dtype) for dtype, _ in dtypes.values()]
    device = "npu" if provider == NPU else "cpu"
    choice = RowChoice([f"tensor({name})" for name in dtypes], (device, 0), [provider])
    if provider == NPU:
        values = [ortvalue_from_numpy(array) for array in arrays]
    else:
        values = [
            ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
                array.view(f"u{array.itemsize}"), number
            )
            for array, (_, number) in zip(arrays, dtypes.values(), strict=True)
        ]
    for rows in ([2, 0, 0, 3], [1], [3, 3, 3, 3, 3, 0]):
        chosen = choice(values, np.array(rows))
        assert {value.device_name() for value in chosen} == {device}
        for value, array in zip(chosen, arrays, strict=True):
            np.testing.assert_array_equal(ortvalue_to_numpy(value), array[rows])
