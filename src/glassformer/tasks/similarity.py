"""Similarity: train an encoder to score how similar two texts are, by the cosine of their vectors."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from glassformer.base.plurals import counted
from glassformer.data.corpora.synthetic_pairs import ScoredPair
from glassformer.metrics.correlation import score_correlation
from glassformer.metrics.scores import Scores
from glassformer.tasks.configs.shared import Splits
from glassformer.tasks.pair_task import PairConfig, PairTask, ScoredPairData

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SimilarityData(ScoredPairData):
    """Options that choose the data for similarity: pairs of texts with similarity scores."""

    SCORE_FIELD = "score_column"

    data: tuple[Path, ...] = ()
    """Files with pairs of texts and scores: .tsv or .csv with a header, or .jsonl (.gz too)."""
    score_column: str = "score"
    """Column of the scores."""
    lowest: float = 0.0
    """Score of texts that have nothing in common."""
    highest: float = 1.0
    """Score of texts that mean the same (5 in STS-B)."""
    corpus: str = ""
    """Use a named corpus instead of files: made-pairs, sentences of known similarity."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lowest < self.highest:
            raise ValueError(f"scores from {self.lowest} to {self.highest}: expected the lowest below the highest")

    @override
    def score_of(self, cell: Any) -> float:
        try:
            number = math.nan if isinstance(cell, bool) else float(cell)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not self.lowest <= number <= self.highest:
            raise ValueError(
                f"{repr(cell)[:60]} under {self.score_column!r}: expected {self.lowest:g} to {self.highest:g}"
            )
        return number


@dataclass(frozen=True, kw_only=True)
class SimilarityConfig(PairConfig):
    """The complete config of training an encoder to score the similarity of texts."""

    FIRST_OPTIONS = ("data", "valid", "text_column", "second_column", "score_column")

    data: SimilarityData = field(default_factory=SimilarityData)


class Similarity(PairTask):
    """Train an encoder on pairs of texts with scores, so that the cosine of their vectors predicts the score."""

    name, title = "similarity", "A comparer of texts"
    Config = SimilarityConfig
    fewest_valid = 2  # for a correlation

    @override
    def settings(self) -> dict[str, Any]:
        return {"lowest": self.config.data.lowest, "highest": self.config.data.highest}

    @override
    def target(self, pipeline: Any, pair: ScoredPair) -> float:
        """Return the cosine that the vectors of a pair should have: the pair's score, rescaled to 0 to 1."""
        return (pair.score - pipeline.lowest) / (pipeline.highest - pipeline.lowest)

    @override
    def cosine_loss(self, cosines: "Tensor", targets: "Tensor") -> "Tensor":
        """Return the squared difference between the cosine and the target of each pair."""
        return (cosines - targets).square()

    @override
    def describe(self, splits: Splits[ScoredPair]) -> str:
        train, valid = list(splits.train), list(splits.valid)
        quarters = sorted(pair.score for pair in train)
        listed = ", ".join(f"{quarters[(len(quarters) - 1) * part // 4]:g}" for part in range(5))
        known = f"{counted(len(train), 'pairs')} to learn from, {len(valid):,} to validate on"
        return f"{known}; quartiles of the scores: {listed}"

    @override
    @classmethod
    def demo(cls) -> SimilarityConfig:
        config: SimilarityConfig = cls.demo_on_made_pairs(minutes=1.5, eval_every=250)
        return config

    @override
    def baseline(self, splits: Splits[ScoredPair]) -> tuple[str, Scores]:
        """Return the name and the scores of a baseline that counts common words.

        The predicted similarity of two texts is the number of words that occur in both of them, divided by the number
        of words that occur in at least one.
        """
        held_out = list(splits.test) or list(splits.valid)
        words = [[set(text.lower().split()) for text in pair[:2]] for pair in held_out]
        overlaps = [len(a & b) / max(len(a | b), 1) for a, b in words]
        return "words in common", score_correlation(overlaps, [pair.score for pair in held_out])

    @override
    def show(self, example: ScoredPair) -> tuple[str, str]:
        return f"{example.text}\t{example.second}", f"{example.score:g}"
