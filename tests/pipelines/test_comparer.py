"""Comparing two texts: the cosine, its scale, and the threshold of paraphrases."""

import pytest

from glassformer.data.corpora.synthetic_pairs import ScoredPair
from glassformer.metrics.accuracy import score_binary
from glassformer.pipelines.comparer import Comparer, ParaphraseDetector
from glassformer.pipelines.pipeline import LineRequest
from pipelines.tiny_pipelines import make


def test_the_threshold_has_the_highest_f1(monkeypatch):
    detector = ParaphraseDetector.__new__(ParaphraseDetector)
    cosines = [0.9, 0.8, 0.8, 0.4, 0.1]
    monkeypatch.setattr(detector, "cosines", lambda pairs: cosines)
    detector.choose_threshold([ScoredPair("a", "b", score) for score in (1.0, 1.0, 0.0, 1.0, 0.0)])
    assert detector.threshold == pytest.approx(0.25)
    f1 = [
        score_binary([one >= t for one in cosines], [True, True, False, True, False])["f1"] for t in (0.25, 0.6, 0.85)
    ]
    assert f1 == sorted(f1, reverse=True)


def test_the_same_text_has_the_highest_similarity_of_the_scale():
    tool = make(Comparer)  # its scores are from 0 to 5
    assert tool.similarity("the cat", "the cat") == pytest.approx(5, abs=1e-4)
    (answer,) = tool.answer_lines(["the cat\tit is red."], LineRequest())
    assert answer.record["similarity"] == pytest.approx(5 * answer.record["cosine"], abs=1e-4)


def test_a_line_needs_two_texts():
    with pytest.raises(ValueError, match="'one text' is one text: expected two texts with a tab between them"):
        make(Comparer).run(["one text"])


@pytest.mark.parametrize("kind", [Comparer, ParaphraseDetector])
@pytest.mark.parametrize("line", ["a\tb\t1", "a\t", "\tb", "a\t\tb"])
def test_a_line_with_other_columns_is_refused(kind, line):
    """A third column, such as a label, would be read as a part of the second text."""
    with pytest.raises(ValueError, match="expected two texts with a tab between them"):
        make(kind).run([line])


def test_the_threshold_decides_and_is_stored():
    tool = make(ParaphraseDetector)
    assert tool.settings()["threshold"] == 0.25
    cosine = tool.cosines(("the cat", "it is red."))
    for threshold, label in ((cosine - 0.01, "same"), (cosine + 0.01, "different")):
        tool.threshold = threshold
        assert tool.run("the cat\tit is red.") == label
