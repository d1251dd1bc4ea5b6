"""Text of tokens that arrive one by one: whole characters, all of them, at a cost of each token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime_npu.generation import TextStream
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast


class Bytes:
    """A tokenizer whose tokens are bytes, so that characters span several tokens."""

    def __init__(self):
        self.decoded = 0

    def decode(self, tokens, skip_special_tokens):
        self.decoded += len(tokens)
        return bytes(tokens).decode(errors="replace")


def streamed(tokenizer, tokens):
    pieces = []
    stream = TextStream(tokenizer, pieces.append)
    for token in tokens:
        stream.put([token])
    stream.end()
    return pieces


def test_text_is_streamed_in_whole_characters():
    assert streamed(Bytes(), [*"né\nœuf €".encode(), None]) == [
        "n", "é", "\n", "œ", "u", "f", " ", "€",
    ]  # fmt: skip


def test_incomplete_character_is_flushed_at_the_end():
    pieces = []
    stream = TextStream(Bytes(), pieces.append)
    for byte in "a€".encode()[:-1]:
        stream.put([byte])
    assert pieces == ["a"]
    stream.end()
    assert "".join(pieces) == "a\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("text", [b"a long line " * 200, b"\x80" * 2400, "€".encode() * 800])
def test_a_token_costs_the_same_however_long_the_line_is(text):
    first, second = Bytes(), Bytes()
    streamed(first, text)
    streamed(second, text + text)
    # Twice, but for where the last piece of up to 32 tokens ends.
    assert second.decoded <= 2 * first.decoded + 32 * 33


def sentencepiece():
    """As Llama's: words begin with a mark that is a space, not the first; bytes for others."""
    pieces = ["<s>", "▁", "▁▁", "▁Hi", "▁there", "there", ".", "▁a", "é", "\n"]
    pieces += [f"<0x{byte:02X}>" for byte in "€é\n".encode() + b"\x80"]
    backend = Tokenizer(models.BPE({p: i for i, p in enumerate(dict.fromkeys(pieces))}, []))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens([AddedToken("<s>")])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def byte_level():
    """As GPT-2's: tokens are bytes and parts of words, with a mark for the space before them."""
    pieces = ["<s>", "Ġ", "Ġthe", "re", "Hi", "Ċ", "â", "Ĥ", "¬", "¬Ã", "©", "!"]
    backend = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>")])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def word_pieces():
    backend = Tokenizer(models.WordPiece({p: i for i, p in enumerate(["<s>", "play", "##ing"])}))
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens([AddedToken("<s>")])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


TOKENIZERS = {make.__name__: make() for make in (sentencepiece, byte_level, word_pieces)}


def whole_characters(tokenizer):
    """Return the tokens that are text, and the bytes of each character that is not."""
    of_bytes = [
        tokenizer.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in character.encode()])
        for character in "€é\n"
    ]
    plain = [i for token, i in tokenizer.get_vocab().items() if not token.startswith("<0x")]
    return [*([token] for token in plain), *of_bytes]


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
def test_pieces_are_the_text(kind, data):
    tokenizer = TOKENIZERS[kind]
    # Of byte tokens that make no character, this decoder replaces the good ones beside them, too.
    units = (
        whole_characters(tokenizer)
        if kind == "sentencepiece"
        else [[token] for token in range(len(tokenizer))]
    )
    drawn = data.draw(st.lists(st.sampled_from(units), max_size=40))
    tokens = [token for unit in drawn for token in unit]
    assert "".join(streamed(tokenizer, tokens)) == tokenizer.decode(
        tokens, skip_special_tokens=True
    )


def test_skipped_tokens_leave_the_next_word_its_space():
    tokenizer = TOKENIZERS["sentencepiece"]
    hi, there, special = tokenizer.convert_tokens_to_ids(["▁Hi", "▁there", "<s>"])
    tokens = [hi, *[special] * 200, there]
    assert streamed(tokenizer, tokens) == ["Hi", " there"]
