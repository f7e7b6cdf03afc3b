"""Data and config of similarity."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from glassformer.base.fields import Checked
from glassformer.data.corpora.synthetic_pairs import ScoredPair, made_pairs
from glassformer.data.readers.records import Examples, OnBad, Record, RecordReader, as_text
from glassformer.data.readers.splits import split_examples
from glassformer.models import ModelConfig
from glassformer.tasks.configs.shared import EncoderConfig, Splits, check_corpus
from glassformer.tasks.configs.small_models import small_encoder
from glassformer.training.train_config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class SimilarityData(Checked):
    """Where pairs of texts with scores come from."""

    data: tuple[Path, ...] = ()
    """Files with pairs of texts and scores: .tsv or .csv with a header, or .jsonl (.gz too)."""
    valid: tuple[Path, ...] = ()
    """Files for validation; without them, one pair in twenty-five of the training data is kept for it."""
    text_column: str = "text"
    """Column of the first texts."""
    second_column: str = "second"
    """Column of the second texts."""
    score_column: str = "score"
    """Column of the scores."""
    lowest: float = 0.0
    """Score of texts that have nothing in common."""
    highest: float = 1.0
    """Score of texts that mean the same (5 in STS-B)."""
    on_bad: OnBad = "error"
    """What to do with a bad record: stop with its file and line (error), or count and skip it (skip)."""
    corpus: str = ""
    """Use a named corpus instead of files: made-pairs, sentences of known similarity."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_corpus(self, ["made-pairs"])
        if not self.lowest < self.highest:
            raise ValueError(f"scores from {self.lowest} to {self.highest}: expected the lowest below the highest")

    def splits(self) -> Splits[ScoredPair]:
        """To learn from, and to validate on; to test with where it is a corpus."""
        if self.corpus:
            return Splits(*made_pairs().values())
        if self.valid:
            return Splits(self.examples(), list(self._read(self.valid)))
        sides = split_examples(self.examples(), lambda pair: pair.text, test=0.0)
        return Splits(sides["train"], sides["valid"])

    def examples(self) -> list[ScoredPair]:
        """Everything in `data`; of a corpus what is kept for testing."""
        if self.corpus:
            return list(self.splits().test)
        if not self.data:
            raise ValueError("no data: expected at least one .tsv, .csv or .jsonl file, or a corpus")
        return Examples.of(self._read(self.data))

    def _read(self, paths: tuple[Path, ...]) -> RecordReader[ScoredPair]:
        return RecordReader(paths, [self.text_column, self.second_column, self.score_column], self._pair, self.on_bad)

    def _pair(self, record: Record) -> ScoredPair:
        text, second, score = record.cells
        try:
            number = math.nan if isinstance(score, bool) else float(score)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not self.lowest <= number <= self.highest:
            raise ValueError(
                f"{repr(score)[:60]} under {self.score_column!r}: expected {self.lowest:g} to {self.highest:g}"
            )
        return ScoredPair(as_text(text, self.text_column), as_text(second, self.second_column), number)


@dataclass(frozen=True, kw_only=True)
class SimilarityConfig(EncoderConfig):
    """A whole recipe."""

    data: SimilarityData = field(default_factory=SimilarityData)
    model: ModelConfig = field(default_factory=lambda: small_encoder(dropout=0.1, embedding_dropout=0.1))
    """Of a model from scratch. Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            updates=2000, lr=1e-3, warmup=200, schedule="linear", label_smoothing=0.0, eval_every=250
        )
    )
