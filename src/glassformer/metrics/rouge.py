"""ROUGE, computed by `rouge_score`: what a summary shares with a reference.

ROUGE-1 counts shared words, ROUGE-2 shared pairs of adjacent words, ROUGE-L the longest common subsequence of words.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from glassformer.metrics.scores import Scores

KINDS = ("rouge1", "rouge2", "rougeL")


def score_summaries(found: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return the mean ROUGE F1 of the summaries `found` in percent, with Porter stemming.

    `references[i]` are the references of summary i, at least one. For each ROUGE type, the best of them counts.
    """
    if len(found) != len(references):
        raise ValueError(f"{len(found)} summaries and {len(references)} texts: expected as many")
    if not found:
        raise ValueError("there are no summaries: expected at least one")
    if not all(references):
        raise ValueError("a text has no reference: expected at least one for each")
    scorer = _scorer()
    each = [scorer.score_multi(list(own), summary) for summary, own in zip(found, references, strict=True)]
    signature = "rouge_score|F1|stemmer|best reference"
    return Scores(
        {kind: 100 * sum(scores[kind].fmeasure for scores in each) / len(each) for kind in KINDS},
        dict.fromkeys(KINDS, signature),
    )


@lru_cache(maxsize=100_000)  # the same corpus is scored several times
def best_sentence(sentences: tuple[str, ...], reference: str) -> str:
    """Return the sentence with the highest sum of ROUGE-1 F1 and ROUGE-2 F1 against `reference`.

    If several have the same sum, the first of them is returned.
    """
    scorer = _scorer()

    def shared(sentence: str) -> float:
        scores = scorer.score(reference, sentence)
        return scores["rouge1"].fmeasure + scores["rouge2"].fmeasure

    return max(sentences, key=shared)


@cache
def _scorer() -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise ImportError("ROUGE needs rouge_score: pip install rouge_score") from error
    return RougeScorer(KINDS, use_stemmer=True)
