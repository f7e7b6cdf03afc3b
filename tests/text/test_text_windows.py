"""A long context as overlapping windows with the same question."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.text import Tokenizer
from glassformer.text.encoded import Encoded
from glassformer.text.text_windows import windows


def encode(n_question, n_text):
    """Return BEGIN, the question, END, the text, END. Ids of the text start at 1000 and count its tokens."""
    ids = [1, *range(100, 100 + n_question), 2, *range(1000, 1000 + n_text), 2]
    sources = [None, *[0] * n_question, None, *[1] * n_text, None]
    spans = [
        (0, 0) if source is None else (index % 100, index % 100 + 1) for index, source in zip(ids, sources, strict=True)
    ]
    return Encoded(ids, spans, [0] * (n_question + 2) + [1] * (n_text + 1), sources)


def text_of(window):
    return [index for index in window.ids if index >= 1000]


@pytest.mark.parametrize(("n_text", "limit", "overlap"), [(50, 20, 5), (51, 20, 0), (30, 14, 99), (15, 20, 4)])
def test_windows_cover_the_text_and_share_the_overlap(n_text, limit, overlap):
    found = windows(encode(4, n_text), limit, overlap)
    room = limit - 7
    assert len(found) > 1
    for window in found:
        assert len(window) <= limit
        assert window.ids[:6] == [1, 100, 101, 102, 103, 2]
        assert window.ids[-1] == 2
        assert text_of(window) == list(range(text_of(window)[0], text_of(window)[-1] + 1))
    assert sorted({index for window in found for index in text_of(window)}) == list(range(1000, 1000 + n_text))
    shared = [len({*text_of(one)} & {*text_of(two)}) for one, two in pairwise(found)]
    assert set(shared) == {min(overlap, room // 2)}


def test_a_text_within_the_limit_is_one_window():
    read = encode(4, 5)
    assert windows(read, len(read), 3) == windows(read, None, 3) == [read]


def test_a_long_question_is_truncated_to_leave_room_for_the_text():
    for window in windows(encode(40, 40), 20, 2):
        assert [index for index in window.ids if 100 <= index < 1000] == list(range(100, 107))
    with pytest.raises(ValueError, match="windows of 4 tokens have no tokens left for the text"):
        windows(encode(40, 40), 4, 2)


TOKENIZER = Tokenizer.train(["the cat saw the old dog in the garden"] * 3, 300)
words = st.lists(
    st.sampled_from(["the", "cat", "saw", "old", "dog", "in", "garden", "é"]), min_size=1, max_size=30
).map(" ".join)


@given(words, words, st.integers(12, 40), st.integers(0, 12))
def test_spans_within_the_overlap_are_whole_in_some_window(question, context, limit, overlap):
    (read,) = TOKENIZER.offsets_batch([(question, context)])
    found = windows(read, limit, overlap)
    assert all(len(window) <= limit for window in found)
    seen = [[span for span, source in zip(w.spans, w.sources, strict=True) if source == 1] for w in found]
    all_spans = [span for span, source in zip(read.spans, read.sources, strict=True) if source == 1]
    assert [*dict.fromkeys(span for part in seen for span in part)] == [*dict.fromkeys(all_spans)]
    if len(found) > 1:
        # Every run of tokens as long as the overlap is whole in some window.
        size = min(overlap, min(map(len, seen[:-1])) // 2) + 1
        runs = {tuple(part[i : i + size]) for part in seen for i in range(len(part) - size + 1)}
        assert {tuple(all_spans[i : i + size]) for i in range(len(all_spans) - size + 1)} <= runs
