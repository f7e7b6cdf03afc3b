"""Classification: train an encoder to assign one or several labels to a text or a pair of texts."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from glassformer.base.plurals import counted
from glassformer.data.corpora.interface_labels import LABELED_CORPORA, open_labeled_corpus
from glassformer.data.readers.records import Record, RecordReader, as_text
from glassformer.metrics.accuracy import score_classes, score_label_sets
from glassformer.metrics.scores import Scores
from glassformer.models import ModelConfig
from glassformer.pipelines.examples import LabeledExample
from glassformer.tasks.configs.corpus_size import CorpusSize
from glassformer.tasks.configs.encoder_rule import EncoderRule
from glassformer.tasks.configs.shared import FileData, Splits, TaskConfig, train_on_rare_labels
from glassformer.tasks.configs.small_models import small_encoder
from glassformer.tasks.encoder_task import EncoderTask, Texts
from glassformer.training.train_config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.data.batching.labeled_batches import LabeledBatch, LabeledRow


@dataclass(frozen=True, kw_only=True)
class LabeledData(FileData[LabeledExample]):
    """Options that choose the data for classification: labeled texts from files or a named corpus."""

    CORPORA = LABELED_CORPORA

    data: tuple[Path, ...] = ()
    """Files with labeled texts: .tsv or .csv with a header, or .jsonl (.gz too)."""
    text_column: str = "text"
    """Column of the texts."""
    second_column: str = ""
    """Column of a second text, to classify pairs of texts."""
    label_column: str = "label"
    """Column of the labels."""
    multi_label: bool = False
    """Allow any number of labels per text: a list in .jsonl, separated by commas in .tsv and .csv."""
    corpus: str = ""
    """Use a named corpus instead of files: interface-languages or interface-components, which are downloaded."""

    @override
    def splits(self) -> Splits[LabeledExample]:
        found = super().splits()
        return train_on_rare_labels(found, lambda example: example.labels, keep=bool(self.corpus or self.valid))

    @override
    def corpus_splits(self) -> Splits[LabeledExample]:
        sides = open_labeled_corpus(self.corpus)
        examples = {name: [LabeledExample(text, (label,)) for text, label in side] for name, side in sides.items()}
        return Splits(examples["train"], examples["valid"], examples["test"])

    @override
    def split_key(self, example: LabeledExample) -> str:
        return example.text

    @override
    def read(self, paths: tuple[Path, ...]) -> Iterable[LabeledExample]:
        columns = [self.text_column, self.label_column] + [self.second_column] * bool(self.second_column)
        return RecordReader(paths, columns, self._example, self.on_bad)

    def _example(self, record: Record) -> LabeledExample:
        text, label, *second = record.cells
        return LabeledExample(
            as_text(text, self.text_column),
            self._labels(label),
            as_text(second[0], self.second_column) if second else None,
            record.where,
        )

    def _labels(self, cell: object) -> tuple[str, ...]:
        if not self.multi_label:
            cell = str(cell) if isinstance(cell, int) else cell  # JSON may have numbers as classes
            return (as_text(cell, self.label_column),)
        if isinstance(cell, str):
            cell = [part for part in cell.split(",") if part.strip()]
        if not isinstance(cell, list) or not all(isinstance(label, str) for label in cell):
            raise ValueError(f"no labels under {self.label_column!r}: expected a list, or text separated by commas")
        return tuple(as_text(label, self.label_column) for label in cell)


def _by_text(least: int, growth: float, step: int, most: int) -> Callable[[CorpusSize], int]:
    """Return a function that computes the value of an option, such as tokens per batch, from the size of a corpus.

    The value is `least` if the corpus has up to 60,000 tokens. If it has n times as many, the value is
    `least` * n ** `growth`, rounded to a multiple of `step` and at most `most`.
    """
    return lambda corpus: min(most, round(least * max(1.0, corpus.tokens / 60_000) ** growth / step) * step)


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig(TaskConfig):
    """The complete config of training a classifier."""

    FIRST_OPTIONS = ("data", "valid", "text_column", "label_column")
    ENCODER_RULE = EncoderRule(
        width=256,
        layers=1,
        batch_tokens=_by_text(512, 0.28, step=256, most=4096),
        vocabulary=_by_text(4000, 0.5, step=500, most=32_000),
        max_updates=1200,
        max_epochs=2.0,
        enough_updates=1000,
        cheaper=(
            {"model.d_model": 192},
            {"model.d_model": 128},
            {"model.d_model": 128, "train.adversarial": 0.0},
        ),
        others={
            "model.dropout": 0.2,
            "model.embedding_dropout": 0.1,
            "train.label_smoothing": 0.1,
            "train.adversarial": 2.0,
        },
    )

    data: LabeledData = field(default_factory=LabeledData)
    model: ModelConfig = field(default_factory=small_encoder)
    """The architecture of a new model. Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            updates=2000, lr=1e-3, warmup=200, schedule="linear", label_smoothing=0.0, eval_every=250
        )
    )


class Classification(EncoderTask[LabeledExample]):
    """Train a classifier on labeled texts."""

    name, title = "classification", "A classifier"
    Config = ClassificationConfig

    @override
    def unused(self) -> set[str]:
        """Return the names of options without effect: BPE-dropout, and with `multi_label` those that need a softmax."""
        return {"bpe_dropout", *(("r_drop", "word_dropout", "label_smoothing") if self.config.data.multi_label else ())}

    @override
    def texts(self, example: LabeledExample) -> Texts:
        return example.text, example.second

    @override
    def head_settings(self, train: Sequence[LabeledExample]) -> tuple[dict[str, Any], dict[str, Any]]:
        labels = sorted({label for example in train for label in example.labels})
        multi_label = self.config.data.multi_label
        if len(labels) < 2 and not (multi_label and labels):
            raise ValueError(
                f"all texts have the labels {labels}: expected at least two classes. Add texts of "
                "another class, or name another column with --label-column"
            )
        # A new model has BERT's pooler, so that Hugging Face can express it. A pretrained body gets no untrained layer
        # beside the output layer.
        is_fresh = self.config.start_from is None
        head = {"pooling": "first", "head_transform": True} if is_fresh else {"pooling": "mean"}
        inputs = "pairs" if self.config.data.second_column else "texts"
        return {"n_labels": len(labels), **head}, {"labels": labels, "multi_label": multi_label, "inputs": inputs}

    @override
    def rows(self, pipeline: Any, examples: Sequence[LabeledExample]) -> "list[LabeledRow]":
        from glassformer.data.batching.labeled_batches import LabeledRow

        rows = []
        for example, read in zip(examples, pipeline.read([self.texts(example) for example in examples]), strict=True):
            numbers = pipeline.numbers(example)
            answer: Any = (
                numbers[0] if not pipeline.multi_label else [float(i in numbers) for i in range(len(pipeline.labels))]
            )
            rows.append(LabeledRow(read.ids, read.token_types, answer))
        return rows

    @override
    def loss(self, model: Any, batch: "LabeledBatch") -> "Tensor":
        if not batch.answers.is_floating_point():
            return self.class_loss(model, batch)
        import torch.nn.functional as F

        logits = self.outputs(model, batch)
        return F.binary_cross_entropy_with_logits(logits, batch.answers, reduction="none").mean(-1).sum()

    @override
    @classmethod
    def demo(cls) -> ClassificationConfig:
        """Return the config of a classifier that predicts in which of 20 languages an interface text is."""
        return ClassificationConfig(
            data=LabeledData(corpus="interface-languages"),
            model=small_encoder(n_encoder_layers=1, dropout=0.1, embedding_dropout=0.1),
            train=TrainConfig(
                minutes=2, lr=2e-3, warmup=100, schedule="linear", label_smoothing=0.0, max_tokens=1024, eval_every=250
            ),
        )

    @override
    def baseline(self, splits: Splits[LabeledExample]) -> tuple[str, Scores]:
        """Return the scores of predicting the most frequent label of the training data for every text."""
        counts = Counter(example.labels for example in splits.train)
        (labels, _), *_ = counts.most_common(1)
        true = [example.labels for example in splits.test or splits.valid]
        if self.config.data.multi_label:
            return "the commonest labels", score_label_sets([labels] * len(true), true)
        return "the commonest class", score_classes([labels[0]] * len(true), [names[0] for names in true])

    @override
    def show(self, example: LabeledExample) -> tuple[str, str]:
        return "\t".join(filter(None, (example.text, example.second))), ",".join(example.labels)

    @override
    def describe(self, splits: Splits[LabeledExample]) -> str:
        train, valid = list(splits.train), list(splits.valid)
        counts = Counter(label for example in train for label in example.labels)
        balance = ", ".join(f"{label} {count / len(train):.0%}" for label, count in counts.most_common(10))
        more = f" and {len(counts) - 10} more" if len(counts) > 10 else ""
        classes = counted(len(counts), "classes", "class")
        return (
            f"{counted(len(train), 'texts')} to learn from, {len(valid):,} to validate on; {classes}: {balance}{more}"
        )
