"""ROUGE is what it is called."""

from collections import Counter
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.metrics.rouge import best_sentence, score_summaries

# Words that Porter's stemmer leaves as they are, so that the formula is the whole story.
WORDS = ["cat", "dog", "sat", "mat", "red", "hat", "big"]
sentences = st.lists(st.sampled_from(WORDS), max_size=7).map(tuple)


def overlap(ours, theirs, n):
    grams = [Counter(zip(*(words[i:] for i in range(n)), strict=False)) for words in (ours, theirs)]
    shared, sizes = (grams[0] & grams[1]).total(), [gram.total() for gram in grams]
    return 2 * shared / sum(sizes) if shared else 0.0


@cache
def longest_common(ours, theirs):
    if not ours or not theirs:
        return 0
    if ours[-1] == theirs[-1]:
        return 1 + longest_common(ours[:-1], theirs[:-1])
    return max(longest_common(ours[:-1], theirs), longest_common(ours, theirs[:-1]))


@given(st.lists(st.tuples(sentences, st.lists(sentences, min_size=1, max_size=2)), min_size=1, max_size=4))
def test_scores_equal_their_formulas(cases):
    found = [" ".join(words) for words, _ in cases]
    scores = score_summaries(found, [[" ".join(words) for words in own] for _, own in cases])
    assert list(scores.values) == ["rouge1", "rouge2", "rougeL"]
    for n in (1, 2):
        best = [max(overlap(words, own, n) for own in references) for words, references in cases]
        assert scores[f"rouge{n}"] == pytest.approx(100 * sum(best) / len(best))
    best = [
        max(2 * longest_common(words, own) / (len(words) + len(own) or 1) for own in references)
        for words, references in cases
    ]
    assert scores["rougeL"] == pytest.approx(100 * sum(best) / len(best))


def test_words_are_compared_by_their_stems():
    assert score_summaries(["the cats jumped"], [["The cat jumps."]])["rouge1"] == pytest.approx(100)


def test_the_best_sentence_is_the_nearest():
    assert best_sentence(("a dog barks", "the cat sat there", "a cat"), "the cat sat") == "the cat sat there"


@pytest.mark.parametrize(
    ("found", "references", "message"),
    [([], [], "at least one"), (["a"], [], "expected as many"), (["a"], [[]], "has no reference")],
)
def test_inputs_that_cannot_be_scored_are_refused(found, references, message):
    with pytest.raises(ValueError, match=message):
        score_summaries(found, references)
