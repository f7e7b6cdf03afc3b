"""Denoising objectives: the requested share is hidden, and the original text can be restored."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.batching.noise import (
    fill_spans,
    hidden_count,
    hide_spans,
    infill,
    mask_tokens,
    random_of,
    shuffle_sentences,
    span_counts,
)

MASK, WORDS, SENTINELS = 4, np.arange(200, 300), range(5, 120)
texts = st.lists(st.integers(200, 299), min_size=1, max_size=150).map(np.array)
seeds = st.integers(0, 2**32)
shares = st.floats(0.01, 0.9)
spans = st.floats(1, 8)


@given(texts, seeds, shares)
def test_masking_hides_its_share_and_changes_no_other_token(ids, seed, share):
    shown, places, answers = mask_tokens(ids, random_of(seed), share=share, mask=MASK, words=WORDS)
    assert len(places) == len(set(places)) == max(1, round(share * len(ids)))
    assert (np.diff(places) > 0).all()
    assert (ids[places] == answers).all()
    others = np.delete(np.arange(len(ids)), places)
    assert (shown[others] == ids[others]).all()
    assert all(token == MASK or token in WORDS for token in shown)


def test_masking_replaces_80_10_10_percent():
    ids = np.full(40_000, 200)
    shown, places, _ = mask_tokens(ids, random_of(1), share=0.5, mask=MASK, words=WORDS)
    told = shown[places]
    assert (told == MASK).mean() == pytest.approx(0.8, abs=0.01)
    # One random word in a hundred is the original.
    assert ((told != MASK) & (told != 200)).mean() == pytest.approx(0.1, abs=0.01)
    assert set(told) == {MASK, *WORDS}


@given(texts, seeds, shares, spans)
def test_spans_come_back_when_sentinels_are_filled_in(ids, seed, share, mean_span):
    source, target = hide_spans(ids, random_of(seed), share=share, mean_span=mean_span, sentinels=SENTINELS)
    assert fill_spans(source, target, SENTINELS) == list(ids)
    hidden, n_spans = span_counts(len(ids), share, mean_span)
    assert [token for token in source if token in SENTINELS] == list(SENTINELS[:n_spans])
    assert [token for token in target if token in SENTINELS] == list(SENTINELS[: n_spans + 1])
    assert target[0] == SENTINELS[0]
    assert target[-1] == SENTINELS[n_spans]
    # The lengths do not depend on the random draw.
    assert len(source) == len(ids) - hidden + n_spans
    assert len(target) == hidden + n_spans + 1
    assert hidden == min(hidden_count(len(ids), share), max(len(ids) - 1, 1))


def test_spans_are_as_long_as_asked_for_on_average_and_anywhere():
    ids = np.arange(200, 300)
    where = np.zeros(100)
    for seed in range(400):
        source, target = hide_spans(ids, random_of(seed), share=0.15, mean_span=3.0, sentinels=SENTINELS)
        assert len(target) == 15 + 5 + 1
        where[np.isin(ids, target)] += 1
        assert len(source) == 100 - 15 + 5
    assert where[0] == 0  # a token is left before the first
    assert (where[10:] > 25).all()  # 61 on average
    with pytest.raises(ValueError, match="5 sentinels for 5 spans: expected one more"):
        hide_spans(ids, random_of(0), share=0.15, mean_span=3.0, sentinels=SENTINELS[:5])


@given(texts, seeds, shares, spans)
def test_infilling_hides_its_share_and_keeps_the_rest_in_order(ids, seed, share, mean_span):
    ids = np.arange(200, 200 + len(ids))  # all different, so that order shows
    shown = infill(ids, random_of(seed), share=share, mean_span=mean_span, mask=MASK)
    kept = shown[shown != MASK]
    assert len(kept) == len(ids) - hidden_count(len(ids), share)
    assert (np.diff(kept) > 0).all()
    assert set(kept) <= set(ids)
    assert len(shown) <= len(ids)
    assert MASK in shown
    # Where no mask stands between two tokens, nothing is missing between them.
    together = (shown[1:] != MASK) & (shown[:-1] != MASK)
    assert (np.diff(shown)[together] == 1).all()


def test_infilling_draws_poisson_lengths_with_empty_ones():
    ids = np.arange(200, 20_200)
    shown = infill(ids, random_of(0), share=0.3, mean_span=3.0, mask=MASK)
    assert 6000 / (shown == MASK).sum() == pytest.approx(3.0, abs=0.1)
    alone = [index for index in np.flatnonzero(shown[1:-1] == MASK) + 1 if MASK not in shown[[index - 1, index + 1]]]
    empty = sum(shown[index + 1] - shown[index - 1] == 1 for index in alone)
    assert empty / len(alone) == pytest.approx(np.exp(-3), abs=0.02)


@given(texts, seeds, st.sets(st.integers(200, 299), max_size=20))
def test_sentences_change_places_and_stay_whole(ids, seed, stops):
    stops = np.array(sorted(stops), dtype=np.int64)
    shuffled = shuffle_sentences(ids, random_of(seed), stops=stops)

    def sentences(tokens):
        parts = np.split(tokens, np.flatnonzero(np.isin(tokens, stops)) + 1)
        return sorted(tuple(part) for part in parts if len(part))

    assert sorted(shuffled) == sorted(ids)
    if np.isin(ids[-1], stops):  # otherwise the last sentence joins the one that follows it
        assert sentences(shuffled) == sentences(ids)


def test_random_generator_depends_on_its_numbers_only():
    ids = np.arange(200, 300)
    draw = [mask_tokens(ids, random_of(*key), share=0.3, mask=MASK, words=WORDS).places for key in [(0, 1, 2)] * 2]
    assert (draw[0] == draw[1]).all()
    other = mask_tokens(ids, random_of(0, 2, 1), share=0.3, mask=MASK, words=WORDS).places
    assert not np.array_equal(draw[0], other)
