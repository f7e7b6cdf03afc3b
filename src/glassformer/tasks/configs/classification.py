"""Data and config of classification."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from glassformer.base.fields import Checked
from glassformer.data.corpora.interface_labels import LABELED_CORPORA, open_labeled_corpus
from glassformer.data.readers.records import Examples, OnBad, Record, RecordReader, as_text
from glassformer.data.readers.splits import split_examples
from glassformer.models import ModelConfig
from glassformer.tasks.configs.shared import EncoderConfig, Splits, check_corpus
from glassformer.tasks.configs.small_models import small_encoder
from glassformer.training.train_config import TrainConfig


class LabelledText(NamedTuple):
    """A text, or two, and its labels: one, or with `multi_label` any number."""

    text: str
    labels: tuple[str, ...]
    second: str | None = None
    where: str = ""
    """File and line it was read from."""


@dataclass(frozen=True, kw_only=True)
class LabelledData(Checked):
    """Where labelled texts come from."""

    data: tuple[Path, ...] = ()
    """Files with labelled texts: .tsv or .csv with a header, or .jsonl (.gz too)."""
    valid: tuple[Path, ...] = ()
    """Files for validation; without them, one text in twenty-five of the training data is kept for it."""
    text_column: str = "text"
    """Column of the texts."""
    second_column: str = ""
    """Column of a second text, to classify pairs of texts."""
    label_column: str = "label"
    """Column of the labels."""
    multi_label: bool = False
    """Allow any number of labels per text: a list in .jsonl, separated by commas in .tsv and .csv."""
    on_bad: OnBad = "error"
    """What to do with a bad record: stop with its file and line (error), or count and skip it (skip)."""
    corpus: str = ""
    """Use a named corpus instead of files: interface-languages or interface-components."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_corpus(self, LABELED_CORPORA)

    def splits(self) -> Splits[LabelledText]:
        """To learn from, and to validate on; to test with where it is a corpus."""
        if self.corpus:
            corpus = open_labeled_corpus(self.corpus)
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
