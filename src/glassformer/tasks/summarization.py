"""Summarization: train an encoder-decoder to write a short summary of a text."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from typing_extensions import override

from glassformer.base.fields import Whole
from glassformer.data.corpora.docstrings import docstrings
from glassformer.data.readers.records import Record, RecordReader, as_text
from glassformer.data.readers.splits import split_examples
from glassformer.metrics.rouge import best_sentence, score_summaries
from glassformer.metrics.scores import Scores
from glassformer.models import ModelConfig
from glassformer.pipelines.examples import Summary
from glassformer.tasks.configs.shared import FileData, Splits, TaskConfig
from glassformer.tasks.configs.small_models import small_encoder_decoder
from glassformer.tasks.seq2seq_task import Seq2SeqTask
from glassformer.text.sentences import split_sentences
from glassformer.training.train_config import TrainConfig

PROMPT_WORDS = 3
"""Number of first words of a sentence that a copying pair of `copies` starts with."""


@dataclass(frozen=True, kw_only=True)
class SummaryData(FileData[Summary]):
    """Options that choose the data for summarization: pairs of a text and its summary, from files or a named corpus."""

    CORPORA = ("docstrings",)
    NO_FILES = "no data: expected at least one .jsonl, .tsv or .csv file, or a corpus"

    data: tuple[Path, ...] = ()
    """Files with texts and their summaries: .jsonl, .tsv or .csv (.gz too); in .jsonl a text may be a list of sentences
    and a summary a list of alternatives."""
    source_column: str = "source"
    """Column of the texts."""
    target_column: str = "target"
    """Column of the summaries."""
    best_sentence: bool = False
    """Learn the sentence of the text that shares most with its summary instead of the summary, for small corpora."""
    copy_sentences: Whole = 0
    """Extra training pairs per text: the model is asked for a sentence by its first words and learns to copy it."""
    language: str = ""
    """Language of the texts, for a pretrained model that marks texts with codes of languages (mBART, NLLB, M2M100): a
    code such as de_DE, or its first part if that is unique."""
    corpus: str = ""
    """Use a named corpus instead of files: docstrings, those of Python's standard library."""

    @override
    def splits(self) -> Splits[Summary]:
        """Return the splits of the data. The training split is a `TrainingPairs`."""
        found = super().splits()
        return found._replace(train=TrainingPairs(found.train, self))

    @override
    def corpus_splits(self) -> Splits[Summary]:
        known = [_summary(split_sentences(one.source), one.source, (one.summary,)) for one in docstrings()]
        sides = split_examples(known, self.split_key, test=0.04)
        return Splits(sides["train"], sides["valid"], sides["test"])

    @override
    def split_key(self, example: Summary) -> str:
        return example.source

    @override
    def read(self, paths: tuple[Path, ...]) -> Iterable[Summary]:
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
class TrainingPairs:
    """The training pairs for summarization, to iterate over.

    For each text there is one pair per reference summary, and `copy_sentences` pairs that teach copying (see `copies`).
    With `best_sentence`, the target of the former is not the summary, but the sentence of the text that has the highest
    ROUGE against the summary.
    """

    examples: Iterable[Summary]
    data: SummaryData

    @property
    def skipped(self) -> Counter[str]:
        """Number of bad records that the last pass over the files skipped, by problem."""
        return Counter(getattr(self.examples, "skipped", ()))

    def __iter__(self) -> Iterator[Summary]:
        for example in self.examples:
            for reference in example.references:
                target = best_sentence(example.sentences, reference) if self.data.best_sentence else reference
                yield example._replace(target=target)
            yield from copies(example, self.data.copy_sentences)


def copies(example: Summary, count: int) -> Iterator[Summary]:
    """Yield `count` training pairs that teach the model to copy a sentence of the text.

    The source is the sentence's first words and the text's sentences in random order, so that the model must find the
    sentence wherever it is. In every second pair the words of all sentences are shuffled too: knowledge of the language
    does not help there, so the words must be copied. The same text always gives the same pairs.
    """
    random = Random(example.source)
    for number in range(count):
        sentences = random.sample(example.sentences, len(example.sentences))
        if number % 2:
            sentences = [" ".join(random.sample(words, len(words))) for words in map(str.split, sentences)]
        target = random.choice(sentences)
        asked = " ".join(target.split()[:PROMPT_WORDS])
        yield example._replace(source=f"{asked}\n {' '.join(sentences)}", target=target)


def _summary(sentences: Sequence[str], source: str, references: tuple[str, ...]) -> Summary:
    return Summary(source, references[0], references, tuple(sentences))


def _texts(cell: object, column: str) -> list[str]:
    """Return the texts in a cell of the column `column`, which holds one text or a list.

    Blank entries of a list are left out. Raises ValueError if no text remains.
    """
    texts = [text for text in cell if text != "" and not str(text).isspace()] if isinstance(cell, list) else [cell]
    if not texts:
        raise ValueError(f"empty {column}")
    return [" ".join(as_text(text, column).split()) for text in texts]


@dataclass(frozen=True, kw_only=True)
class SummarizationConfig(TaskConfig):
    """The complete config of training a summarizer."""

    FIRST_OPTIONS = ("data", "valid", "source_column", "target_column")

    data: SummaryData = field(default_factory=SummaryData)
    model: ModelConfig = field(default_factory=lambda: small_encoder_decoder(max_len=512, positions="rotary"))
    """The architecture of a new model. Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(lr=1e-3, warmup=1000, schedule="linear", max_tokens=8192)
    )


class Summarization(Seq2SeqTask[Summary]):
    """Train an encoder-decoder to summarize texts."""

    name, title, unit = "summarization", "A summarizer", "texts"
    Config = SummarizationConfig
    cuts_long = True

    @override
    @classmethod
    def demo(cls) -> SummarizationConfig:
        """Return the config of a small model that is trained on the docstrings of Python's standard library."""
        return SummarizationConfig(
            data=SummaryData(corpus="docstrings"),
            model=small_encoder_decoder(
                vocab_size=2000,
                n_encoder_layers=2,
                n_decoder_layers=1,
                d_model=128,
                d_ff=256,
                max_len=64,
                init="normal",
                init_std=0.088,
                dropout=0.1,
                embedding_dropout=0.1,
            ),
            train=TrainConfig(minutes=2.2, lr=3e-3, warmup=100, schedule="linear", max_tokens=1024, eval_every=500),
        )

    @override
    def baseline(self, splits: Splits[Summary]) -> tuple[str, Scores]:
        return "the first sentence", lead(list(splits.test) or list(splits.valid), 1)


def lead(examples: Sequence[Summary], count: int) -> Scores:
    """Return the scores of the lead baseline, which takes the first `count` sentences of a text as its summary."""
    found = [" ".join(example.sentences[:count]) for example in examples]
    return score_summaries(found, [example.references for example in examples])
