"""Viterbi search for valid tag sequences."""

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from glassformer.text.tag_viterbi import TagPaths
from glassformer.text.tags import (
    BadTagError,
    entities_of,
)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_the_best_tags_are_those_of_an_exhaustive_search(lengths, seed):
    paths = TagPaths(["A"])
    drawn = np.random.default_rng(seed)
    scores = [drawn.normal(size=(length, len(paths.tags))).astype(np.float32) for length in lengths]
    for found, one in zip(paths.best(scores), scores, strict=True):
        legal = []
        for numbers in product(range(len(paths.tags)), repeat=len(one)):
            tags = [paths.tags[number] for number in numbers]
            try:
                entities_of(tags, "bioes")
            except BadTagError:
                continue
            legal.append((sum(one[place, number] for place, number in enumerate(numbers)), tags))
        assert found == max(legal, key=lambda pair: pair[0])[1]


def test_words_with_equal_scores_are_tagged_o():
    assert TagPaths(["A", "B"]).best([np.zeros((3, 9), dtype=np.float32)]) == [["O", "O", "O"]]


def test_transitions_stay_inside_an_entity_until_its_end():
    paths = TagPaths(["A", "B"])
    allowed = {
        left: {right for right, may in zip(paths.tags, row, strict=True) if may}
        for left, row in zip(paths.tags, paths.follows, strict=True)
    }
    outside = {"O", "B-A", "S-A", "B-B", "S-B"}
    assert allowed["O"] == allowed["E-A"] == allowed["S-B"] == outside
    assert allowed["B-A"] == allowed["I-A"] == {"I-A", "E-A"}
    assert allowed["I-B"] == {"I-B", "E-B"}
    assert paths.best([]) == []
