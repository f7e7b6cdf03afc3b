"""Answering: train an encoder-decoder to write the answer to a question about a text.

`extraction` instead selects words of the text as the answer.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from glassformer.base.fields import Whole
from glassformer.data.corpora.synthetic_stories import generate_stories
from glassformer.data.readers.records import Record, RecordReader, as_text
from glassformer.metrics.exact_match import score_answers
from glassformer.metrics.scores import Scores
from glassformer.models import ModelConfig
from glassformer.pipelines.examples import Question, as_source
from glassformer.tasks.configs.shared import FileData, Splits, TaskConfig
from glassformer.tasks.configs.small_models import small_encoder_decoder
from glassformer.tasks.seq2seq_task import Seq2SeqTask
from glassformer.training.train_config import TrainConfig

N_GENERATED = {"train": 8000, "valid": 500, "test": 1000}
"""Number of generated questions in each split of the corpus made-stories."""


@dataclass(frozen=True, kw_only=True)
class QuestionData(FileData[Question]):
    """Options that choose the data for answering: questions about texts, with answers."""

    CORPORA = ("made-stories",)
    NO_FILES = "no data: expected at least one .jsonl, .tsv or .csv file, or a corpus"

    data: tuple[Path, ...] = ()
    """Files with questions, contexts and answers: .jsonl, .tsv or .csv (.gz too); in .jsonl an answer may be a list of
    alternatives, and an empty list says that there is none."""
    valid: tuple[Path, ...] = ()
    """Files for validation; without them, one context in 25 of the training data is held out, with its questions."""
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
    language: str = ""
    """Language of the texts, for a pretrained model that marks texts with codes of languages (mBART, NLLB, M2M100): a
    code such as de_DE, or its first part if that is unique."""
    corpus: str = ""
    """Use a named corpus instead of files: made-stories, in which people move about and carry things."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.corpus and self.evidence_column:
            raise ValueError(f"evidence_column={self.evidence_column!r}: {self.corpus} has none, expected no column")

    @property
    def layout(self) -> dict[str, Any]:
        """Keyword arguments of `as_source`, which joins a question and its context into one source text."""
        return {"number_sentences": self.number_sentences, "last_sentences": self.last_sentences}

    @override
    def corpus_splits(self) -> Splits[Question]:
        return Splits(*(self._generated(side) for side in N_GENERATED))

    @override
    def examples(self) -> list[Question]:
        """Return all examples of the `data` files, or the test split of a corpus, for `eval`.

        The `evidence_column` may be missing in the files: scoring does not need the evidence and does not read it.
        """
        return super().examples() if not self.evidence_column else replace(self, evidence_column="").examples()

    @override
    def split_key(self, example: Question) -> str:
        return example.context

    @override
    def read(self, paths: tuple[Path, ...]) -> Iterable[Question]:
        columns = [self.question_column, self.context_column, self.answer_column]
        columns += [self.evidence_column] * bool(self.evidence_column)
        return RecordReader(paths, columns, self._example, self.on_bad)

    def _generated(self, side: str) -> list[Question]:
        stories = generate_stories(N_GENERATED[side], seed=list(N_GENERATED).index(side))
        return [
            self._question(story.question, story.context, (story.answer,) * bool(story.answer)) for story in stories
        ]

    def _example(self, record: Record) -> Question:
        question, context, answer, *more = record.cells
        evidence = as_text(more[0], self.evidence_column) if more else ""
        answers = as_answers(answer, self.answer_column)
        made = self._question(as_text(question, self.question_column), as_text(context, self.context_column), answers)
        return made._replace(evidence=" ".join(evidence.split()))

    def _question(self, question: str, context: str, answers: tuple[str, ...]) -> Question:
        return Question(question, context, answers, as_source(question, context, **self.layout))


def as_answers(cell: object, column: str) -> tuple[str, ...]:
    """Return the answers in a cell of the column `column`, which holds one answer or a list of alternatives."""
    if isinstance(cell, list):
        return tuple(as_text(answer, column) for answer in cell)
    if isinstance(cell, str) and not cell.strip():
        raise ValueError(f"empty {column}: expected a text, or an empty list where there is no answer")
    return (as_text(str(cell) if isinstance(cell, int) else cell, column),)


@dataclass(frozen=True, kw_only=True)
class AnsweringConfig(TaskConfig):
    """The complete config of training an encoder-decoder to answer questions."""

    FIRST_OPTIONS = ("data", "valid", "question_column", "context_column", "answer_column")

    data: QuestionData = field(default_factory=QuestionData)
    model: ModelConfig = field(default_factory=lambda: small_encoder_decoder(max_len=512, positions="rotary"))
    """The architecture of a new model. Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(lr=1e-3, warmup=400, schedule="linear", label_smoothing=0.0)
    )


class Answering(Seq2SeqTask[Question]):
    """Train an encoder-decoder to answer questions about texts."""

    name, title = "answering", "An answerer"
    unit, sample_line = "questions", "Where is Anna?\tAnna is in the garden."
    Config = AnsweringConfig
    cuts_long = True

    @override
    def show(self, example: Question) -> tuple[str, str]:
        return f"{example.question}\t{' '.join(example.context.split())}", example.answer

    @override
    def settings(self) -> Mapping[str, Any]:
        data: QuestionData = self.config.data
        return {**data.layout, "quotes": bool(data.evidence_column)}

    @override
    @classmethod
    def demo(cls) -> AnsweringConfig:
        """Return the config of a small model that is trained on generated stories."""
        return AnsweringConfig(
            data=QuestionData(corpus="made-stories"),
            model=small_encoder_decoder(
                vocab_size=1000,
                n_encoder_layers=3,
                n_decoder_layers=2,
                d_model=64,
                d_ff=128,
                init="normal",
                init_std=0.125,
                dropout=0.0,
                embedding_dropout=0.0,
                positions="rotary",
            ),
            train=TrainConfig(
                minutes=2.3,
                lr=2e-3,
                warmup=100,
                schedule="linear",
                label_smoothing=0.0,
                max_tokens=1024,
                eval_every=500,
            ),
        )

    @override
    def baseline(self, splits: Splits[Question]) -> tuple[str, Scores]:
        most_common = Counter(example.answer for example in splits.train).most_common(1)[0][0]
        asked = list(splits.test) or list(splits.valid)
        scores = score_answers([most_common] * len(asked), [example.answers for example in asked])
        return f"always the most frequent answer ({most_common or 'none'!r})", scores
