"""How well numbers follow others: Pearson by their values, Spearman by their order."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from glassformer.metrics.scores import Scores


def score_correlation(found: Sequence[float], true: Sequence[float]) -> Scores:
    """Spearman's and Pearson's correlation, in percent. What does not vary follows nothing: 0."""
    if len(found) != len(true):
        raise ValueError(f"{len(found)} predictions and {len(true)} answers: expected as many")
    if len(true) < 2:
        raise ValueError(f"{len(true)} answers: expected at least two, for a correlation")
    one, two = np.asarray(found, dtype=np.float64), np.asarray(true, dtype=np.float64)
    return Scores({"spearman": 100 * pearson(ranks(one), ranks(two)), "pearson": 100 * pearson(one, two)})


def pearson(one: NDArray[np.float64], two: NDArray[np.float64]) -> float:
    """The cosine of the deviations from the means, -1 to 1."""
    a, b = (_deviations(values) for values in (one, two))
    return float(np.clip(a @ b, -1, 1))


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The place of each value in their order, from 1; equal ones share the mean of their places."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[which]


def _deviations(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Deviations from the mean, scaled to length 1; zeros where nothing varies."""
    if np.all(values == values[0]):
        return np.zeros_like(values)
    apart = values - values.mean()
    apart = apart / np.abs(apart).max()  # so that no square is too large or too small to be told
    return apart / np.linalg.norm(apart)
