"""Parameters of generate: each has transformers' effect, or is refused."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import transformers
from onnxruntime_npu import cli
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.generation import CausalLM
from onnxruntime_npu.sampling import Sampler
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
)

from .conftest import PAD, PROMPTS

CACHES = ["dynamic", "static", "paged"]
COUNT = 12


@pytest.fixture(scope="module")
def model_of(lettered):
    """Return a function that gives transformers' model and its export, without stop tokens."""
    made = {}

    def get(cache="dynamic"):
        if cache not in made:
            original, directory = lettered(cache)
            model = CausalLM(directory, providers=["CPUExecutionProvider"])
            model.stop_tokens = frozenset()
            made[cache] = original, model
        return made[cache]

    return get


def of_transformers(original, rows, **options):
    """Return the new tokens of each row alone."""
    found = []
    for row in rows:
        ids = torch.tensor([row])
        out = original.generate(ids, max_new_tokens=COUNT, do_sample=False, **options)
        found.append(out[0, len(row) :].tolist())
    return found


@pytest.mark.parametrize("cache", CACHES)
def test_batches_of_any_lengths_are_those_of_transformers(model_of, cache):
    original, model = model_of(cache)
    expected = of_transformers(original, PROMPTS)
    assert model.generate(PROMPTS, max_new_tokens=COUNT).tokens == expected
    device = CausalLM(model.directory)
    result = device.generate(PROMPTS, max_new_tokens=COUNT, eos_token_id=None)
    assert result.tokens == expected
    assert result.texts == [device.tokenizer.decode(row) for row in expected]


def test_prompts_come_in_many_forms(model_of):
    _, model = model_of()
    rows = [[5, 7, 9], [4, 3, 2]]
    both = [model.generate([row], max_new_tokens=4).tokens[0] for row in rows]
    tokenizer = model.tokenizer
    texts = [tokenizer.decode(row) for row in rows]
    for given in (rows, tuple(rows), np.array(rows), np.array(rows, np.int32), torch.tensor(rows),
                  [np.array(row) for row in rows], [torch.tensor(row) for row in rows], texts,
                  tokenizer(texts), tokenizer(texts, return_tensors="pt")):  # fmt: skip
        assert model.generate(given, max_new_tokens=4).tokens == both
    for given in (rows[0], np.array(rows[0]), torch.tensor(rows[0]), [torch.tensor(5), 7, 9],
                  rows[:1], torch.tensor(rows[:1]), texts[0], texts[:1]):  # fmt: skip
        assert model.generate(given, max_new_tokens=4).tokens == both[:1]
    padded = tokenizer([texts[0], texts[1][:1]], padding=True, return_tensors="pt")
    expected = [both[0], model.generate([rows[1][:1]], max_new_tokens=4).tokens[0]]
    assert padded["attention_mask"][1].tolist() == [0, 0, 1]
    assert model.generate(**padded, max_new_tokens=4).tokens == expected
    assert model.generate(padded, max_new_tokens=4).tokens == expected
    right = {"input_ids": [rows[0], [4, 96, 96]], "attention_mask": [[1, 1, 1], [1, 0, 0]]}
    assert model.generate(**right, max_new_tokens=4).tokens == expected


@pytest.mark.parametrize(
    ("prompts", "error"),
    [
        (5, r"expected text, token ids, or a batch of either, got int"),
        (b"abc", "a batch of either, got bytes: 'bytes' object is no text"),
        ([1.5, 2.0], "token ids, or a batch of either, got list: 'float'"),
        (np.ones((1, 2)), r"got ndarray of shape \[1, 2\]: 'float'"),
        (np.ones((1, 2, 3), int), r"got ndarray of shape \[1, 2, 3\]"),
        ([[1, 2], "text"], "a batch of either, got list"),
        ([True, False], "'bool' object is no token id"),
        ([], "expected at least one token in every prompt"),
        ([[1], []], "expected at least one token in every prompt"),
        ("", "expected at least one token in every prompt"),
        (["one", "a\udcffb"], r"expected text of whole characters, got '\\udcff' at 1"),
        ([1, 97], "expected tokens from 0 to 96, got 97"),
        ({"ids": [1]}, "expected input_ids and attention_mask of a tokenizer, got ids"),
        (None, "expected either prompts or input_ids"),
    ],
)
def test_other_prompts_are_refused(model_of, prompts, error):
    with pytest.raises(ArgumentError, match=error):
        model_of()[1].generate(prompts)


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ([[1, 1]], r"for rows of \[3, 3\] tokens, got \[2\]"),
        ([[1, 1, 1], [0, 0, 0]], "expected at least one token"),
        ([[1, 1, 0.5], [1, 1, 1]], "expected an attention_mask of 0 and 1"),
        (7, "expected an attention_mask of 0 and 1"),
        (np.ones((2, 3, 3), int), "expected an attention_mask of 0 and 1"),
    ],
)
def test_other_masks_are_refused(model_of, mask, error):
    model = model_of()[1]
    with pytest.raises(ArgumentError, match=error):
        model.generate([[1, 2, 3], [4, 5, 6]], attention_mask=mask)
    with pytest.raises(ArgumentError, match="expected no attention_mask with texts"):
        model.generate("text", attention_mask=[[1, 1, 1, 1]])


class OpenAIPenalties:
    """The formula of OpenAI's documentation, for one row."""

    def __init__(self, prompt_length, presence, frequency):
        self.prompt_length, self.presence, self.frequency = prompt_length, presence, frequency

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        for token in set(new := input_ids[0, self.prompt_length :].tolist()):
            scores[0, token] -= new.count(token) * self.frequency + self.presence
        return scores


@pytest.mark.parametrize("cache", CACHES)
def test_penalties(model_of, cache):
    original, model = model_of(cache)
    plain = of_transformers(original, PROMPTS)
    expected = of_transformers(original, PROMPTS, repetition_penalty=1.7)
    assert expected != plain
    result = model.generate(PROMPTS, max_new_tokens=COUNT, repetition_penalty=1.7)
    assert result.tokens == expected
    for presence, frequency in ((4.0, 0.0), (0.0, 3.0), (2.5, 1.5), (-3.0, 0.0)):
        expected = [
            of_transformers(
                original,
                [row],
                repetition_penalty=1.2,
                logits_processor=LogitsProcessorList(
                    [OpenAIPenalties(len(row), presence, frequency)]
                ),
            )[0]
            for row in PROMPTS
        ]
        assert expected != of_transformers(original, PROMPTS, repetition_penalty=1.2)
        result = model.generate(
            PROMPTS,
            max_new_tokens=COUNT,
            repetition_penalty=1.2,
            presence_penalty=presence,
            frequency_penalty=frequency,
        )
        assert result.tokens == expected


@pytest.mark.parametrize("cache", CACHES)
def test_logits_processors_of_transformers(model_of, cache):
    original, model = model_of(cache)
    row = PROMPTS[1]
    stop = of_transformers(original, [row])[0][3]
    processors = [
        NoRepeatNGramLogitsProcessor(2),
        MinNewTokensLengthLogitsProcessor(len(row), 6, stop, "cpu"),
    ]
    expected = of_transformers(
        original, [row], logits_processor=LogitsProcessorList(processors), eos_token_id=stop
    )[0]
    assert expected != of_transformers(original, [row], eos_token_id=stop)[0]
    expected = expected[: expected.index(stop)] if stop in expected else expected
    for given in (processors, LogitsProcessorList(processors)):
        result = model.generate(
            row, max_new_tokens=COUNT, logits_processor=given, eos_token_id=stop
        )
        assert result.tokens == [expected]


def test_processors_get_tokens_and_scores_of_the_whole_batch(model_of):
    _, model = model_of()
    seen = []

    def record(input_ids, scores):
        seen.append((input_ids.clone(), tuple(scores.shape), scores.dtype))
        return scores

    result = model.generate(PROMPTS, max_new_tokens=3, logits_processor=record)
    assert [each[1:] for each in seen] == [((3, 97), torch.float32)] * 3
    longest = max(map(len, PROMPTS))
    for ids, *_ in seen:
        for row, prompt, new in zip(ids.tolist(), PROMPTS, result.tokens, strict=True):
            begun = [PAD] * (longest - len(prompt)) + prompt
            assert row == [*begun, *new][: len(row)] and len(row) == ids.shape[1] >= longest


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda ids, scores: None, r"a tensor of floats \[1, 97\], got NoneType"),
        (lambda ids, scores: scores[:, :5], r"a tensor of floats \[1, 97\], got \[1, 5\]"),
        (lambda ids, scores: scores.argmax(-1), "got Tensor"),
        (lambda ids, scores: scores - np.inf, "leave a score above -inf in each row"),
        (lambda ids, scores: scores * np.nan, "leave a score above -inf in each row"),
    ],
)
def test_results_of_processors_are_checked(model_of, function, error):
    with pytest.raises(ArgumentError, match=error):
        model_of()[1].generate([1, 2], logits_processor=function)


@pytest.mark.parametrize("cache", CACHES)
def test_stop_strings_end_rows_as_in_transformers(model_of, cache):
    original, model = model_of(cache)
    tokenizer = model.tokenizer
    free = [tokenizer.decode(row) for row in of_transformers(original, PROMPTS)]
    strings = [free[0][3:5], free[1][6:9], "not in any"]
    expected = of_transformers(original, PROMPTS, stop_strings=strings, tokenizer=tokenizer)
    pieces = []
    result = model.generate(
        PROMPTS, max_new_tokens=COUNT, stop_strings=strings, on_text=pieces.append
    )
    assert result.tokens == expected
    for text, whole, reason in zip(result.texts, free, result.finish_reasons, strict=True):
        ends = [whole.index(string) for string in strings if string in whole]
        assert text == whole[: min(ends, default=len(whole))]
        assert reason == ("stop" if ends else "length")
    assert len(result.tokens[0]) == 5 and "".join(pieces) == result.texts[0]
    only = model.generate(PROMPTS[0], max_new_tokens=COUNT, stop_strings=strings[0])
    assert only.texts == result.texts[:1]


def test_tokens_that_end_a_row(model_of):
    original, model = model_of()
    free = of_transformers(original, PROMPTS)
    stops = [free[0][4], free[1][2]]
    for given in (stops, tuple(stops), np.array(stops), torch.tensor(stops)):
        result = model.generate(PROMPTS, max_new_tokens=COUNT, eos_token_id=given)
        for tokens, whole in zip(result.tokens, free, strict=True):
            ends = [whole.index(token) for token in stops if token in whole]
            assert tokens == whole[: min(ends, default=COUNT)]
    model.stop_tokens = frozenset(stops)
    try:
        assert model.generate(PROMPTS, max_new_tokens=COUNT).tokens == result.tokens
        assert model.generate(PROMPTS, max_new_tokens=COUNT, eos_token_id=None).tokens == free
    finally:
        model.stop_tokens = frozenset()


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_p": 0.5},
        {"min_p": 0.3},
        {"temperature": 3.0, "top_k": 0, "top_p": 0.9, "min_p": 0.01},
    ],
)
def test_sampling_options_are_those_of_a_sampler(model_of, options):
    _, model = model_of()
    defaults = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
    sampler = Sampler(**{**defaults, **options}, seed=4)
    expected = model.generate_tokens(PROMPTS, max_new_tokens=COUNT, sampler=sampler).tokens
    result = model.generate(PROMPTS, max_new_tokens=COUNT, do_sample=True, seed=4, **options)
    assert result.tokens == expected
    other = model.generate(PROMPTS, max_new_tokens=COUNT, do_sample=True, seed=5, **options)
    assert other.tokens != expected


def test_one_candidate_is_the_greedy_choice(model_of):
    _, model = model_of()
    greedy = model.generate(PROMPTS, max_new_tokens=COUNT).tokens
    for one in (
        *({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-6}),
        *({"temperature": 1e-300}, {"top_p": 1e-300}),  # zero to float32
    ):
        assert model.generate(PROMPTS, max_new_tokens=COUNT, do_sample=True, **one).tokens == greedy


@pytest.mark.parametrize("cache", CACHES)
def test_several_sequences_of_each_prompt(model_of, cache):
    _, model = model_of(cache)
    options = {"do_sample": True, "temperature": 3.0, "seed": 1, "max_new_tokens": COUNT}
    result = model.generate(PROMPTS[:2], num_return_sequences=3, **options)
    assert len(result.tokens) == len(result.texts) == 6
    assert len(set(map(tuple, result.tokens))) == 6
    repeated = [row for row in PROMPTS[:2] for _ in range(3)]
    assert model.generate(repeated, **options).tokens == result.tokens


def test_options_left_out_are_those_of_the_directory(model_of, tmp_path):
    _, model = model_of()
    place = shutil.copytree(model.directory, tmp_path / "model")
    settings = {"temperature": 5.0, "top_k": 7, "repetition_penalty": 1.7, "eos_token_id": [3, 4]}
    (place / "generation_config.json").write_text(json.dumps(settings))
    configured = CausalLM(place, providers=["CPUExecutionProvider"])
    for given in ({}, {"do_sample": True, "seed": 2}):
        said = {**settings, **given}
        if not given:
            del said["temperature"], said["top_k"]
        expected = model.generate(PROMPTS, max_new_tokens=COUNT, **said).tokens
        assert configured.generate(PROMPTS, max_new_tokens=COUNT, **given).tokens == expected
    # A sampler is given the model's own logits.
    greedy = model.generate(PROMPTS, max_new_tokens=COUNT, eos_token_id=[3, 4]).tokens
    result = configured.generate(PROMPTS, max_new_tokens=COUNT, sampler=Sampler())
    assert result.tokens == greedy


def test_the_command_takes_what_it_is_not_told_from_the_directory(model_of, tmp_path, capsys):
    place = shutil.copytree(model_of()[1].directory, tmp_path / "model")
    settings = {"temperature": 3.0, "top_k": 90, "top_p": 0.9, "min_p": 0.1}
    settings["repetition_penalty"] = 1.7
    (place / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": 96}))
    configured = CausalLM(place, providers=["CPUExecutionProvider"])
    command = ["generate", str(place), "--prompt", "What?", "--provider", "cpu"]
    for given, options in ((["--greedy"], {}), (["--seed", "2"], {"do_sample": True, "seed": 2})):
        assert cli.main([*command, *given, "--max-new-tokens", str(COUNT)]) == 0
        expected = configured.generate("What?", max_new_tokens=COUNT, **options)
        assert capsys.readouterr().out == f"{expected.texts[0]}\n"


class Recorder:
    def __init__(self):
        self.values, self.ends = [], 0

    def put(self, value):
        self.values.append(value.tolist())

    def end(self):
        self.ends += 1


def test_streamers_get_what_transformers_gives_them(model_of):
    original, model = model_of()
    rows = [[5, 7, 9], [4, 3, 2]]
    free = of_transformers(original, rows)
    stop = next(token for token in free[0] if token not in free[1])
    expected, recorder = Recorder(), Recorder()
    original.generate(
        torch.tensor(rows), max_new_tokens=COUNT, do_sample=False, eos_token_id=stop,
        streamer=expected,
    )  # fmt: skip
    model.generate(rows, max_new_tokens=COUNT, eos_token_id=stop, streamer=recorder)
    assert PAD in expected.values[-1]
    assert recorder.values == expected.values and recorder.ends == expected.ends == 1


def test_text_streamers(model_of, capsys):
    _, model = model_of()
    streamer = transformers.TextStreamer(model.tokenizer, skip_prompt=True)
    result = model.generate([5, 7, 9], max_new_tokens=COUNT, streamer=streamer)
    assert capsys.readouterr().out == result.texts[0] + "\n"
    with pytest.raises(ValueError, match="only supports batch size 1"):
        model.generate(PROMPTS, streamer=streamer)

    def fail(input_ids, scores):
        raise KeyError("of the processor")

    iterator = transformers.TextIteratorStreamer(model.tokenizer, skip_prompt=True, timeout=60)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(model.generate, [5, 7], max_new_tokens=3, streamer=iterator)
        assert "".join(iterator) == run.result().texts[0]
        run = pool.submit(model.generate, [5, 7], streamer=iterator, logits_processor=fail)
        assert "".join(iterator) == ""  # and it does not wait for ever
        with pytest.raises(KeyError):
            run.result()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"temperature": 0.5}, "temperature expected do_sample=True"),
        ({"seed": 1}, "seed expected do_sample=True"),
        ({"do_sample": 1}, "do_sample expected True or False, got 1"),
        ({"do_sample": True, "temperature": 0}, "temperature expected a number above 0, got 0"),
        ({"do_sample": True, "top_p": 0}, "expected 0 < top_p <= 1, got 0"),
        ({"do_sample": True, "top_k": -1}, "a whole number from 0 as top_k, got -1"),
        ({"do_sample": True, "top_k": 5.0}, r"a whole number from 0 as top_k, got 5\.0"),
        ({"do_sample": True, "top_k": True}, "a whole number from 0 as top_k, got True"),
        ({"do_sample": True, "seed": "3"}, "a whole number from 0 as seed, got '3'"),
        ({"do_sample": True, "min_p": 2}, "expected 0 <= min_p <= 1, got 2"),
        ({"do_sample": True, "sampler": Sampler()}, "expected either a sampler or do_sample"),
        ({"repetition_penalty": 0}, "expected a number of float32 above 0, got 0"),
        ({"repetition_penalty": 1e-300}, "expected a number of float32 above 0, got 1e-300"),
        ({"presence_penalty": 1e300}, "expected a finite number of float32, got 1e"),
        ({"frequency_penalty": -1e300}, "expected a finite number of float32, got -1e"),
        ({"presence_penalty": float("nan")}, "presence_penalty expected a finite number"),
        ({"frequency_penalty": "2"}, "expected a finite number of float32, got '2'"),
        ({"num_return_sequences": 2}, "num_return_sequences expected do_sample=True"),
        ({"do_sample": True, "num_return_sequences": 0}, "a whole number from 1, got 0"),
        ({"num_beams": 4}, "num_beams expected 1, got 4"),
        ({"penalty_alpha": 0.6}, "expected options among do_sample, .*, got penalty_alpha"),
        ({"stop_strings": ""}, "stop_strings expected texts, got ''"),
        ({"stop_strings": 5}, "stop_strings expected texts, got 5"),
        ({"stop_strings": ["a", ""]}, "stop_strings expected texts"),
        ({"eos_token_id": "</s>"}, "eos_token_id expected a token or tokens, got '</s>'"),
        ({"eos_token_id": True}, "eos_token_id expected a token or tokens, got True"),
        ({"eos_token_id": -1}, "eos_token_id expected tokens from 0 to .*, got -1: use None"),
        ({"eos_token_id": [3, 10**9]}, "eos_token_id expected tokens from 0 to .*, got 1000000000"),
        ({"logits_processor": "x"}, "logits_processor expected functions, got 'x'"),
        ({"logits_processor": [None]}, "logits_processor expected functions, got None"),
        ({"streamer": print}, "streamer expected methods put and end"),
        ({"on_text": 5}, "on_text expected a function of a text, got 5"),
        ({"max_new_tokens": 0}, "max_new_tokens expected a whole number from 1, got 0"),
    ],
)
def test_other_options_are_refused(model_of, options, error):
    with pytest.raises(ArgumentError, match=error):
        model_of()[1].generate([1, 2], **options)


def test_token_ids_need_no_tokenizer(exported, model_of):
    _, directory, _ = exported("llama", cache="dynamic")
    model = CausalLM(directory, providers=["CPUExecutionProvider"])
    result = model.generate([5, 7, 9], max_new_tokens=4, eos_token_id=None)
    expected = of_transformers(model_of()[0], [[5, 7, 9]])[0][:4]
    assert result.tokens == [expected] and result.texts == []
    for needs in ({"prompts": "text"}, {"prompts": [1], "stop_strings": "x"}):
        with pytest.raises(ArgumentError, match="holds no tokenizer"):
            model.generate(**needs)
