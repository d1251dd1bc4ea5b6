"""Guesses from earlier text: fewer runs of the model, and the tokens of plain generation."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.generation import CausalLM
from onnxruntime_npu.generation.prompt_lookup import LookupStepper, RepeatedText

from .conftest import PROMPTS

COUNT = 24
REPEATED = [[5, 9, 11, 5, 9, 11, 5, 9], *PROMPTS]


@pytest.mark.parametrize(
    ("tokens", "count", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], 2, [3, 4]),
        ([1, 2, 3, 4, 1, 2], 9, [3, 4, 1, 2]),
        ([1, 2, 3, 1, 2, 4, 9, 1, 2], 2, [4, 9]),  # the latest
        ([1, 2, 3, 7, 7, 7, 1, 2, 4, 1, 2], 4, [3, 7, 7, 7]),  # the latest with as many
        ([7, 7, 7, 7], 2, [7, 7]),
        ([8, 1, 5, 2, 1], 2, [5, 2]),  # one token, where no two occurred before
        ([1, 2, 3], 2, []),
        ([4], 3, []),
    ],
)
def test_what_followed_before_is_guessed(
    tokens: list[int], count: int, expected: list[int]
) -> None:
    assert RepeatedText(tokens, 2).continuation(count) == expected


class Counting:
    """Logits that prefer the token after the last one, modulo ``size``; writes down its runs."""

    size = 4

    def __init__(self, prompts: list[list[int]]) -> None:
        self.prompts, self.runs = prompts, []

    def prefill(self) -> ort.OrtValue:
        last = [self.after(row[-1:]) for row in self.prompts]
        return ort.OrtValue.ortvalue_from_numpy(np.stack(last))

    def score(self, rows, past, new):
        self.runs.append((rows, past, new))
        return [self.after(each) for each in new]

    def close(self) -> None: ...

    def after(self, tokens: list[int]) -> np.ndarray:
        return np.eye(self.size, dtype=np.float32)[[(token + 1) % self.size for token in tokens]]


def generated(state: LookupStepper, steps: int) -> np.ndarray:
    """The greedy tokens [B, steps]."""
    tokens = [state.prefill().numpy()[:, -1].argmax(-1)]
    for _ in range(steps - 1):
        tokens.append(state.decode(tokens[-1]).numpy()[:, -1].argmax(-1))
    return np.stack(tokens, 1)


def test_only_rows_without_known_logits_are_run() -> None:
    model = Counting([[0, 1, 2, 3, 0], [1, 1]])
    state = LookupStepper(model, model.prompts, length=12, count=3, longest=2,
                          stop_tokens=frozenset())  # fmt: skip
    assert generated(state, 6).tolist() == [[1, 2, 3, 0, 1, 2], [2, 3, 0, 1, 2, 3]]
    # The first row is run with three guesses, all right, and again after four tokens; the second
    # has nothing to guess from until its fourth new token.
    assert model.runs[0] == ([0, 1], [5, 2], [[1, 2, 3, 0], [2]])
    assert [rows for rows, _, _ in model.runs[1:4]] == [[1]] * 3
    assert model.runs[3] == ([1], [5], [[1, 2, 3, 0]])
    assert model.runs[4][0] == [0]
    assert state.accepted == 4


def test_no_token_is_run_beyond_the_length_or_after_the_end() -> None:
    model = Counting([[0, 1, 2, 3, 0], [2, 0, 2]])
    state = LookupStepper(model, model.prompts, length=9, count=8, longest=2,
                          stop_tokens=frozenset([3]))  # fmt: skip
    generated(state, 4)
    assert model.runs == [([0], [5], [[1, 2, 3, 0]])]


@pytest.fixture(scope="module")
def paged(lettered) -> CausalLM:
    return CausalLM(lettered("paged")[1])


@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"do_sample": True, "seed": 4, "top_k": 3},
        {"eos_token_id": [9, 5, 11]},
    ],
    ids=["greedy", "penalties", "sampled", "stops"],
)
def test_tokens_are_those_of_plain_generation(paged: CausalLM, count: int, options) -> None:
    options = {"eos_token_id": None, "max_new_tokens": COUNT} | options
    plain = paged.generate(REPEATED, **options)
    ahead = paged.generate(
        REPEATED, prompt_lookup_num_tokens=count, max_matching_ngram_size=3, **options
    )
    assert ahead.tokens == plain.tokens
    assert ahead.finish_reasons == plain.finish_reasons
    assert plain.guessed_tokens == 0
    assert 0 <= ahead.accepted_tokens <= ahead.guessed_tokens > 0


def test_right_guesses_are_counted_and_save_runs(paged: CausalLM, monkeypatch) -> None:
    runs = 0
    stepper = type(paged.step_model.scoring_stepper([[1]], 2))
    score = stepper.score

    def counted(self, rows, past, new):
        nonlocal runs
        runs += 1
        return score(self, rows, past, new)

    monkeypatch.setattr(stepper, "score", counted)
    prompt = paged.generate([5, 9], max_new_tokens=40, eos_token_id=None).tokens[0]
    result = paged.generate(
        prompt, max_new_tokens=40, eos_token_id=None, prompt_lookup_num_tokens=5
    )
    assert len(result.tokens[0]) == 40
    assert runs == 39 - result.accepted_tokens < 39


def test_text_comes_as_in_plain_generation(paged: CausalLM) -> None:
    pieces: dict[int | None, list[str]] = {None: [], 4: []}
    for count, to in pieces.items():
        paged.generate(
            REPEATED[0], max_new_tokens=COUNT, prompt_lookup_num_tokens=count, on_text=to.append
        )
    assert pieces[4] == pieces[None]


def test_other_caches_and_counts_are_refused(paged: CausalLM, lettered) -> None:
    growing = CausalLM(lettered("dynamic")[1], providers=["CPUExecutionProvider"])
    with pytest.raises(ArgumentError, match="expected a model exported with cache='paged'"):
        growing.generate([1, 2], prompt_lookup_num_tokens=3)
    for name in ("prompt_lookup_num_tokens", "max_matching_ngram_size"):
        for value in (0, -1, 1.5, True, "3"):
            with pytest.raises(ArgumentError, match=f"{name} expected a whole number from 1"):
                paged.generate([1, 2], **{"prompt_lookup_num_tokens": 2, name: value})
