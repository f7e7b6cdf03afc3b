"""Exact match and word F1 of answers, as in SQuAD's evaluation script (Rajpurkar et al. 2016, 2018)."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from glassformer.metrics.scores import Scores

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def score_answers(found: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return exact match and F1 in percent, averaged over the questions.

    `found[i]` is the predicted answer to question i and `references[i]` lists its acceptable answers; the best match
    among them counts. An empty list means that the question is unanswerable: the right prediction is an empty text.
    """
    if len(found) != len(references):
        raise ValueError(f"{len(found)} answers and {len(references)} questions: expected as many")
    if not found:
        raise ValueError("there are no answers: expected at least one")
    exact = sum(best_of(answer, own, exact_match) for answer, own in zip(found, references, strict=True))
    overlap = sum(best_of(answer, own, f1) for answer, own in zip(found, references, strict=True))
    return Scores({"exact_match": 100 * exact / len(found), "f1": 100 * overlap / len(found)})


def normalize(text: str) -> str:
    """Return the text in lower case, without punctuation, articles and repeated spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(answer: str, reference: str) -> float:
    """Return 1 if answer and reference are equal after `normalize`, else 0."""
    return float(normalize(answer) == normalize(reference))


def f1(answer: str, reference: str) -> float:
    """Return the F1 of the answer's words against the reference's words, after `normalize`."""
    ours, theirs = normalize(answer).split(), normalize(reference).split()
    if not ours or not theirs:  # an empty answer is right for an unanswerable question
        return float(ours == theirs)
    return 2 * (Counter(ours) & Counter(theirs)).total() / (len(ours) + len(theirs))


def best_of(answer: str, references: Sequence[str], measure: Callable[[str, str], float]) -> float:
    """Return the highest score of an answer among its references. `measure` is `exact_match` or `f1`.

    References that are empty after normalization are ignored, unless all of them are empty.
    """
    nonempty = [reference for reference in references if normalize(reference)] or [""]
    return max(measure(answer, reference) for reference in nonempty)
