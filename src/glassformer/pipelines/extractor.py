"""Extract the answer to a question from a text: an encoder scores where the answer starts and ends."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

import torch
from torch import Tensor

from glassformer.data.readers.answer_spans import SpanQuestion
from glassformer.models import EncoderModel
from glassformer.pipelines.answerer import as_asked
from glassformer.pipelines.encoder_pipeline import EncoderPipeline, Reader
from glassformer.pipelines.pipeline import (
    LineAnswer,
    LineRequest,
    Pair,
    answer_lines_with_text,
    as_json_number,
    check_text,
    each_pair,
)
from glassformer.text.encoded import Encoded
from glassformer.text.text_windows import windows

if TYPE_CHECKING:  # `glassformer run` imports no metrics
    from glassformer.metrics.scores import Scores


class FoundAnswer(NamedTuple):
    """An answer that was found in a context, or no answer, which has an empty `text`.

    `score` is the score of the best span minus the score of "no answer".
    """

    text: str
    start: int
    """Index of the answer's first character in the context; -1 if there is no answer."""
    score: float


class Extractor(EncoderPipeline[SpanQuestion]):
    """An encoder that finds the answer to a question as a span of a text, the context.

    Neighboring windows of a long context share `overlap` tokens. An answer has at most `longest_answer` tokens.
    """

    task, head = "extraction", "span"

    def __init__(self, model: EncoderModel, reader: Reader, *, abstains: bool, overlap: int, longest_answer: int):
        super().__init__(model, reader, abstains=abstains, overlap=overlap, longest_answer=longest_answer)
        self.abstains = abstains
        """Whether the model may return no answer. True if the training data had unanswerable questions."""
        self.overlap, self.longest_answer = overlap, longest_answer

    def windows(self, asked: Sequence[tuple[str, str]]) -> list[list[Encoded]]:
        """Tokenize each (question, context) tuple, and split a context that is too long into overlapping windows.

        Returns a list of windows for each tuple. Each window is a model input and contains the question, of which at
        most half a window is kept.
        """
        return self._windows(asked)[0]

    def _windows(self, asked: Sequence[tuple[str, str]]) -> tuple[list[list[Encoded]], int]:
        """Return what `windows` returns, and the number of questions that were cut."""
        limit, found, n_cut = self.model.config.max_len, [], 0
        for read in self.reader.read(list(asked)):
            found.append(windows(read, limit, self.overlap))
            n_cut += found[-1][0].sources.count(0) < read.sources.count(0)
        return found, n_cut

    @overload
    def find(self, asked: Pair) -> FoundAnswer: ...
    @overload
    def find(self, asked: list[Pair]) -> list[FoundAnswer]: ...
    def find(self, asked: Pair | list[Pair]) -> FoundAnswer | list[FoundAnswer]:
        """Return the answer to a (question, context) tuple, or the list of answers to a list of such tuples.

        The answer is the valid span with the highest score in all windows of the context. If `abstains` is True and "no
        answer" has at least that score, the `text` of the result is empty.
        """
        return each_pair(asked, self._find, "asked")

    def _find(self, asked: list[Pair]) -> list[FoundAnswer]:
        read, n_cut = self._windows(asked)
        self.count_truncated(n_cut, len(asked), self.model.config.max_len)
        scores = iter(self.answers([window for several in read for window in several]))
        found = []
        for (_, context), several in zip(asked, read, strict=True):
            best, nothing = (float("-inf"), 0, 0), float("inf")
            for window in several:
                own = next(scores)
                best = max(best, best_span(own, window, self.longest_answer))
                nothing = min(nothing, float(own[0].sum()))  # no answer only if every window says so
            score, start, end = best
            is_there = end > start and (not self.abstains or score > nothing)
            text = context[start:end] if is_there else ""
            start += len(text) - len(text.lstrip())  # a token may include the space before it
            found.append(FoundAnswer(text.strip(), start if is_there else -1, score - nothing))
        return found

    def answer(self, question: str, context: str) -> str:
        """Return the part of the context that answers the question; "" if the model finds no answer."""
        return self.find((check_text(question, "question"), check_text(context, "context"))).text

    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Return the answer to each line, which is a question, a tab and a context."""
        return answer_lines_with_text(lines, LineAnswer("", {"answer": ""}), self._find_lines)

    def _find_lines(self, lines: list[str]) -> list[LineAnswer]:
        answers = []
        for found in self._find([as_asked(line) for line in lines]):
            # Places count from the first character after the tab.
            place = {"start": found.start, "end": found.start + len(found.text)} if found.start >= 0 else {}
            record = {"answer": found.text, **place, "score": as_json_number(found.score)}
            answers.append(LineAnswer(found.text, record, (found.text,), (found.score,)))
        return answers

    def score(self, examples: Sequence[SpanQuestion]) -> "Scores":
        """Find an answer to each question and return exact match and F1, as SQuAD defines them."""
        from glassformer.metrics.exact_match import score_answers

        found = self.find([(example.question, example.context) for example in examples])
        return score_answers([one.text for one in found], [example.answers for example in examples])


def best_span(scores: Tensor, window: Encoded, longest: int) -> tuple[float, int, int]:
    """Return the score of the best span of at most `longest` tokens, and the character indices of its start and end.

    `scores` (T, 2) holds the start score and the end score of each token of the window. The span consists of tokens of
    the context only. If the window has none, the score is -inf.
    """
    inside = torch.tensor([source == 1 for source in window.sources])
    if not inside.any():
        return float("-inf"), 0, 0
    begin, end = scores.masked_fill(~inside[:, None], float("-inf")).unbind(-1)
    legal = torch.ones(len(window), len(window), dtype=torch.bool).triu().tril(longest - 1)
    both = (begin[:, None] + end[None, :]).masked_fill(~legal, float("-inf"))  # (T, T)
    first, last = divmod(int(both.argmax()), len(window))
    return float(both[first, last]), window.spans[first][0], window.spans[last][1]


def span_places(window: Encoded, start: int, end: int) -> tuple[int, int]:
    """Return the positions, in the window, of the first and the last token of the context's characters `start:end`.

    If the window does not contain all of these characters, return (0, 0): the first token, which stands for "no
    answer".
    """
    touched = [
        place
        for place, (span, source) in enumerate(zip(window.spans, window.sources, strict=True))
        if source == 1 and span[0] < end and span[1] > start
    ]
    if not touched or window.spans[touched[0]][0] > start or window.spans[touched[-1]][1] < end:
        return 0, 0
    return touched[0], touched[-1]
