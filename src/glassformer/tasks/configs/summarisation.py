"""Data and config of summarisation."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from glassformer.base.fields import Checked, Whole
from glassformer.data.corpora.docstrings import docstrings
from glassformer.data.readers.records import OnBad, Record, RecordReader, as_text
from glassformer.data.readers.splits import split_examples
from glassformer.metrics.rouge import best_sentence
from glassformer.models import ModelConfig
from glassformer.tasks.configs.shared import Splits, TaskConfig, check_corpus
from glassformer.tasks.configs.small_models import small_encoder_decoder
from glassformer.text.sentences import split_sentences
from glassformer.training.train_config import TrainConfig

CORPUS = "docstrings"


ASKED_BY = 3
"""The first words of a sentence by which a copy of it is asked for."""


class Summary(NamedTuple):
    """A text, what is learned to write of it, and its summaries."""

    source: str
    target: str
    references: tuple[str, ...]
    """Any of them is good."""
    sentences: tuple[str, ...]
    """The text's own."""


@dataclass(frozen=True, kw_only=True)
class SummaryData(Checked):
    """Where texts and summaries come from."""

    data: tuple[Path, ...] = ()
    """Files with texts and their summaries: .jsonl, .tsv or .csv (.gz too); in .jsonl a text may be a list of sentences
    and a summary a list of alternatives."""
    valid: tuple[Path, ...] = ()
    """Files for validation; without them, one text in twenty-five of the training data is kept for it."""
    source_column: str = "source"
    """Column of the texts."""
    target_column: str = "target"
    """Column of the summaries."""
    best_sentence: bool = False
    """Learn the sentence of the text that shares most with its summary instead of the summary, for small corpora."""
    copy_sentences: Whole = 0
    """Extra training pairs per text: the model is asked for a sentence by its first words and learns to copy it."""
    on_bad: OnBad = "error"
    """What to do with a bad record: stop with its file and line (error), or count and skip it (skip)."""
    corpus: str = ""
    """Use a named corpus instead of files: docstrings, those of Python's standard library."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_corpus(self, [CORPUS])

    def splits(self) -> Splits[Summary]:
        """To learn from, to validate on, and of the docstrings to test with."""
        if not self.corpus and self.valid:
            return Splits(LearnedPairs(self._read(self.data), self), self._read(self.valid))
        known = self._known() if self.corpus else self._read(self.data)
        sides = split_examples(known, lambda example: example.source, test=0.04 if self.corpus else 0.0)
        return Splits(LearnedPairs(sides["train"], self), sides["valid"], sides["test"])

    def examples(self) -> list[Summary]:
        """Everything in `data`; of a corpus what is kept for testing."""
        return list(self.splits().test if self.corpus else self._read(self.data))

    def _known(self) -> list[Summary]:
        return [_summary(split_sentences(one.source), one.source, (one.summary,)) for one in docstrings()]

    def _read(self, paths: tuple[Path, ...]) -> RecordReader[Summary]:
        if not paths:
            raise ValueError("no data: expected at least one .jsonl, .tsv or .csv file, or a corpus")
        return RecordReader(paths, [self.source_column, self.target_column], self._example, self.on_bad)

    def _example(self, record: Record) -> Summary:
        source, target = record.cells
        summaries = tuple(_texts(target, self.target_column))
        if isinstance(source, list):
            sentences = _texts(source, self.source_column)
            return _summary(sentences, " ".join(sentences), summaries)
        text = " ".join(as_text(source, self.source_column).split())
        return _summary(split_sentences(text), text, summaries)


@dataclass(frozen=True)
class LearnedPairs:
    """What is learned of some texts: each of their summaries, or their best sentence; and copies, where asked for."""

    examples: Iterable[Summary]
    data: SummaryData

    @property
    def skipped(self) -> Counter[str]:
        """Bad records of the last pass."""
        return Counter(getattr(self.examples, "skipped", ()))

    def __iter__(self) -> Iterator[Summary]:
        for example in self.examples:
            for reference in example.references:
                target = best_sentence(example.sentences, reference) if self.data.best_sentence else reference
                yield example._replace(target=target)
            yield from copies(example, self.data.copy_sentences)


def copies(example: Summary, count: int) -> Iterator[Summary]:
    """Pairs whose target is a sentence of the text, and whose source is its first words, and the text's sentences in
    another order: what is asked for must be found, wherever it stands. In every other pair the words of all sentences
    are in another order too: nothing that is known of the language helps to write those, so they must be copied. The
    same text gives the same pairs."""
    random = Random(example.source)
    for number in range(count):
        sentences = random.sample(example.sentences, len(example.sentences))
        if number % 2:
            sentences = [" ".join(random.sample(words, len(words))) for words in map(str.split, sentences)]
        target = random.choice(sentences)
        asked = " ".join(target.split()[:ASKED_BY])
        yield example._replace(source=f"{asked}\n {' '.join(sentences)}", target=target)


def _summary(sentences: Sequence[str], source: str, references: tuple[str, ...]) -> Summary:
    return Summary(source, references[0], references, tuple(sentences))


def _texts(cell: object, column: str) -> list[str]:
    """A cell that holds a text, or a list of them; what is blank in a list is passed over."""
    texts = [text for text in cell if text != "" and not str(text).isspace()] if isinstance(cell, list) else [cell]
    if not texts:
        raise ValueError(f"empty {column}")
    return [" ".join(as_text(text, column).split()) for text in texts]


@dataclass(frozen=True, kw_only=True)
class SummarisationConfig(TaskConfig):
    """A whole recipe."""

    data: SummaryData = field(default_factory=SummaryData)
    model: ModelConfig = field(default_factory=lambda: small_encoder_decoder(max_len=512, positions="rotary"))
    """Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(lr=1e-3, warmup=1000, schedule="linear", max_tokens=8192)
    )
