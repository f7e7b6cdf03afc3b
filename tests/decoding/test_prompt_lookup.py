"""Prompt lookup: which tokens are proposed."""

from hypothesis import given
from hypothesis import strategies as st

from glassformer.decoding.prompt_lookup import NGRAM_SIZES, PromptLookup


def test_the_latest_and_longest_match_is_proposed():
    assert PromptLookup([1, 2, 3, 9, 1, 2, 4, 8, 5, 1, 2]).propose(2) == [4, 8]
    assert PromptLookup([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2]).propose(1) == [3]


def test_nothing_is_proposed_without_a_match():
    assert PromptLookup().propose(3) == []
    assert PromptLookup([1, 2, 3, 4]).propose(3) == []
    assert PromptLookup([1, 1]).propose(3) == []


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(1, 4))
def test_proposals_equal_a_search_through_the_text(tokens, count):
    expected = []
    for size in NGRAM_SIZES:
        ends = [end for end in range(size, len(tokens)) if tokens[end - size : end] == tokens[-size:]]
        if ends:
            expected = tokens[ends[-1] : ends[-1] + count]
            break
    assert PromptLookup(tokens).propose(count) == expected
