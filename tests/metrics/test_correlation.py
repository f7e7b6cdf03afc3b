"""Our correlations beside SciPy's."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from glassformer.metrics.correlation import ranks, score_correlation

# Few values, so that many are equal; and many, so that few are.
values = st.integers(0, 4).map(float) | st.integers(-(10**6), 10**6).map(lambda number: number / 1000)
pairs = st.lists(st.tuples(values, values), min_size=2, max_size=50)


@given(pairs)
def test_correlations_equal_scipy(numbers):
    found, true = zip(*numbers, strict=True)
    assume(len({*found}) > 1 and len({*true}) > 1)
    scores = score_correlation(found, true)
    assert [*scores.values] == ["spearman", "pearson"]
    assert scores["spearman"] == pytest.approx(100 * stats.spearmanr(found, true).statistic, abs=1e-8)
    assert scores["pearson"] == pytest.approx(100 * stats.pearsonr(found, true).statistic, abs=1e-6)


@given(st.lists(values, min_size=1))
def test_equal_values_share_the_mean_of_their_ranks(numbers):
    assert np.array_equal(ranks(np.array(numbers)), stats.rankdata(numbers))


def test_the_size_of_the_numbers_does_not_matter():
    for scale in (1e-200, 1e-30, 1.0, 1e200):
        assert score_correlation([scale, 2 * scale, 3 * scale], [1, 2, 3])["pearson"] == pytest.approx(100)
        assert score_correlation([scale, 2 * scale, 3 * scale], [3, 2, 1])["spearman"] == pytest.approx(-100)


def test_a_constant_sequence_has_correlation_0():
    assert score_correlation([0.1, 0.1, 0.1], [1, 2, 3]).values == {"spearman": 0, "pearson": 0}


def test_inputs_that_cannot_be_scored_are_named():
    with pytest.raises(ValueError, match="2 predictions and 1 answers: expected as many"):
        score_correlation([1, 2], [1])
    with pytest.raises(ValueError, match="1 answers: expected at least two"):
        score_correlation([1], [1])
