"""Answer questions about a text with a trained encoder-decoder, which generates the answer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from typing_extensions import override

from glassformer.decoding import GenerationConfig
from glassformer.models import EncoderDecoderModel
from glassformer.pipelines.examples import THEREFORE, Question, as_source
from glassformer.pipelines.pipeline import LineAnswer, LineRequest, Pair, answer_of, check_text, check_texts, each_pair
from glassformer.pipelines.pretrained_base import AnyTokenizer
from glassformer.pipelines.seq2seq_pipeline import Seq2SeqPipeline

if TYPE_CHECKING:  # `glassformer run` imports no metrics
    from glassformer.metrics.scores import Scores


class ReasonedAnswer(NamedTuple):
    """An answer, and the sentences that the model quoted as evidence ("" for a model that does not quote)."""

    evidence: str
    answer: str


def read_reasoned_answer(written: str) -> ReasonedAnswer:
    """Split the output of a model that writes its evidence first and its answer on the next line.

    An output without a line break is all evidence, with an empty answer.
    """
    evidence, _, answer = written.partition(THEREFORE.strip(" "))
    return ReasonedAnswer(evidence.strip(), answer.strip())


class Answerer(Seq2SeqPipeline[Question]):
    """An encoder-decoder that generates the answer to a question about a text, the context.

    `quotes` means that the model writes its evidence before its answer. `number_sentences` and `last_sentences` say how
    `as_source` prepares the context; they must have the same values as in training.
    """

    task, kept = "answering", "last"
    search = GenerationConfig(max_new_tokens=64)

    def __init__(
        self,
        model: EncoderDecoderModel,
        source_tokenizer: AnyTokenizer,
        target_tokenizer: AnyTokenizer,
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
        """Return the answer to one question about a context; "" if the model generates no answer."""
        return self.answers((check_text(question, "question"), check_text(context, "context")))

    @overload
    def answers(self, asked: Pair, *, beam: int | None = None) -> str: ...
    @overload
    def answers(self, asked: list[Pair], *, beam: int | None = None) -> list[str]: ...
    def answers(self, asked: Pair | list[Pair], *, beam: int | None = None) -> str | list[str]:
        """Return the answer to a (question, context) tuple, or the list of answers to a list of such tuples."""
        return each_pair(asked, lambda several: [one.answer for one in self.reason(several, beam=beam)], "asked")

    @overload
    def reason(self, asked: Pair, *, beam: int | None = None) -> ReasonedAnswer: ...
    @overload
    def reason(self, asked: list[Pair], *, beam: int | None = None) -> list[ReasonedAnswer]: ...
    def reason(self, asked: Pair | list[Pair], *, beam: int | None = None) -> ReasonedAnswer | list[ReasonedAnswer]:
        """Answer as `answers` does, but return each answer together with its evidence."""

        def reason(several: list[Pair]) -> list[ReasonedAnswer]:
            return [self._reasoned(text) for text in self.write(self._sources(several), beam=beam)]

        return each_pair(asked, reason, "asked")

    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Return the answer to each line, which is a question, a tab and a context."""
        lines = check_texts(lines, "lines")
        with_text = [index for index, line in enumerate(lines) if line.strip()]
        sources = self._sources([as_asked(lines[index]) for index in with_text])
        found = self.candidates(sources, request.generation, with_scores=request.with_scores)
        candidates = dict(zip(with_text, found, strict=True))
        return [answer_of(candidates.get(index, []), request, self._described, "answer") for index in range(len(lines))]

    @override
    def encode_source(self, text: str) -> list[int]:
        """Return the token ids of a line, a question, a tab and a context, as the model reads them."""
        return self.source_tokenizer.encode(self._sources([as_asked(text)])[0])

    def _sources(self, asked: Sequence[Pair]) -> list[str]:
        return [as_source(*one, **self._layout) for one in asked]

    def _reasoned(self, written: str) -> ReasonedAnswer:
        return read_reasoned_answer(written) if self._quotes else ReasonedAnswer("", written)

    def _described(self, written: str) -> dict[str, Any]:
        reasoned = self._reasoned(written)
        return {"answer": reasoned.answer, "evidence": reasoned.evidence} if self._quotes else {"answer": written}

    def score(self, examples: Sequence[Question]) -> "Scores":
        """Generate an answer to each question and return exact match and F1, as SQuAD defines them."""
        from glassformer.metrics.exact_match import score_answers

        found = self.answers([(example.question, example.context) for example in examples])
        return score_answers(found, [example.answers for example in examples])


def as_asked(line: str) -> tuple[str, str]:
    """Split a line at its first tab into a question and a context. Raise ValueError if either is missing."""
    question, tab, context = line.partition("\t")
    if not tab or not question.strip() or not context.strip():
        raise ValueError(f"{line[:60]!r} is not a question about a text: expected a question, a tab and a text")
    return question, context
