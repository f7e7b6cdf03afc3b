"""Accuracy, F1 and the confusion matrix, for one label or several labels per text.

In all functions `found` holds the predictions and `true` the correct labels, in the same order. Scores are in percent.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Sequence

from glassformer.metrics.number_table import Table
from glassformer.metrics.scores import Scores

MAX_SHOWN = 12
"""Maximum number of classes for which `confusion_tables` returns the confusion matrix."""


def score_classes(found: Sequence[Hashable], true: Sequence[Hashable]) -> Scores:
    """Return accuracy and macro-F1 of the predicted classes `found` against the correct ones `true`, in percent.

    Macro-F1 is the mean of the F1 scores of all classes that occur in `found` or `true`.
    """
    _check(found, true)
    sets = [{label} for label in found], [{label} for label in true]
    hits = sum(a == b for a, b in zip(found, true, strict=True))
    return Scores({"accuracy": 100 * hits / len(true), "macro_f1": _macro_f1(*sets)})


def score_binary(found: Sequence[bool], true: Sequence[bool]) -> Scores:
    """Return F1 and accuracy of the predictions `found` against the correct answers `true`, in percent.

    F1 is that of the class True; it is 0 if no item is True in both `found` and `true`.
    """
    _check(found, true)
    hits = sum(a and b for a, b in zip(found, true, strict=True))
    equal = sum(a == b for a, b in zip(found, true, strict=True))
    return Scores({"f1": 200 * hits / max(sum(found) + sum(true), 1), "accuracy": 100 * equal / len(true)})


def score_label_sets(found: Sequence[Collection[Hashable]], true: Sequence[Collection[Hashable]]) -> Scores:
    """Return micro-F1, macro-F1 and accuracy for texts with any number of labels each, in percent.

    `found` holds the predicted labels of each text, and `true` the correct ones. Accuracy is the share of texts whose
    predicted set of labels is exactly right.
    """
    _check(found, true)
    sets = [set(labels) for labels in found], [set(labels) for labels in true]
    hits = sum(len(a & b) for a, b in zip(*sets, strict=True))
    named = sum(map(len, sets[0])) + sum(map(len, sets[1]))
    exact = sum(a == b for a, b in zip(*sets, strict=True)) / len(true)
    micro = 2 * hits / named if named else 1.0
    return Scores({"micro_f1": 100 * micro, "macro_f1": _macro_f1(*sets), "accuracy": 100 * exact})


def confusion(found: Sequence[str], true: Sequence[str], labels: Sequence[str]) -> list[list[int]]:
    """Return the confusion matrix: how often each true class (row) was predicted as each class (column).

    `found` are the predictions. Rows and columns follow the order of `labels`.
    """
    _check(found, true)
    counts = Counter(zip(true, found, strict=True))
    return [[counts[row, column] for column in labels] for row in labels]


def confusion_tables(found: Sequence[str], true: Sequence[str], labels: Sequence[str]) -> dict[str, Table]:
    """Return {"confusion": table} with the matrix of `confusion`, or {} if there are more than MAX_SHOWN labels.

    The result is meant for `Scores.tables`.
    """
    if len(labels) > MAX_SHOWN:
        return {}
    rows = dict(zip(labels, confusion(found, true, labels), strict=True))
    return {"confusion": Table("how often each class (rows) was taken for each (columns)", list(labels), rows)}


def _macro_f1(found: Sequence[set[Hashable]], true: Sequence[set[Hashable]]) -> float:
    named_by = Counter(label for labels in found for label in labels)
    named_by.update(label for labels in true for label in labels)
    if not named_by:
        return 100.0  # no labels expected, none predicted
    hits = Counter(label for a, b in zip(found, true, strict=True) for label in a & b)
    return 100 * sum(2 * hits[label] / count for label, count in named_by.items()) / len(named_by)


def _check(found: Sequence[object], true: Sequence[object]) -> None:
    if len(found) != len(true):
        raise ValueError(f"{len(found)} predictions and {len(true)} answers: expected as many")
    if not true:
        raise ValueError("there are no answers: expected at least one")
