"""Exact match and F1 of answers, as SQuAD's own script counts them (Rajpurkar et al. 2016, 2018)."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from glassformer.metrics.scores import Scores

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def score_answers(found: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """The mean over all questions, of each the best among its references; a question without any has no answer."""
    if len(found) != len(references):
        raise ValueError(f"{len(found)} answers and {len(references)} questions: expected as many")
    if not found:
        raise ValueError("there are no answers: expected at least one")
    exact = sum(best_of(answer, own, exact_match) for answer, own in zip(found, references, strict=True))
    overlap = sum(best_of(answer, own, f1) for answer, own in zip(found, references, strict=True))
    return Scores({"exact_match": 100 * exact / len(found), "f1": 100 * overlap / len(found)})


def normalise(text: str) -> str:
    """In lower case, without punctuation, articles, or more than single spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(answer: str, reference: str) -> float:
    """1 where both are the same once normalised, else 0."""
    return float(normalise(answer) == normalise(reference))


def f1(answer: str, reference: str) -> float:
    """The harmonic mean of how many of the answer's words are the reference's, and the reference's the answer's."""
    ours, theirs = normalise(answer).split(), normalise(reference).split()
    if not ours or not theirs:  # saying nothing is right where nothing is to be said
        return float(ours == theirs)
    return 2 * (Counter(ours) & Counter(theirs)).total() / (len(ours) + len(theirs))


def best_of(answer: str, references: Sequence[str], measure: Callable[[str, str], float]) -> float:
    """The best of an answer's scores; references that normalising leaves nothing of count only where all are so."""
    told = [reference for reference in references if normalise(reference)] or [""]
    return max(measure(answer, reference) for reference in told)
