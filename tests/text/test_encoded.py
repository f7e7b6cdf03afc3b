"""Truncation of encoded texts."""

import time

from hypothesis import given
from hypothesis import strategies as st

from glassformer.text.encoded import Encoded


def encoded(n_first, n_second):
    """Return one or two texts in the order of BERT: begin, first, end, second, end. All ids differ."""
    sources = [None, *[0] * n_first, None]
    if n_second is not None:
        sources += [*[1] * n_second, None]
    spans, seen = [], [0, 0]
    for source in sources:
        if source is None:
            spans.append((0, 0))
        else:
            spans.append((seen[source], seen[source] + 1))
            seen[source] += 1
    types = [0] * (n_first + 2) + [1] * (len(sources) - n_first - 2)
    return Encoded(list(range(100, 100 + len(sources))), spans, types, sources)


def cut_one_by_one(whole, limit):
    """Remove one token at a time from the end of the longer text, or of the second if both are equally long."""
    places = list(range(len(whole)))
    while len(places) > limit:
        texts = [[place for place in places if whole.sources[place] == text] for text in (0, 1)]
        longer = texts[1] if len(texts[1]) >= len(texts[0]) else texts[0]
        if not longer:
            break
        places.remove(longer[-1])
    return [whole.ids[place] for place in places]


@given(st.integers(0, 20), st.none() | st.integers(0, 20), st.integers(0, 45))
def test_the_longer_text_loses_its_end_first_and_special_tokens_stay(n_first, n_second, limit):
    whole = encoded(n_first, n_second)
    short = whole.cut(limit)
    assert short.ids == cut_one_by_one(whole, limit)
    n_special = whole.sources.count(None)
    assert len(short) == min(len(whole), max(limit, n_special))
    assert short.sources.count(None) == n_special
    assert short.ids == sorted(short.ids)
    by_id = dict(zip(whole.ids, zip(whole.spans, whole.token_types, whole.sources, strict=True), strict=True))
    assert [*zip(short.spans, short.token_types, short.sources, strict=True)] == [by_id[i] for i in short.ids]
    for text in (0, 1):  # the start of a text is kept
        kept = [span for span, source in zip(short.spans, short.sources, strict=True) if source == text]
        assert kept == [(place, place + 1) for place in range(len(kept))]


def test_a_text_within_the_limit_is_unchanged():
    whole = encoded(3, 4)
    assert whole.cut(len(whole)) == whole
    assert whole.cut(1000) == whole


def test_truncating_long_texts_is_fast():
    whole = encoded(30_000, 30_000)
    begin = time.perf_counter()
    assert len(whole.cut(512)) == 512
    assert time.perf_counter() - begin < 60  # removing tokens one by one would take hours
