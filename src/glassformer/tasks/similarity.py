"""Similarity: score how similar two texts are, by the cosine of their vectors."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from glassformer.data.corpora.synthetic_pairs import ScoredPair, generate_pairs
from glassformer.data.readers.records import Record, RecordReader, as_text
from glassformer.metrics.correlation import score_correlation
from glassformer.metrics.scores import Scores
from glassformer.models import ModelConfig
from glassformer.tasks.configs.shared import FileData, Splits, TaskConfig
from glassformer.tasks.configs.small_models import small_encoder
from glassformer.tasks.encoder_task import EncoderTask, Texts
from glassformer.training.train_config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from glassformer.data.batching.labeled_batches import LabeledBatch, LabeledRow


@dataclass(frozen=True, kw_only=True)
class SimilarityData(FileData[ScoredPair]):
    """Options of pairs of texts with scores."""

    CORPORA = ("made-pairs",)

    data: tuple[Path, ...] = ()
    """Files with pairs of texts and scores: .tsv or .csv with a header, or .jsonl (.gz too)."""
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
    corpus: str = ""
    """Use a named corpus instead of files: made-pairs, sentences of known similarity."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lowest < self.highest:
            raise ValueError(f"scores from {self.lowest} to {self.highest}: expected the lowest below the highest")

    @override
    def corpus_splits(self) -> Splits[ScoredPair]:
        return Splits(*generate_pairs().values())

    @override
    def split_key(self, example: ScoredPair) -> str:
        return example.text

    @override
    def read(self, paths: tuple[Path, ...]) -> Iterable[ScoredPair]:
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
class SimilarityConfig(TaskConfig):
    """The recipe of a comparer of texts."""

    FIRST_OPTIONS = ("data", "valid", "text_column", "second_column", "score_column")

    data: SimilarityData = field(default_factory=SimilarityData)
    model: ModelConfig = field(default_factory=lambda: small_encoder(dropout=0.1, embedding_dropout=0.1))
    """The architecture of a new model. Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            updates=2000, lr=1e-3, warmup=200, schedule="linear", label_smoothing=0.0, eval_every=250
        )
    )


class Similarity(EncoderTask[ScoredPair]):
    """Train an encoder on pairs of texts with scores: the cosine of their vectors becomes the score."""

    name, title, separate_encoding = "similarity", "A comparer of texts", True
    unit, sample_line = "pairs", "a first text\ta second text"
    Config = SimilarityConfig

    @override
    def unused(self) -> set[str]:
        return {"r_drop", "word_dropout", "label_smoothing", "bpe_dropout"}

    @override
    def texts(self, example: ScoredPair) -> Texts:
        return example.text, example.second

    @override
    def head_settings(self, train: Sequence[ScoredPair]) -> tuple[dict[str, Any], dict[str, Any]]:
        if len({pair.score for pair in train}) < 2:
            raise ValueError(f"all pairs have the score {train[0].score:g}: expected different ones")
        return {"pooling": "mean"}, {"lowest": self.config.data.lowest, "highest": self.config.data.highest}

    @override
    def rows(self, pipeline: Any, examples: Sequence[ScoredPair]) -> "list[LabeledRow]":
        """Return two rows for each pair, both with the cosine that their vectors should have."""
        scale = pipeline.highest - pipeline.lowest
        return self.pair_rows(pipeline, examples, [(pair.score - pipeline.lowest) / scale for pair in examples])

    @override
    def loss(self, model: "nn.Module", batch: "LabeledBatch") -> "Tensor":
        """Return the sum of the squared errors of the cosines."""
        first, second = self.outputs(model, batch).chunk(2)
        return ((first * second).sum(-1) - batch.answers).square().sum()

    @override
    def describe(self, splits: Splits[ScoredPair]) -> str:
        train, valid = list(splits.train), list(splits.valid)
        quarters = sorted(pair.score for pair in train)
        told = ", ".join(f"{quarters[(len(quarters) - 1) * part // 4]:g}" for part in range(5))
        return f"{len(train):,} pairs to learn from, {len(valid):,} to validate on; quartiles of the scores: {told}"

    @override
    @classmethod
    def demo(cls) -> SimilarityConfig:
        """Return the config of a model on sentences made of synonyms, which share meaning and not words."""
        return SimilarityConfig(
            data=SimilarityData(corpus="made-pairs"),
            model=small_encoder(vocab_size=1000, d_model=64, d_ff=128, dropout=0.0, embedding_dropout=0.0),
            train=TrainConfig(
                minutes=1.5,
                label_smoothing=0.0,
                lr=2e-3,
                warmup=100,
                schedule="linear",
                max_tokens=1024,
                eval_every=250,
            ),
        )

    @override
    def baseline(self, splits: Splits[ScoredPair]) -> tuple[str, Scores]:
        """Predict the share of words that both texts have in common."""
        held_out = list(splits.test) or list(splits.valid)
        words = [[set(text.lower().split()) for text in pair[:2]] for pair in held_out]
        overlaps = [len(a & b) / max(len(a | b), 1) for a, b in words]
        return "words in common", score_correlation(overlaps, [pair.score for pair in held_out])

    @override
    def show(self, example: ScoredPair) -> tuple[str, str]:
        return f"{example.text}\t{example.second}", f"{example.score:g}"
