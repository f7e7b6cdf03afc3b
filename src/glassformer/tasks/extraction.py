"""Answers that stand in the text: of a question and a text, where the answer begins and ends."""

from collections.abc import Sequence
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor, nn

from glassformer.data.batching.labeled_batches import LabeledBatch, LabeledRow
from glassformer.data.readers.answer_spans import SpanQuestion
from glassformer.metrics.exact_match import score_answers
from glassformer.metrics.scores import Scores
from glassformer.models import EncoderModel
from glassformer.tasks.answering import as_asked
from glassformer.tasks.configs.questions import CORPUS, ExtractionConfig, SpanData
from glassformer.tasks.configs.shared import Splits
from glassformer.tasks.configs.small_models import small_encoder
from glassformer.tasks.encoders import EncoderTask, EncoderTool, Reader, Texts, read_batch
from glassformer.tasks.pipeline import (
    LineAnswer,
    Pair,
    Request,
    answer_lines_with_text,
    as_json_number,
    check_text,
    each_pair,
)
from glassformer.text.encoded import Encoded
from glassformer.text.text_windows import windows
from glassformer.training.losses import label_smoothed_cross_entropy
from glassformer.training.train_config import TrainConfig


class Found(NamedTuple):
    """An answer: its words, where they stand, and how much better than no answer, or than the text's beginning."""

    text: str
    start: int
    """Its first character in the text; -1 where there is no answer."""
    score: float


class Extractor(EncoderTool[SpanQuestion]):
    """A trained model with its tokenizer: a question and a text in, words of the text out."""

    task, head = "extraction", "span"

    def __init__(self, model: EncoderModel, reader: Reader, *, abstains: bool, overlap: int, longest_answer: int):
        super().__init__(model, reader, abstains=abstains, overlap=overlap, longest_answer=longest_answer)
        self.abstains = abstains
        """Whether it may find that there is no answer: it has learned from such questions."""
        self.overlap, self.longest_answer = overlap, longest_answer

    def windows(self, asked: Sequence[tuple[str, str]]) -> list[list[Encoded]]:
        """What the model reads of each question and text: one window, or where the text is long several."""
        limit = self.model.config.max_len
        return [windows(read, limit, self.overlap) for read in self.reader.read(list(asked))]

    @overload
    def find(self, asked: Pair) -> Found: ...
    @overload
    def find(self, asked: list[Pair]) -> list[Found]: ...
    def find(self, asked: Pair | list[Pair]) -> Found | list[Found]:
        """The answer to one (question, text), or to each of a list: of the legal spans of all windows the best one."""
        return each_pair(asked, self._find, "asked")

    def _find(self, asked: list[Pair]) -> list[Found]:
        read = self.windows(asked)
        scores = iter(self.answers([window for several in read for window in several]))
        found = []
        for (_, context), several in zip(asked, read, strict=True):
            best, nothing = (float("-inf"), 0, 0), float("inf")
            for window in several:
                own = next(scores)
                best = max(best, best_span(own, window, self.longest_answer))
                nothing = min(nothing, float(own[0].sum()))  # a window without the answer says so; all must
            score, start, end = best
            is_there = end > start and (not self.abstains or score > nothing)
            text = context[start:end] if is_there else ""
            start += len(text) - len(text.lstrip())  # a token may carry the space before it
            found.append(Found(text.strip(), start if is_there else -1, score - nothing))
        return found

    def answer(self, question: str, context: str) -> str:
        """The answer in the text's own words; empty where the model finds none."""
        return self.find((check_text(question, "question"), check_text(context, "context"))).text

    def answer_lines(self, lines: Sequence[str], request: Request) -> list[LineAnswer]:
        """The answer to each line: a question, a tab and a text."""
        return answer_lines_with_text(lines, LineAnswer("", {"answer": ""}), self._find_lines)

    def _find_lines(self, lines: list[str]) -> list[LineAnswer]:
        answers = []
        for found in self._find([as_asked(line) for line in lines]):
            # Places count from the first character after the tab.
            place = {"start": found.start, "end": found.start + len(found.text)} if found.start >= 0 else {}
            record = {"answer": found.text, **place, "score": as_json_number(found.score)}
            answers.append(LineAnswer(found.text, record, (found.text,), (found.score,)))
        return answers

    def score(self, examples: Sequence[SpanQuestion]) -> Scores:
        """Exact match and F1, as SQuAD counts them."""
        found = self.find([(example.question, example.context) for example in examples])
        return score_answers([one.text for one in found], [example.answers for example in examples])


def best_span(scores: Tensor, window: Encoded, longest: int) -> tuple[float, int, int]:
    """The score of the best span of a window's text (T, 2), and its first character and the one after its last."""
    inside = torch.tensor([source == 1 for source in window.sources])
    if not inside.any():
        return float("-inf"), 0, 0
    begin, end = scores.masked_fill(~inside[:, None], float("-inf")).unbind(-1)
    legal = torch.ones(len(window), len(window), dtype=torch.bool).triu().tril(longest - 1)
    both = (begin[:, None] + end[None, :]).masked_fill(~legal, float("-inf"))  # (T, T)
    first, last = divmod(int(both.argmax()), len(window))
    return float(both[first, last]), window.spans[first][0], window.spans[last][1]


def span_places(window: Encoded, start: int, end: int) -> tuple[int, int]:
    """The first and last token of the characters from `start` to before `end`; the first token of all, twice, where
    the window does not hold them whole."""
    touched = [
        place
        for place, (span, source) in enumerate(zip(window.spans, window.sources, strict=True))
        if source == 1 and span[0] < end and span[1] > start
    ]
    if not touched or window.spans[touched[0]][0] > start or window.spans[touched[-1]][1] < end:
        return 0, 0
    return touched[0], touched[-1]


class Extraction(EncoderTask[SpanQuestion]):
    """Questions about texts to what finds their answers there."""

    name, title = "extraction", "An extractor of answers"
    unit, sample_line = "questions", "Where is Anna?\tAnna is in the garden."
    Config, Data, Tool = ExtractionConfig, SpanData, Extractor
    when_long = "are read in windows"

    def unused(self) -> set[str]:
        """As above."""
        return {"r_drop", "word_dropout", "label_smoothing", "bpe_dropout"}

    def texts(self, example: SpanQuestion) -> Texts:
        """As above."""
        return example.question, example.context

    def begin(self, train: Sequence[SpanQuestion]) -> tuple[dict[str, Any], dict[str, Any]]:
        """As above."""
        if not any(example.answers for example in train):
            raise ValueError("no question has an answer: expected some that do")
        config = self.config
        abstains = not all(example.answers for example in train)
        return {}, {"abstains": abstains, "overlap": config.overlap, "longest_answer": config.longest_answer}

    def rows(self, tool: Extractor, examples: Sequence[SpanQuestion]) -> list[LabeledRow]:
        """As above: a row for each window, which answers with its first token where the answer is not in it."""
        rows = []
        read = tool.windows([(example.question, example.context) for example in examples])
        for example, several in zip(examples, read, strict=True):
            for window in several:
                places = (0, 0)
                if example.answers:
                    start = example.starts[0]
                    places = span_places(window, start, start + len(example.answers[0]))
                rows.append(LabeledRow(window.ids, window.token_types, list(places)))
        return rows

    def loss(self, model: nn.Module, batch: LabeledBatch) -> Tensor:
        """As above: the cross-entropy of the first token among all, and of the last."""
        scores = read_batch(model, batch).float().masked_fill(~batch.mask[:, :, None], float("-inf"))  # (B, T, 2)
        return label_smoothed_cross_entropy(scores.transpose(1, 2), batch.answers, reduction="sum")  # over (B, 2, T)

    def show(self, example: SpanQuestion) -> tuple[str, str]:
        """As above."""
        return f"{example.question}\t{example.context}", next(iter(example.answers), "")

    def describe(self, splits: Splits[SpanQuestion]) -> str:
        """As above."""
        train, valid = list(splits.train), list(splits.valid)
        unanswerable = sum(not example.answers for example in train) / len(train)
        return (
            f"{len(train):,} questions to learn from, {len(valid):,} to validate on; {unanswerable:.0%} have no answer"
        )

    @classmethod
    def demo(cls) -> ExtractionConfig:
        """Made stories, by a small model."""
        return ExtractionConfig(
            data=SpanData(corpus=CORPUS),
            model=small_encoder(
                vocab_size=1000,
                n_encoder_layers=3,
                d_model=64,
                d_ff=128,
                positions="rotary",
                dropout=0.0,
                embedding_dropout=0.0,
            ),
            train=TrainConfig(
                minutes=2.0,
                lr=2e-3,
                warmup=100,
                schedule="linear",
                label_smoothing=0.0,
                max_tokens=1024,
                eval_every=500,
            ),
        )

    def baseline(self, splits: Splits[SpanQuestion]) -> tuple[str, Scores]:
        """As above."""
        asked = list(splits.test) or list(splits.valid)
        found = [example.context.split()[-1] for example in asked]
        return "the last word of the text", score_answers(found, [example.answers for example in asked])
