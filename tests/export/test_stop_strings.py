"""Stop strings are found however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime_npu.generation.stop_strings import StopStrings


def passed(strings, pieces):
    stop, text = StopStrings(strings), ""
    for piece in pieces:
        text += stop.put(piece)
        if stop.matched:
            return text
    return text + stop.end()


@pytest.mark.parametrize(
    ("strings", "pieces", "expected"),
    [
        ([], ["a", "b"], "ab"),
        (["END"], ["one E", "N", "D two"], "one "),
        (["END"], ["one E", "N", "d two"], "one ENd two"),
        (["aab"], ["aa", "ab"], "a"),
        (["xyz", "yz"], ["wxy", "z"], "w"),
        (["\n\n"], ["a\n", "b\n", "\nc"], "a\nb"),
        (["stop"], ["st"], "st"),
    ],
)
def test_examples(strings, pieces, expected):
    assert passed(strings, pieces) == expected


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.text("ab", max_size=3), max_size=12),
)
def test_pieces_do_not_matter(strings, pieces):
    text = "".join(pieces)
    ends = [at for at in (text.find(string) for string in strings) if at >= 0]
    first_complete = min(
        (text.find(string) + len(string) for string in strings if string in text), default=0
    )
    result = passed(strings, pieces)
    if not ends:
        assert result == text
        return
    # Of several stop strings, that one counts which is complete first.
    assert result == text[: len(result)]
    assert len(result) <= first_complete
    assert not any(string in result for string in strings)


@given(st.text("ab", max_size=30))
def test_text_is_held_no_longer_than_it_may_be_a_stop_string(text):
    stop = StopStrings(["aabaa"])
    for number, letter in enumerate(text, 1):
        written = "" if number == 1 else written  # noqa: F821
        written += stop.put(letter)
        if stop.matched:
            return
        assert number - len(written) < len("aabaa")
