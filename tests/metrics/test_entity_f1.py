"""Entity F1, beside seqeval's own and a count of sets."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import classification_report, f1_score, precision_score, recall_score

from glassformer.metrics.entity_f1 import score_entities
from glassformer.metrics.scores import title_of
from glassformer.text.tags import entities_of, tags_of

TAGS = st.lists(st.sampled_from(["O", "B-PER", "I-PER", "I-LOC", "B-geo-loc"]), max_size=6)


def legal(tags):
    """Any tags as IOB2's."""
    return tags_of(entities_of(tags, "iob1"), len(tags), "iob2")


@st.composite
def both_sides(draw):
    true = draw(st.lists(TAGS, min_size=1, max_size=5))
    found = [
        draw(st.lists(st.sampled_from(["O", "B-PER", "I-PER", "I-LOC"]), min_size=len(t), max_size=len(t)))
        for t in true
    ]
    kept = draw(st.lists(st.booleans(), min_size=len(true), max_size=len(true)))
    found = [one if keep else other for one, other, keep in zip(true, found, kept, strict=True)]
    return [legal(tags) for tags in found], [legal(tags) for tags in true]


def entities(sentences):
    return {(number, *entity) for number, tags in enumerate(sentences) for entity in entities_of(tags, "iob2")}


def f1_of(found, true):
    return 100 * 2 * len(found & true) / max(len(found) + len(true), 1)


@settings(deadline=None)
@given(both_sides())
def test_f1_is_what_sets_of_entities_give(sides):
    found, true = map(entities, sides)
    scores = score_entities(*sides)
    assert scores["f1"] == pytest.approx(f1_of(found, true))
    assert scores["precision"] == pytest.approx(100 * len(found & true) / max(len(found), 1))
    assert scores["recall"] == pytest.approx(100 * len(found & true) / max(len(true), 1))
    labels = {entity[-1] for entity in found | true}
    assert {name for name in scores.values if name.startswith("f1_")} == {f"f1_{label}" for label in labels}
    for label in labels:
        left, right = ({entity for entity in side if entity[-1] == label} for side in (found, true))
        assert scores[f"f1_{label}"] == pytest.approx(f1_of(left, right))


@given(both_sides())
def test_f1_is_what_seqeval_reads_as_conlleval_does(sides):
    found, true = sides
    if not entities(true):  # seqeval warns of it
        return
    scores = score_entities(found, true)
    for name, by_seqeval in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        assert scores[name] == pytest.approx(100 * by_seqeval(true, found, zero_division=0))
    report = classification_report(true, found, output_dict=True, zero_division=0)
    for label in {entity[-1] for entity in entities(true)}:
        assert scores[f"f1_{label}"] == pytest.approx(100 * report[label]["f1-score"])


def test_the_first_score_counts_and_is_signed():
    scores = score_entities([["B-PER", "I-PER", "O"]], [["B-PER", "I-PER", "B-LOC"]])
    assert list(scores.values) == ["f1", "precision", "recall", "f1_LOC", "f1_PER"]
    assert "mode:strict" in scores.signatures["f1"]
    assert (title_of("f1"), title_of("f1_first_name")) == ("F1", "F1 of first_name")


def test_no_entities_expected_and_none_predicted():
    assert score_entities([["O"]], [["O"]])["f1"] == 0
    with pytest.raises(ValueError, match="no sentences"):
        score_entities([], [])


@pytest.mark.parametrize("found", [[["O"]], [["O"], ["O", "O"]]])
def test_sides_that_do_not_fit_are_refused(found):
    with pytest.raises(ValueError, match="expected one for each word of each"):
        score_entities(found, [["O"], ["O"]])
