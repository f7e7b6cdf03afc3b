"""Paraphrase detection: train an encoder with a margin loss, so that texts of equal meaning get similar vectors."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from glassformer.base.fields import Probability
from glassformer.base.plurals import counted
from glassformer.data.corpora.synthetic_pairs import ScoredPair
from glassformer.metrics.accuracy import score_binary
from glassformer.metrics.scores import Scores
from glassformer.tasks.configs.shared import Splits
from glassformer.tasks.pair_task import PairConfig, PairTask, ScoredPairData

if TYPE_CHECKING:
    from torch import Tensor

LABELS = {"same": 1.0, "1": 1.0, "true": 1.0, "different": 0.0, "0": 0.0, "false": 0.0}
"""Score of a pair for each label in lower case: 1 for paraphrases, 0 for other pairs."""


@dataclass(frozen=True, kw_only=True)
class ParaphraseData(ScoredPairData):
    """Options that choose the data for paraphrase detection: pairs of texts labeled same or different."""

    SCORE_FIELD = "label_column"

    data: tuple[Path, ...] = ()
    """Files with pairs of texts and labels, same (or 1) or different (or 0): .tsv, .csv or .jsonl (.gz too)."""
    label_column: str = "label"
    """Column of the labels."""
    corpus: str = ""
    """Use a named corpus instead of files: made-pairs, generated sentences with synonyms."""

    @override
    def corpus_splits(self) -> Splits[ScoredPair]:
        sides = super().corpus_splits()
        return Splits(*([pair._replace(score=float(pair.score == 1.0)) for pair in side] for side in sides))

    @override
    def score_of(self, cell: object) -> float:
        score = LABELS.get(str(cell).strip().lower())
        if score is None:
            raise ValueError(f"{repr(cell)[:60]} under {self.label_column!r}: expected same or different, or 1 or 0")
        return score


@dataclass(frozen=True, kw_only=True)
class ParaphraseConfig(PairConfig):
    """The complete config of training a paraphrase detector."""

    FIRST_OPTIONS = ("data", "valid", "text_column", "second_column", "label_column")

    data: ParaphraseData = field(default_factory=ParaphraseData)
    margin: Probability = 0.5
    """Cosine below which two different texts add nothing to the loss."""


class Paraphrase(PairTask):
    """Train a detector of paraphrases on labeled pairs."""

    name, title = "paraphrase", "A paraphrase detector"
    Config = ParaphraseConfig
    ONE_SCORE = "all pairs have the same label: expected same and different pairs"

    @override
    def cosine_loss(self, cosines: "Tensor", targets: "Tensor") -> "Tensor":
        """Return the contrastive margin loss of each pair.

        It is 1 - cosine for paraphrases (target 1), and max(0, cosine - margin) for other pairs (target 0).
        """
        return targets * (1 - cosines) + (1 - targets) * (cosines - self.config.margin).relu()

    @override
    def calibrate(self, pipeline: Any, valid: Sequence[ScoredPair]) -> None:
        pipeline.choose_threshold(valid)

    @override
    def describe(self, splits: Splits[ScoredPair]) -> str:
        train, valid = list(splits.train), list(splits.valid)
        share = sum(pair.score for pair in train) / len(train)
        return (
            f"{counted(len(train), 'pairs')} to learn from, {share:.0%} of them the same; {len(valid):,} to validate on"
        )

    @override
    @classmethod
    def demo(cls) -> ParaphraseConfig:
        config: ParaphraseConfig = cls.demo_on_made_pairs(minutes=2.5)
        return config

    @override
    def baseline(self, splits: Splits[ScoredPair]) -> tuple[str, Scores]:
        held_out = list(splits.test) or list(splits.valid)
        return "always same", score_binary([True] * len(held_out), [pair.score > 0.5 for pair in held_out])

    @override
    def show(self, example: ScoredPair) -> tuple[str, str]:
        return f"{example.text}\t{example.second}", "same" if example.score else "different"
