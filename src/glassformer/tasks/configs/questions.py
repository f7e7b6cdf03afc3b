"""Data and configs of answering and extraction: questions about texts."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from glassformer.base.fields import Checked, Count, Whole
from glassformer.data.corpora.synthetic_stories import made_stories
from glassformer.data.readers.answer_spans import SpanQuestion, SpanReader
from glassformer.data.readers.records import OnBad, Record, RecordReader, as_text
from glassformer.data.readers.splits import split_examples
from glassformer.models import ModelConfig
from glassformer.tasks.configs.shared import EncoderConfig, Splits, TaskConfig, check_corpus
from glassformer.tasks.configs.small_models import small_encoder, small_encoder_decoder
from glassformer.text.sentences import split_sentences
from glassformer.text.tokenizer import TokenizerConfig
from glassformer.training.train_config import TrainConfig

CORPUS = "made-stories"


THEREFORE = "\n "
"""Between the evidence and the answer. The space makes the answer's first word the same token as elsewhere."""


N_MADE = {"train": 8000, "valid": 500, "test": 1000}


class Question(NamedTuple):
    """A question about a text, its answers, and what the model reads of them."""

    question: str
    context: str
    answers: tuple[str, ...]
    """Any of them is right; none where the text does not answer it."""
    source: str
    evidence: str = ""
    """What the answer follows from, where that is to be learned too."""

    @property
    def answer(self) -> str:
        """The first answer, or nothing."""
        return self.answers[0] if self.answers else ""

    @property
    def target(self) -> str:
        """What is learned: the answer, and before it the evidence, if any."""
        return f"{self.evidence}{THEREFORE}{self.answer}" if self.evidence else self.answer


@dataclass(frozen=True, kw_only=True)
class QuestionData(Checked):
    """Where questions, texts and answers come from."""

    data: tuple[Path, ...] = ()
    """Files with questions, contexts and answers: .jsonl, .tsv or .csv (.gz too); in .jsonl an answer may be a list of
    alternatives, and an empty list says that there is none."""
    valid: tuple[Path, ...] = ()
    """Files for validation; without them, one context in twenty-five of the training data is kept for it."""
    question_column: str = "question"
    """Column of the questions."""
    context_column: str = "context"
    """Column of the texts that the questions are about."""
    answer_column: str = "answer"
    """Column of the answers."""
    evidence_column: str = ""
    """Column of the sentences that the answer follows from; the model then learns to quote them before it answers."""
    number_sentences: bool = False
    """Number the sentences of a context from its end, so that their order is part of the text."""
    last_sentences: Whole = 0
    """Read only this many sentences at the end of a context; 0 reads all."""
    on_bad: OnBad = "error"
    """What to do with a bad record: stop with its file and line (error), or count and skip it (skip)."""
    corpus: str = ""
    """Use a named corpus instead of files: made-stories, in which people move about and carry things."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_corpus(self, [CORPUS])
        if self.corpus and self.evidence_column:
            raise ValueError(f"evidence_column={self.evidence_column!r}: {self.corpus} has none, expected no column")

    @property
    def layout(self) -> dict[str, Any]:
        """How a question and a context become one text."""
        return {"number_sentences": self.number_sentences, "last_sentences": self.last_sentences}

    def splits(self) -> Splits[Question]:
        """To learn from, and to validate on."""
        if self.corpus:
            return Splits(*(self._made(side) for side in N_MADE))
        if self.valid:
            return Splits(self._read(self.data), self._read(self.valid))
        sides = split_examples(self._read(self.data), lambda example: example.context, test=0.0)
        return Splits(sides["train"], sides["valid"])

    def examples(self) -> list[Question]:
        """Everything in `data`; to score, no evidence is needed."""
        return self._made("test") if self.corpus else list(replace(self, evidence_column="")._read(self.data))

    def _made(self, side: str) -> list[Question]:
        stories = made_stories(N_MADE[side], seed=list(N_MADE).index(side))
        return [
            self._question(story.question, story.context, (story.answer,) * bool(story.answer)) for story in stories
        ]

    def _read(self, paths: tuple[Path, ...]) -> RecordReader[Question]:
        if not paths:
            raise ValueError("no data: expected at least one .jsonl, .tsv or .csv file, or a corpus")
        columns = [self.question_column, self.context_column, self.answer_column]
        columns += [self.evidence_column] * bool(self.evidence_column)
        return RecordReader(paths, columns, self._example, self.on_bad)

    def _example(self, record: Record) -> Question:
        question, context, answer, *more = record.cells
        evidence = as_text(more[0], self.evidence_column) if more else ""
        answers = as_answers(answer, self.answer_column)
        made = self._question(as_text(question, self.question_column), as_text(context, self.context_column), answers)
        return made._replace(evidence=" ".join(evidence.split()))

    def _question(self, question: str, context: str, answers: tuple[str, ...]) -> Question:
        return Question(question, context, answers, as_source(question, context, **self.layout))


def as_answers(cell: object, column: str) -> tuple[str, ...]:
    """A cell that holds an answer, or a list of them."""
    if isinstance(cell, list):
        return tuple(as_text(answer, column) for answer in cell)
    if isinstance(cell, str) and not cell.strip():
        raise ValueError(f"empty {column}: expected a text, or an empty list where there is no answer")
    return (as_text(str(cell) if isinstance(cell, int) else cell, column),)


def as_source(question: str, context: str, *, number_sentences: bool = False, last_sentences: int = 0) -> str:
    """What the model reads: the context, and on the next line the question.

    So what was told last is next to the question, as it so often should be.
    """
    if number_sentences or last_sentences:
        told = split_sentences(context)[-last_sentences:]
        first = len(told)
        context = " ".join(f"{first - place} {one}" if number_sentences else one for place, one in enumerate(told))
    # The space makes the question's first word the same token as elsewhere.
    return f"{' '.join(context.split())}\n {' '.join(question.split())}"


@dataclass(frozen=True, kw_only=True)
class AnsweringConfig(TaskConfig):
    """A whole recipe."""

    data: QuestionData = field(default_factory=QuestionData)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig = field(default_factory=lambda: small_encoder_decoder(max_len=512, positions="rotary"))
    """Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(lr=1e-3, warmup=400, schedule="linear", label_smoothing=0.0)
    )


@dataclass(frozen=True, kw_only=True)
class SpanData(Checked):
    """Where questions, texts and answers come from."""

    data: tuple[Path, ...] = ()
    """Files with questions, contexts and answers: SQuAD's .json, or .jsonl, .tsv or .csv (.gz too); in .jsonl an answer
    may be a list of alternatives, and an empty list says that there is none."""
    valid: tuple[Path, ...] = ()
    """Files for validation; without them, one context in twenty-five of the training data is kept for it."""
    question_column: str = "question"
    """Column of the questions."""
    context_column: str = "context"
    """Column of the texts that the questions are about."""
    answer_column: str = "answer"
    """Column of the answers: their words, or objects with `text` and `answer_start`."""
    on_bad: OnBad = "error"
    """What to do with a bad record: stop with its file and line (error), or count and skip it (skip)."""
    corpus: str = ""
    """Use a named corpus instead of files: made-stories, in which people move about and carry things."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_corpus(self, [CORPUS])

    def splits(self) -> Splits[SpanQuestion]:
        """To learn from, and to validate on."""
        if self.corpus:
            return Splits(*(_made(side) for side in N_MADE))
        if self.valid:
            return Splits(self._read(self.data), self._read(self.valid))
        sides = split_examples(self._read(self.data), lambda example: example.context, test=0.0)
        return Splits(sides["train"], sides["valid"])

    def examples(self) -> list[SpanQuestion]:
        """Everything in `data`."""
        return _made("test") if self.corpus else list(self._read(self.data))

    def _read(self, paths: tuple[Path, ...]) -> SpanReader:
        if not paths:
            raise ValueError("no data: expected at least one .json, .jsonl, .tsv or .csv file, or a corpus")
        return SpanReader(paths, (self.question_column, self.context_column, self.answer_column), self.on_bad)


def _made(side: str) -> list[SpanQuestion]:
    stories = made_stories(N_MADE[side], seed=list(N_MADE).index(side))
    return [
        SpanQuestion(one.question, one.context, (one.answer,), (one.start,))
        if one.answer
        else SpanQuestion(one.question, one.context, (), ())
        for one in stories
    ]


@dataclass(frozen=True, kw_only=True)
class ExtractionConfig(EncoderConfig):
    """A whole recipe."""

    data: SpanData = field(default_factory=SpanData)
    model: ModelConfig = field(
        default_factory=lambda: small_encoder(
            n_encoder_layers=4, max_len=384, positions="rotary", dropout=0.1, embedding_dropout=0.1
        )
    )
    """Of a model from scratch. Its vocab_size is the most tokens the tokenizer may learn."""
    overlap: Whole = 128
    """Tokens that two windows of a long text share."""
    longest_answer: Count = 30
    """Tokens of the longest answer."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            updates=3000, lr=1e-3, warmup=300, schedule="linear", label_smoothing=0.0, eval_every=500
        )
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train.label_smoothing:
            raise ValueError(f"label_smoothing={self.train.label_smoothing}: expected 0, for places in a text")
