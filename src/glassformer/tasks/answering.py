"""Answering in the model's own words: a question and a text in, an answer out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, overload

from glassformer.data.made_stories import made_stories
from glassformer.data.records import OnBad, Record, RecordReader, as_text
from glassformer.data.splits import split_examples
from glassformer.decoding import GenerationConfig
from glassformer.metrics.answers import score_answers
from glassformer.metrics.scores import Scores
from glassformer.models import EncoderDecoderModel, ModelConfig
from glassformer.tasks.pipeline import LineAnswer, Pair, Request, answer_of, check_text, each_pair
from glassformer.tasks.rewriter import Rewriter
from glassformer.tasks.rewriting import RewritingTask, small_encoder_decoder
from glassformer.tasks.task import Splits, TaskConfig
from glassformer.text.sentences import split_sentences
from glassformer.text.tokenizer import Tokenizer, TokenizerConfig
from glassformer.training.config import TrainConfig

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
class QuestionData:
    """Where questions, texts and answers come from."""

    data: tuple[Path, ...] = ()
    """JSONL, TSV or CSV with a question, a context and an answer; .gz too. In JSONL the answer may be a list, of which
    any is right and the first is learned; an empty list says that there is no answer."""
    valid: tuple[Path, ...] = ()
    """For validation. Without it, a twenty-fifth of the data, chosen by a hash of the contexts."""
    question_column: str = "question"
    context_column: str = "context"
    answer_column: str = "answer"
    evidence_column: str = ""
    """Sentences of the context that the answer follows from. A model that learns from them quotes first and answers
    then: it can be seen what an answer stands on, and a hard question becomes several easy ones. Both together must fit
    into the model's max_len."""
    number_sentences: bool = False
    """Number the sentences of a context from its end, so that the last one is 1: what happened later is then told by
    a word, not only by a position."""
    last_sentences: int = 0
    """Read only this many sentences at the end of a context; 0 reads all."""
    on_bad: OnBad = "error"
    """What to do with a bad record: stop and name its file and line, or count and skip it."""
    corpus: str = ""
    """made-stories, instead of files: people move about and carry things."""

    def __post_init__(self) -> None:
        if self.corpus not in ("", CORPUS):
            raise ValueError(f"unknown corpus {self.corpus!r}: expected {CORPUS}")
        if self.corpus and self.evidence_column:
            raise ValueError(f"evidence_column={self.evidence_column!r}: {self.corpus} has none, expected no column")
        if self.last_sentences < 0:
            raise ValueError(f"last_sentences={self.last_sentences}: expected 0 or more")

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


class Reasoned(NamedTuple):
    """An answer, and what it follows from."""

    evidence: str
    answer: str


def as_reasoned(written: str) -> Reasoned:
    """What a model wrote that quotes before it answers; one that never came to its answer has none."""
    evidence, _, answer = written.partition(THEREFORE.strip(" "))
    return Reasoned(evidence.strip(), answer.strip())


class Answerer(Rewriter[Question]):
    """A trained model with its tokenizers: a question and a text in, an answer out."""

    task, kept = "answering", "last"
    search = GenerationConfig(max_new_tokens=64)

    def __init__(
        self,
        model: EncoderDecoderModel,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        generation: GenerationConfig | None = None,
        *,
        quotes: bool = False,
        number_sentences: bool = False,
        last_sentences: int = 0,
    ):
        if generation is None and quotes:
            generation = replace(self.search, max_new_tokens=256)
        layout: dict[str, Any] = {"number_sentences": number_sentences, "last_sentences": last_sentences}
        super().__init__(model, source_tokenizer, target_tokenizer, generation, quotes=quotes, **layout)
        self._quotes = quotes
        self._layout = layout

    def answer(self, question: str, context: str) -> str:
        """The answer; empty where the model finds none."""
        return self.answers((check_text(question, "question"), check_text(context, "context")))

    @overload
    def answers(self, asked: Pair, *, beam: int | None = None) -> str: ...
    @overload
    def answers(self, asked: list[Pair], *, beam: int | None = None) -> list[str]: ...
    def answers(self, asked: Pair | list[Pair], *, beam: int | None = None) -> str | list[str]:
        """Answer one (question, context), or each of a list in the same order."""
        return each_pair(asked, lambda several: [one.answer for one in self.reason(several, beam=beam)], "asked")

    @overload
    def reason(self, asked: Pair, *, beam: int | None = None) -> Reasoned: ...
    @overload
    def reason(self, asked: list[Pair], *, beam: int | None = None) -> list[Reasoned]: ...
    def reason(self, asked: Pair | list[Pair], *, beam: int | None = None) -> Reasoned | list[Reasoned]:
        """The same with the evidence for each, where the model has learned to quote it."""

        def reason(several: list[Pair]) -> list[Reasoned]:
            return [self._reasoned(text) for text in self.write(self._sources(several), beam=beam)]

        return each_pair(asked, reason, "asked")

    def answer_lines(self, lines: Sequence[str], request: Request) -> list[LineAnswer]:
        """The answer to each line: a question, a tab and a text."""
        told = [index for index, line in enumerate(lines) if line.strip()]
        sources = self._sources([as_asked(lines[index]) for index in told])
        found = self.candidates(sources, request.generation, with_scores=request.with_scores)
        candidates = dict(zip(told, found, strict=True))
        return [answer_of(candidates.get(index, []), request, self._described, "answer") for index in range(len(lines))]

    def _sources(self, asked: Sequence[Pair]) -> list[str]:
        return [as_source(*one, **self._layout) for one in asked]

    def _reasoned(self, written: str) -> Reasoned:
        return as_reasoned(written) if self._quotes else Reasoned("", written)

    def _described(self, written: str) -> dict[str, Any]:
        reasoned = self._reasoned(written)
        return {"answer": reasoned.answer, "evidence": reasoned.evidence} if self._quotes else {"answer": written}

    def score(self, examples: Sequence[Question]) -> Scores:
        """Exact match and F1, as SQuAD counts them."""
        found = self.answers([(example.question, example.context) for example in examples])
        return score_answers(found, [example.answers for example in examples])


def as_asked(line: str) -> tuple[str, str]:
    """A question and a text, from a line."""
    question, tab, context = line.partition("\t")
    if not tab or not question.strip() or not context.strip():
        raise ValueError(f"{line[:60]!r} is no question about a text: expected a question, a tab and a text")
    return question, context


class Answering(RewritingTask[Question]):
    """Questions about texts to what answers them."""

    name, title = "answering", "An answerer"
    Config, Data, Tool = AnsweringConfig, QuestionData, Answerer
    cuts_long = True

    def show(self, example: Question) -> tuple[str, str]:
        """As above."""
        return f"{example.question}\t{' '.join(example.context.split())}", example.answer

    def settings(self) -> Mapping[str, Any]:
        """As above."""
        data: QuestionData = self.config.data
        return {**data.layout, "quotes": bool(data.evidence_column)}

    @classmethod
    def demo(cls) -> AnsweringConfig:
        """Made stories, by a small model."""
        return AnsweringConfig(
            data=QuestionData(corpus=CORPUS),
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

    def baseline(self, splits: Splits[Question]) -> tuple[str, Scores]:
        """As above."""
        commonest = Counter(example.answer for example in splits.train).most_common(1)[0][0]
        asked = list(splits.test) or list(splits.valid)
        scores = score_answers([commonest] * len(asked), [example.answers for example in asked])
        return f"always the commonest answer ({commonest or 'none'!r})", scores
