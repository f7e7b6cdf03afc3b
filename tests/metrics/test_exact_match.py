"""Answers are scored as SQuAD's script scores them."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.metrics.exact_match import best_of, exact_match, f1, normalize, score_answers

WORDS = ["the", "The", "a", "an", "cat", "Cat!", "the-cat", "dog,", "dog", "theatre", "1,000", "...", "\t", "U.S.", "é"]
phrases = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join) | st.text(max_size=12)


def plainly(text):
    """The same again, a character and a word at a time."""
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    # Articles end at any border of a word, which need not be white space.
    words = re.split(r"(\W+)", kept)
    return " ".join("".join(" " if word in ("a", "an", "the") else word for word in words).split())


def f1_plainly(answer, reference):
    ours, theirs = plainly(answer).split(), plainly(reference).split()
    if not ours or not theirs:
        return float(not ours and not theirs)
    left, shared = list(theirs), 0
    for word in ours:
        if word in left:
            left.remove(word)
            shared += 1
    if not shared:
        return 0.0
    precision, recall = shared / len(ours), shared / len(theirs)
    return 2 * precision * recall / (precision + recall)


@given(phrases, phrases)
def test_an_answer_scores_as_another_program_counts_it(answer, reference):
    assert normalize(answer) == plainly(answer)
    assert exact_match(answer, reference) == (plainly(answer) == plainly(reference))
    assert f1(answer, reference) == pytest.approx(f1_plainly(answer, reference))


@given(st.lists(st.tuples(phrases, st.lists(phrases, max_size=3)), min_size=1, max_size=6))
def test_the_best_reference_counts_and_the_mean_is_in_percent(asked):
    found, references = [answer for answer, _ in asked], [own for _, own in asked]
    scores = score_answers(found, references)
    golds = [[one for one in own if plainly(one)] or [""] for own in references]
    exact = [max(plainly(gold) == plainly(answer) for gold in own) for answer, own in zip(found, golds, strict=True)]
    overlap = [max(f1_plainly(answer, gold) for gold in own) for answer, own in zip(found, golds, strict=True)]
    assert list(scores.values) == ["exact_match", "f1"]
    assert scores["exact_match"] == pytest.approx(100 * sum(exact) / len(exact))
    assert scores["f1"] == pytest.approx(100 * sum(overlap) / len(overlap))


@pytest.mark.parametrize(
    ("answer", "reference", "exact", "overlap"),
    [
        ("The Eiffel Tower!", "eiffel tower", 1, 1),
        ("in the Eiffel tower", "Eiffel Tower", 0, 0.8),
        ("well-known", "wellknown", 1, 1),  # punctuation goes before words are told apart
        ("Denver Broncos", "Carolina Panthers", 0, 0),
        ("cat cat", "cat", 0, 2 / 3),  # a word counts as often as both have it
        ("", "cat", 0, 0),
    ],
)
def test_answers_worked_out_by_hand(answer, reference, exact, overlap):
    assert exact_match(answer, reference) == exact
    assert f1(answer, reference) == pytest.approx(overlap)


def test_an_empty_answer_is_right_for_an_unanswerable_question():
    assert score_answers(["", "a cat"], [[], []])["exact_match"] == 50
    assert best_of("the", [], f1) == 1  # an article alone says nothing


def test_inputs_that_cannot_be_scored_are_refused():
    with pytest.raises(ValueError, match="1 answers and 2 questions"):
        score_answers(["a"], [["a"], ["b"]])
    with pytest.raises(ValueError, match="expected at least one"):
        score_answers([], [])
