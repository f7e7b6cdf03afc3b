"""The tokens of words, and windows over long sentences."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from glassformer.text.encoded import Encoded
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.word_windows import first_pieces, joined, windows


@given(st.lists(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1), min_size=1))
def test_each_word_starts_at_its_first_token(words):
    tokenizer = Tokenizer.train(["the red cat sees the old cat"], 300)
    (encoded,) = tokenizer.offsets_batch([(joined(words), None)])
    places = [*first_pieces(words, encoded), len(encoded) - 1]
    assert places[0] == 0
    for word, (place, after) in zip(words, pairwise(places), strict=True):
        assert tokenizer.decode(encoded.ids[place:after]) == word


def test_a_word_without_tokens_has_no_position():
    encoded = Encoded([1, 7, 9, 2], [(0, 0), (0, 2), (5, 6), (0, 0)], [0] * 4, [None, 0, 0, None])
    assert first_pieces(["ab", "\x01", "c"], encoded) == [1, None, 2]
    assert first_pieces(["ab", "", "\x01c"], encoded) == [1, None, 2]


@given(st.lists(st.integers(0, 9), min_size=1), st.integers(1, 20))
def test_windows_predict_each_word_once_and_keep_to_their_size(costs, room):
    found = windows(costs, room)
    assert [word for window in found for word in range(window.first, window.last)] == list(range(len(costs)))
    for begin, first, last, end in found:
        assert 0 <= begin <= first < last <= end <= len(costs)
        assert sum(costs[begin:end]) <= room or last == first + 1


def test_windows_have_context_on_both_sides():
    middle = windows([1] * 100, 20)[3]
    assert middle == (25, 30, 40, 45)
