"""Paraphrase detection: train an encoder with a margin loss, so that texts with the same meaning have near vectors."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from glassformer.base.fields import Probability
from glassformer.data.corpora.synthetic_pairs import ScoredPair, generate_pairs
from glassformer.data.readers.records import Record, RecordReader, as_text
from glassformer.metrics.accuracy import score_binary
from glassformer.metrics.scores import Scores
from glassformer.models import ModelConfig
from glassformer.tasks.configs.shared import FileData, Splits, TaskConfig
from glassformer.tasks.configs.small_models import small_encoder
from glassformer.tasks.encoder_task import EncoderTask, Texts
from glassformer.training.train_config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from glassformer.data.batching.labeled_batches import LabeledBatch, LabeledRow

LABELS = {"same": 1.0, "1": 1.0, "true": 1.0, "different": 0.0, "0": 0.0, "false": 0.0}
"""The labels of a pair in lower case, and its score."""


@dataclass(frozen=True, kw_only=True)
class ParaphraseData(FileData[ScoredPair]):
    """Options of pairs of texts that are labeled as paraphrases or not."""

    CORPORA = ("made-pairs",)

    data: tuple[Path, ...] = ()
    """Files with pairs of texts and labels, same (or 1) or different (or 0): .tsv, .csv or .jsonl (.gz too)."""
    text_column: str = "text"
    """Column of the first texts."""
    second_column: str = "second"
    """Column of the second texts."""
    label_column: str = "label"
    """Column of the labels."""
    corpus: str = ""
    """Use a named corpus instead of files: made-pairs, generated sentences with synonyms."""

    @override
    def corpus_splits(self) -> Splits[ScoredPair]:
        sides = generate_pairs().values()
        return Splits(*([pair._replace(score=float(pair.score == 1.0)) for pair in side] for side in sides))

    @override
    def split_key(self, example: ScoredPair) -> str:
        return example.text

    @override
    def read(self, paths: tuple[Path, ...]) -> Iterable[ScoredPair]:
        return RecordReader(paths, [self.text_column, self.second_column, self.label_column], self._pair, self.on_bad)

    def _pair(self, record: Record) -> ScoredPair:
        text, second, label = record.cells
        score = LABELS.get(str(label).strip().lower())
        if score is None:
            raise ValueError(f"{repr(label)[:60]} under {self.label_column!r}: expected same or different, or 1 or 0")
        return ScoredPair(as_text(text, self.text_column), as_text(second, self.second_column), score)


@dataclass(frozen=True, kw_only=True)
class ParaphraseConfig(TaskConfig):
    """The recipe of a paraphrase detector."""

    FIRST_OPTIONS = ("data", "valid", "text_column", "second_column", "label_column")

    data: ParaphraseData = field(default_factory=ParaphraseData)
    model: ModelConfig = field(default_factory=lambda: small_encoder(dropout=0.1, embedding_dropout=0.1))
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            updates=2000, lr=1e-3, warmup=200, schedule="linear", label_smoothing=0.0, eval_every=250
        )
    )
    margin: Probability = 0.5
    """Cosine below which two different texts add nothing to the loss."""


class Paraphrase(EncoderTask[ScoredPair]):
    """Train a detector of paraphrases on labeled pairs."""

    name, title, separate_encoding = "paraphrase", "A paraphrase detector", True
    unit, sample_line = "pairs", "a first text\ta second text"
    Config = ParaphraseConfig

    @override
    def unused(self) -> set[str]:
        return {"r_drop", "word_dropout", "label_smoothing", "bpe_dropout"}

    @override
    def texts(self, example: ScoredPair) -> Texts:
        return example.text, example.second

    @override
    def head_settings(self, train: Sequence[ScoredPair]) -> tuple[dict[str, Any], dict[str, Any]]:
        if len({pair.score for pair in train}) < 2:
            raise ValueError("all pairs have the same label: expected same and different pairs")
        return {"pooling": "mean"}, {}

    @override
    def rows(self, pipeline: Any, examples: Sequence[ScoredPair]) -> "list[LabeledRow]":
        """Return two rows for each pair, both with its label."""
        return self.pair_rows(pipeline, examples, [pair.score for pair in examples])

    @override
    def loss(self, model: "nn.Module", batch: "LabeledBatch") -> "Tensor":
        """Return the contrastive margin loss: 1 - cosine of the same, max(0, cosine - margin) of different texts."""
        first, second = self.outputs(model, batch).chunk(2)
        cosines, same = (first * second).sum(-1), batch.answers
        return (same * (1 - cosines) + (1 - same) * (cosines - self.config.margin).relu()).sum()

    @override
    def calibrate(self, pipeline: Any, valid: Sequence[ScoredPair]) -> None:
        pipeline.choose_threshold(valid)

    @override
    def describe(self, splits: Splits[ScoredPair]) -> str:
        train, valid = list(splits.train), list(splits.valid)
        share = sum(pair.score for pair in train) / len(train)
        return f"{len(train):,} pairs to learn from, {share:.0%} of them the same; {len(valid):,} to validate on"

    @override
    @classmethod
    def demo(cls) -> ParaphraseConfig:
        return ParaphraseConfig(
            data=ParaphraseData(corpus="made-pairs"),
            model=small_encoder(vocab_size=1000, d_model=64, d_ff=128, dropout=0.0, embedding_dropout=0.0),
            train=TrainConfig(
                minutes=2.5, label_smoothing=0.0, lr=2e-3, warmup=100, schedule="linear", max_tokens=1024
            ),
        )

    @override
    def baseline(self, splits: Splits[ScoredPair]) -> tuple[str, Scores]:
        held_out = list(splits.test) or list(splits.valid)
        return "always same", score_binary([True] * len(held_out), [pair.score > 0.5 for pair in held_out])

    @override
    def show(self, example: ScoredPair) -> tuple[str, str]:
        return f"{example.text}\t{example.second}", "same" if example.score else "different"
