"""Texts to classes, one or several each; pairs of texts too."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.data.interface_labels import open_labelled_corpus
from glassformer.data.labelled import LabelledBatch, Row
from glassformer.data.records import Examples, OnBad, Record, RecordReader, as_text
from glassformer.data.splits import split_examples
from glassformer.metrics.classification import confusion, confusion_tables, score_classes, score_label_sets
from glassformer.metrics.scores import Scores
from glassformer.models import EncoderModel, ModelConfig
from glassformer.tasks.encoders import (
    EncoderConfig,
    EncoderTask,
    EncoderTool,
    Reader,
    Texts,
    read_batch,
    unknown_label,
)
from glassformer.tasks.task import Splits
from glassformer.training.config import TrainConfig


class LabelledText(NamedTuple):
    """A text, or two, and its labels: one, or with `multi_label` any number."""

    text: str
    labels: tuple[str, ...]
    second: str | None = None
    where: str = ""
    """File and line it was read from."""


@dataclass(frozen=True, kw_only=True)
class LabelledData:
    """Where labelled texts come from."""

    data: tuple[Path, ...] = ()
    """TSV, CSV (with a header) or JSONL; .gz too."""
    valid: tuple[Path, ...] = ()
    """For validation. Without it, a twenty-fifth of the data, chosen by a hash of the texts."""
    text_column: str = "text"
    second_column: str = ""
    """Where a second text is, for classes of pairs."""
    label_column: str = "label"
    multi_label: bool = False
    """A text has any number of labels: a list in JSONL, in a table separated by commas."""
    on_bad: OnBad = "error"
    """What to do with a bad record: stop and name its file and line, or count and skip it."""
    corpus: str = ""
    """interface-languages or interface-components, instead of files."""

    def splits(self) -> Splits[LabelledText]:
        """To learn from, and to validate on; to test with where it is a corpus."""
        if self.corpus:
            corpus = open_labelled_corpus(self.corpus)
            examples = {name: [LabelledText(text, (label,)) for text, label in side] for name, side in corpus.items()}
            return Splits(examples["train"], examples["valid"], examples["test"])
        if self.valid:
            return Splits(self.examples(), list(self._read(self.valid)))
        known = self.examples()
        sides = split_examples(known, lambda example: example.text, test=0.0)
        learned, kept = list(sides["train"]), list(sides["valid"])
        labels = {label for example in learned for label in example.labels}
        # A rare class may fall wholly on the other side, where nobody could learn it.
        strange = [example for example in kept if not labels.issuperset(example.labels)]
        learned = Examples(learned + strange, sides["train"].skipped)
        return Splits(learned, [example for example in kept if labels.issuperset(example.labels)])

    def examples(self) -> list[LabelledText]:
        """Everything in `data`; of a corpus what is kept for testing."""
        if self.corpus:
            return list(self.splits().test)
        if not self.data:
            raise ValueError("no data: expected at least one .tsv, .csv or .jsonl file, or a corpus")
        return Examples.of(self._read(self.data))

    def _read(self, paths: tuple[Path, ...]) -> RecordReader[LabelledText]:
        columns = [self.text_column, self.label_column] + [self.second_column] * bool(self.second_column)
        return RecordReader(paths, columns, self._example, self.on_bad)

    def _example(self, record: Record) -> LabelledText:
        text, label, *second = record.cells
        return LabelledText(
            as_text(text, self.text_column),
            self._labels(label),
            as_text(second[0], self.second_column) if second else None,
            record.where,
        )

    def _labels(self, cell: object) -> tuple[str, ...]:
        if not self.multi_label:
            cell = str(cell) if isinstance(cell, int) else cell  # JSON may number its classes
            return (as_text(cell, self.label_column),)
        if isinstance(cell, str):
            cell = [part for part in cell.split(",") if part.strip()]
        if not isinstance(cell, list) or not all(isinstance(label, str) for label in cell):
            raise ValueError(f"no labels under {self.label_column!r}: expected a list, or text separated by commas")
        return tuple(as_text(label, self.label_column) for label in cell)


def small_encoder(**changes: Any) -> ModelConfig:
    """A small encoder that learns on two cores."""
    values: dict[str, Any] = {
        "vocab_size": 8000,
        "n_encoder_layers": 2,
        "d_model": 128,
        "n_heads": 4,
        "d_ff": 256,
        "max_len": 256,
        "norm_placement": "pre",
        "dropout": 0.3,
        "embedding_dropout": 0.3,
        "init": "normal",
        "init_std": 0.088,
    }
    return ModelConfig(**{**values, **changes})


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig(EncoderConfig):
    """A whole recipe."""

    data: LabelledData = field(default_factory=LabelledData)
    model: ModelConfig = field(default_factory=small_encoder)
    """Of a model from scratch. Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            updates=2000, lr=1e-3, warmup=200, schedule="linear", label_smoothing=0.0, eval_every=250
        )
    )


class Prediction(NamedTuple):
    """A class, and how likely the model finds it."""

    label: str
    probability: float


class Classifier(EncoderTool[LabelledText]):
    """A trained model with its tokenizer and the names of its classes."""

    task, head = "classification", "sequence_class"

    def __init__(self, model: EncoderModel, reader: Reader, *, labels: Sequence[str], multi_label: bool = False):
        if len(labels) != model.config.n_labels:
            raise ValueError(f"{len(labels)} labels for a model of {model.config.n_labels} classes: expected as many")
        super().__init__(model, reader, labels=list(labels), multi_label=multi_label)
        self.labels, self.multi_label = list(labels), multi_label

    def probabilities(self, texts: Sequence[str | Texts], *, max_batch_tokens: int = 8192) -> Tensor:
        """How likely each class is for each text, or pair of texts: (N, classes), in their order."""
        if not texts:
            return torch.empty(0, len(self.labels))
        rows = self.read([(text, None) if isinstance(text, str) else text for text in texts])
        scores = torch.stack(self.answers(rows, max_batch_tokens=max_batch_tokens))
        return scores.sigmoid() if self.multi_label else scores.softmax(-1)

    def classify(self, texts: Sequence[str | Texts]) -> list[list[Prediction]]:
        """The likeliest class of each text; with several labels a text, all that are likelier than not."""
        found = []
        for row in self.probabilities(texts):
            chosen = (row > 0.5).nonzero()[:, 0].tolist() if self.multi_label else [int(row.argmax())]
            found.append([Prediction(self.labels[index], float(row[index])) for index in chosen])
        return found

    def run(self, lines: Sequence[str]) -> list[str]:
        """The labels of each line, with commas between them; a pair of texts has a tab between them."""
        told = [index for index, text in enumerate(lines) if text.strip()]
        answers = [""] * len(lines)
        texts = [_texts(lines[index]) for index in told]
        for index, predictions in zip(told, self.classify(texts), strict=True):
            answers[index] = ",".join(prediction.label for prediction in predictions)
        return answers

    def score(self, examples: Sequence[LabelledText]) -> Scores:
        """Accuracy and macro-F1, with the confusion of a few classes; of several labels a text micro-F1 first."""
        found, true = self._compare(examples)
        if self.multi_label:
            return score_label_sets(found, true)
        one, other = [labels[0] for labels in found], [labels[0] for labels in true]
        return replace(score_classes(one, other), tables=confusion_tables(one, other, self.labels))

    def confusion(self, examples: Sequence[LabelledText]) -> list[list[int]]:
        """How often each class (rows) was taken for each (columns), in the order of `labels`."""
        found, true = self._compare(examples)
        return confusion([labels[0] for labels in found], [labels[0] for labels in true], self.labels)

    def numbers(self, example: LabelledText) -> list[int]:
        """The numbers of an example's labels."""
        for label in example.labels:
            if label not in self.labels:
                raise unknown_label(label, self.labels, example.where)
        return [self.labels.index(label) for label in example.labels]

    def _compare(self, examples: Sequence[LabelledText]) -> tuple[list[list[str]], list[tuple[str, ...]]]:
        for example in examples:
            self.numbers(example)
        found = self.classify([(example.text, example.second) for example in examples])
        return [[p.label for p in predictions] for predictions in found], [example.labels for example in examples]


class Classification(EncoderTask[LabelledText]):
    """Labelled texts to a classifier."""

    name, title = "classification", "A classifier"
    Config, Data, Tool = ClassificationConfig, LabelledData, Classifier

    def unused(self) -> set[str]:
        """As above: of several labels a text, each is asked for by itself."""
        return {"bpe_dropout", *(("r_drop", "word_dropout", "label_smoothing") if self.config.data.multi_label else ())}

    def texts(self, example: LabelledText) -> Texts:
        """As above."""
        return example.text, example.second

    def begin(self, train: Sequence[LabelledText]) -> tuple[dict[str, Any], dict[str, Any]]:
        """As above."""
        labels = sorted({label for example in train for label in example.labels})
        multi_label = self.config.data.multi_label
        if len(labels) < 2 and not (multi_label and labels):
            raise ValueError(f"all texts have the labels {labels}: expected at least two classes")
        return {"n_labels": len(labels), "pooling": "mean"}, {"labels": labels, "multi_label": multi_label}

    def rows(self, tool: Classifier, examples: Sequence[LabelledText]) -> list[Row]:
        """As above."""
        rows = []
        for example, read in zip(examples, tool.read([self.texts(example) for example in examples]), strict=True):
            numbers = tool.numbers(example)
            answer: Any = numbers[0] if not tool.multi_label else [float(i in numbers) for i in range(len(tool.labels))]
            rows.append(Row(read.ids, read.token_types, answer))
        return rows

    def loss(self, model: nn.Module, batch: LabelledBatch) -> Tensor:
        """As above."""
        if not batch.answers.is_floating_point():
            return self.class_loss(model, batch)
        scores = read_batch(model, batch).float()
        return F.binary_cross_entropy_with_logits(scores, batch.answers, reduction="none").mean(-1).sum()

    @classmethod
    def demo(cls) -> ClassificationConfig:
        """Which of 20 languages is it? Some are far from each other, some, as Danish and Norwegian, are not."""
        return ClassificationConfig(
            data=LabelledData(corpus="interface-languages"),
            model=small_encoder(n_encoder_layers=1, dropout=0.1, embedding_dropout=0.1),
            train=TrainConfig(
                minutes=2, lr=2e-3, warmup=100, schedule="linear", label_smoothing=0.0, max_tokens=1024, eval_every=250
            ),
        )

    def baseline(self, splits: Splits[LabelledText]) -> tuple[str, Scores]:
        """The commonest answer for every text."""
        counts = Counter(example.labels for example in splits.train)
        (labels, _), *_ = counts.most_common(1)
        true = [example.labels for example in splits.test or splits.valid]
        if self.config.data.multi_label:
            return "the commonest labels", score_label_sets([labels] * len(true), true)
        return "the commonest class", score_classes([labels[0]] * len(true), [names[0] for names in true])

    def show(self, example: LabelledText) -> tuple[str, str]:
        """As above."""
        return "\t".join(filter(None, (example.text, example.second))), ",".join(example.labels)

    def describe(self, splits: Splits[LabelledText]) -> str:
        """As above."""
        train, valid = list(splits.train), list(splits.valid)
        counts = Counter(label for example in train for label in example.labels)
        balance = ", ".join(f"{label} {count / len(train):.0%}" for label, count in counts.most_common(10))
        more = f" and {len(counts) - 10} more" if len(counts) > 10 else ""
        return (
            f"{len(train):,} texts to learn from, {len(valid):,} to validate on; {len(counts)} classes: {balance}{more}"
        )


def _texts(line: str) -> Texts:
    first, tab, second = line.partition("\t")
    return (first, second) if tab else (line, None)
