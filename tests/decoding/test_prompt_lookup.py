"""Prompt lookup: which tokens are proposed."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from glassformer.decoding.prompt_lookup import MAX_PAUSE, NGRAM_SIZES, PromptLookup, ProposalLength, floor_to_power


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


def test_right_proposals_become_longer_up_to_the_limit():
    length, asked = ProposalLength(5), []
    for _ in range(4):
        asked.append(length.next())
        length.note(asked[-1], asked[-1])
    assert asked == [2, 4, 5, 5]
    length.note(5, 3)
    assert length.next() == 2
    assert ProposalLength(1).next() == 1


def test_wrong_proposals_are_followed_by_longer_and_longer_pauses():
    length, asked = ProposalLength(8), []
    for _ in range(300):
        asked.append(length.next())
        if asked[-1]:
            length.note(asked[-1], 0)
    places = [place for place, count in enumerate(asked) if count]
    assert [asked[place] for place in places] == [2, *[1] * (len(places) - 1)]
    pauses = [after - before - 1 for before, after in pairwise(places)]
    assert pauses[:6] == [1, 2, 4, 8, 16, 32]
    assert max(pauses) == MAX_PAUSE
    length.note(1, 1)
    assert [length.next() for _ in range(40)][-1] == 2


def test_lengths_are_rounded_down_to_powers_of_two():
    assert [floor_to_power(number) for number in range(10)] == [0, 1, 2, 2, 4, 4, 4, 4, 8, 8]
