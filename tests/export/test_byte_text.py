"""Text of tokens that are bytes, against the tokenizer's own decoding."""

from __future__ import annotations

import itertools
import random

import pytest
from onnxruntime_npu.generation.byte_text import ByteTextStream, ByteTokens
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL, ADDED = "<end>", "two words\N{SNOWMAN}"


@pytest.fixture(scope="module")
def tokenizer():
    """A token of each byte, of pairs of some, a special one, and one that is text itself."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = list(itertools.pairwise(alphabet))[::7]
    words = [*alphabet, *map("".join, merges)]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(SPECIAL)])
    tokenizer.add_tokens([AddedToken(ADDED)])
    return tokenizer


def streamed(tokenizer, tokens, left_out):
    pieces = []
    stream = ByteTextStream(ByteTokens(tokenizer), left_out, pieces.append)
    for token in tokens:
        stream.put([token])
    stream.end()
    assert all(pieces)
    return "".join(pieces)


def test_any_bytes_are_the_text_that_the_tokenizer_makes_of_them(tokenizer):
    chance, special = random.Random(1), tokenizer.token_to_id(SPECIAL)
    size = tokenizer.get_vocab_size()
    assert ByteTokens.recognises(tokenizer)
    for _ in range(2000):
        tokens = [chance.randrange(size + 2) for _ in range(chance.randrange(12))]
        assert streamed(tokenizer, tokens, {special}) == tokenizer.decode(tokens)
        assert streamed(tokenizer, tokens, ()) == tokenizer.decode(
            tokens, skip_special_tokens=False
        )


def test_characters_that_are_complete_are_not_held_back(tokenizer):
    pieces = []
    stream = ByteTextStream(ByteTokens(tokenizer), (), pieces.append)
    tokenizer_of_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ((word, _),) = tokenizer_of_bytes.pre_tokenize_str("a\N{EURO SIGN}b")
    seen = []
    for character in word:
        stream.put([tokenizer.token_to_id(character)])
        seen.append("".join(pieces))
    assert seen == ["a", "a", "a", "a\N{EURO SIGN}", "a\N{EURO SIGN}b"]
    stream.put([None])
    stream.end()
    assert "".join(pieces) == "a\N{EURO SIGN}b"


def test_other_decoders_are_not_taken_for_it(tokenizer):
    other = Tokenizer.from_str(tokenizer.to_str())
    other.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    assert not ByteTokens.recognises(other)
    other.decoder = None
    assert not ByteTokens.recognises(other)
