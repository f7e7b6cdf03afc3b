"""Accuracy and macro-F1 of classes."""

from collections.abc import Sequence
from typing import NamedTuple


class ClassScores(NamedTuple):
    """Between 0 and 1."""

    accuracy: float
    macro_f1: float
    """The mean, over the classes that occur, of each class's F1."""


def score_classes(found: Sequence[int], true: Sequence[int]) -> ClassScores:
    """Score predicted classes against the true ones. A class that neither names counts nowhere."""
    if len(found) != len(true):
        raise ValueError(f"{len(found)} predictions and {len(true)} answers: expected as many")
    if not true:
        raise ValueError("there are no answers: expected at least one")
    pairs = list(zip(found, true, strict=True))
    scores = []
    for label in {*found, *true}:
        hits = sum(a == b == label for a, b in pairs)
        named = sum(a == label for a, _ in pairs) + sum(b == label for _, b in pairs)
        scores.append(2 * hits / named)
    return ClassScores(sum(a == b for a, b in pairs) / len(pairs), sum(scores) / len(scores))
