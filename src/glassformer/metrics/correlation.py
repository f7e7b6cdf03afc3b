"""Pearson correlation, and Spearman correlation, which is the Pearson correlation of the ranks."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from glassformer.metrics.scores import Scores


def score_correlation(found: Sequence[float], true: Sequence[float]) -> Scores:
    """Return the Spearman and Pearson correlations of predictions `found` with correct values `true`, in percent.

    Both are 0 if all predictions, or all correct values, are equal.
    """
    if len(found) != len(true):
        raise ValueError(f"{len(found)} predictions and {len(true)} answers: expected as many")
    if len(true) < 2:
        raise ValueError(f"{len(true)} answers: expected at least two, for a correlation")
    one, two = np.asarray(found, dtype=np.float64), np.asarray(true, dtype=np.float64)
    return Scores({"spearman": 100 * pearson(ranks(one), ranks(two)), "pearson": 100 * pearson(one, two)})


def pearson(one: NDArray[np.float64], two: NDArray[np.float64]) -> float:
    """Return the Pearson correlation of two sequences, from -1 to 1; 0 if one of them is constant.

    It is the cosine of the angle between the two vectors of deviations from the mean.
    """
    a, b = (_deviations(values) for values in (one, two))
    return float(np.clip(a @ b, -1, 1))


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each value; the smallest has rank 1. Equal values all get the mean of their ranks."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[which]


def _deviations(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the deviations from the mean, scaled to a vector of length 1; zeros if all values are equal."""
    if np.all(values == values[0]):
        return np.zeros_like(values)
    apart = values - values.mean()
    apart = apart / np.abs(apart).max()  # avoids overflow and underflow of the squares
    return apart / np.linalg.norm(apart)
