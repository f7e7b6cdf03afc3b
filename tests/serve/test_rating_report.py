import pytest

from glassformer.serve.rating_report import krippendorff_alpha, report
from glassformer.serve.rating_session import Answer


def test_a_win_counts_one_and_a_tie_half():
    answers = [Answer("r", item, choice=choice) for item, choice in enumerate(["a", "a", "b", None])]
    found = report(answers, ["a", "b"], "choice")
    assert [(score.system, score.score) for score in found.scores] == [("a", 0.625), ("b", 0.375)]
    for score in found.scores:
        assert 0 <= score.low < score.score < score.high <= 1
    assert found.agreement is None
    assert (found.n_answers, found.n_items, found.n_raters) == (4, 4, 1)


def test_ratings_are_averaged():
    answers = [Answer("r", item, ratings={"a": 4, "b": item % 5 + 1}) for item in range(10)]
    best, other = report(answers, ["a", "b"], "rating").scores
    assert (best.system, best.score, best.low, best.high) == ("a", 4, 4, 4)
    assert other.score == 3
    assert other.low < 3 < other.high


def test_more_items_make_the_interval_narrower():
    def width(count):
        answers = [Answer("r", item, choice="ab"[item % 2]) for item in range(count)]
        score = report(answers, ["a", "b"], "choice").scores[0]
        return score.high - score.low

    assert width(400) < width(20) / 2
    assert width(400) == pytest.approx(2 * 1.96 * 0.5 / 20, rel=0.15), "as the normal approximation"


def test_agreement_is_krippendorffs_alpha():
    """The example of Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability", section C: four observers."""
    units = [
        [1, 1, 1], [2, 2, 3, 2], [3, 3, 3, 3], [3, 3, 3, 3], [2, 2, 2, 2], [1, 2, 3, 4], [4, 4, 4, 4], [1, 1, 2, 1],
        [2, 2, 2, 2], [5, 5, 5], [1, 1], [3],
    ]  # fmt: skip
    assert krippendorff_alpha(units) == pytest.approx(0.743, abs=5e-4)
    assert krippendorff_alpha(units, lambda a, b: (a - b) ** 2) == pytest.approx(0.849, abs=5e-4)
    assert krippendorff_alpha([["x", "x"], ["y", "y"]]) == 1
    assert krippendorff_alpha([["x", "x"], ["x", "x"]]) == 1
    assert krippendorff_alpha([["x"], ["y"]]) is None
    assert krippendorff_alpha([["x", "y"], ["y", "x"]]) < 0


def test_raters_that_agree_and_disagree():
    same = [Answer(rater, item, choice="ab"[item % 2]) for rater in "xy" for item in range(6)]
    assert report(same, ["a", "b"], "choice").agreement == 1
    rated = [Answer(rater, item, ratings={"a": item % 5 + 1}) for rater in "xy" for item in range(6)]
    assert report(rated, ["a"], "rating").agreement == 1


def test_a_report_can_be_printed():
    answers = [Answer("r", 0, choice="long name")]
    found = report(answers, ["long name", "b"], "choice")
    assert "long name" in found.as_text()
    assert "no item was rated twice" in found.as_text()
    assert found.as_json()["scores"][0]["system"] == "long name"
    assert report([], ["a", "b"], "choice").as_text()
