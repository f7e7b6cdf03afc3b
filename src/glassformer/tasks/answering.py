"""Answering in the model's own words: a question and a text in, an answer out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, overload

from glassformer.decoding import GenerationConfig
from glassformer.metrics.exact_match import score_answers
from glassformer.metrics.scores import Scores
from glassformer.models import EncoderDecoderModel
from glassformer.tasks.configs.questions import (
    CORPUS,
    THEREFORE,
    AnsweringConfig,
    Question,
    QuestionData,
    as_source,
)
from glassformer.tasks.configs.shared import Splits
from glassformer.tasks.configs.small_models import small_encoder_decoder
from glassformer.tasks.pipeline import LineAnswer, Pair, Request, answer_of, check_text, each_pair
from glassformer.tasks.rewriter import Rewriter
from glassformer.tasks.rewriting import RewritingTask
from glassformer.text.tokenizer import Tokenizer
from glassformer.training.train_config import TrainConfig


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
    unit, sample_line = "questions", "Where is Anna?\tAnna is in the garden."
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
