"""Plain text split into words."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.text.word_split import cut_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ann's cat, (U.S.) said...", "Ann 's cat , ( U.S. ) said ..."),
        ("O'Neil paid $3.5m at 12:30.", "O'Neil paid $ 3.5m at 12:30 ."),
        ("jean-luc\tvon\u00a0AT&T!", "jean-luc von AT&T !"),
        (
            "EU\u2019s U.S.A \u0939\u093f\u0928\u094d\u0926\u0940",
            "EU \u2019s U.S.A \u0939\u093f\u0928\u094d\u0926\u0940",
        ),
        ("\x00\u0130x's", "\x00 \u0130x 's"),
        ("  ", ""),
    ],
)
def test_punctuation_is_split_off_and_joined_words_stay_whole(text, words):
    assert [text[begin:end] for begin, end in cut_words(text)] == [word for word in words.split(" ") if word]


@given(st.text())
def test_words_hold_the_whole_text_except_its_spaces(text):
    places = cut_words(text)
    assert "".join(text[begin:end] for begin, end in places) == "".join(text.split())
    assert all(left[1] <= right[0] for left, right in pairwise(places))
