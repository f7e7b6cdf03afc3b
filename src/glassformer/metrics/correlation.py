"""Pearson correlation (by value) and Spearman correlation (by rank)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from glassformer.metrics.scores import Scores


def score_correlation(found: Sequence[float], true: Sequence[float]) -> Scores:
    """Return Spearman and Pearson correlation in percent. A constant sequence gives 0."""
    if len(found) != len(true):
        raise ValueError(f"{len(found)} predictions and {len(true)} answers: expected as many")
    if len(true) < 2:
        raise ValueError(f"{len(true)} answers: expected at least two, for a correlation")
    one, two = np.asarray(found, dtype=np.float64), np.asarray(true, dtype=np.float64)
    return Scores({"spearman": 100 * pearson(ranks(one), ranks(two)), "pearson": 100 * pearson(one, two)})


def pearson(one: NDArray[np.float64], two: NDArray[np.float64]) -> float:
    """Return the Pearson correlation, -1 to 1: the cosine of the deviations from the means."""
    a, b = (_deviations(values) for values in (one, two))
    return float(np.clip(a @ b, -1, 1))


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each value, from 1. Equal values share the mean of their ranks."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[which]


def _deviations(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the deviations from the mean, scaled to length 1; zeros for constant values."""
    if np.all(values == values[0]):
        return np.zeros_like(values)
    apart = values - values.mean()
    apart = apart / np.abs(apart).max()  # avoids overflow and underflow of the squares
    return apart / np.linalg.norm(apart)
