"""The step loop: all rows take one token each, and those that are done leave the batch.

Greedy search and sampling are this loop with another choice; what a row writes depends on nothing but the row.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.rules import BROKEN, NEVER, History, Rules
from glassformer.decoding.sampling import draw, filter_scores
from glassformer.decoding.text_stream import TextStream
from glassformer.kernels.choice_kernels import best_of
from glassformer.runtime.step_runner import Feeder, Writer

Reason = Literal["end", "length", "stop", "error"]


@dataclass(eq=False)
class Row:
    """One text that is being written."""

    request: GenerationConfig
    given: list[int]
    """What it stands after: the prompt, or BEGIN."""
    max_new: int
    """The request's limit, or the model's where that comes first."""
    number: int = 0
    """Which of the request's samples it is."""
    stream: TextStream | None = None
    """Turns the tokens into text as they come, where somebody wants it or a stop string is looked for."""
    with_log_probs: bool = False
    written: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    """Of each token written, and of the end, by the model alone: before any rule or filter."""
    text: str = ""
    """What the stream has made of the tokens: all that is certain."""
    reason: Reason | None = None
    """Why it ended; None while it is being written."""
    error: Exception | None = None

    @cached_property
    def random(self) -> np.random.Generator:
        """Its own numbers: what else is in the batch, and when, changes nothing."""
        key = np.array([self.request.seed % 2**64, self.number], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key))

    def add(self, token: int, end: int) -> None:
        """Write one more token, or end."""
        if token == end or token in self.request.eos_token_id:
            self.reason = "end"
        else:
            self.written.append(token)
            if self.stream is not None:
                self.text += self.stream.push(token)
            if self.stream is not None and self.stream.is_stopped:
                self.reason = "stop"
            elif len(self.written) >= self.max_new:
                self.reason = "length"
        if self.reason is not None and self.stream is not None:
            self.text += self.stream.finish()

    def fail(self, error: Exception) -> None:
        """End because nothing can be written."""
        self.reason, self.error = "error", error


class Told:
    """Numbers of some steps on their way from a device: asked for now, read later, so that it can go on working."""

    def __init__(self, numbers: Tensor):
        self._numbers = torch.empty_like(numbers, device="cpu", pin_memory=numbers.is_cuda)
        self._numbers.copy_(numbers, non_blocking=True)
        self._arrived = None
        if numbers.is_cuda:
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(numbers.device))

    def read(self) -> list[list[list[float]]]:
        """The numbers, once they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        found: list[list[list[float]]] = self._numbers.tolist()
        return found


class Choice(NamedTuple):
    """A step's outcome for one row."""

    row: Row
    token: int


class Chooser:
    """Picks the next token of each of some rows."""

    def __init__(self, rows: Sequence[Row], *, end: int, vocab_size: int, device: torch.device):
        requests = [row.request for row in rows]
        self.rows = list(rows)
        self.end = end
        self.device = device
        self.rules = Rules(requests, end=end, vocab_size=vocab_size, device=device)
        self.tokens = torch.empty(0)
        """The tokens chosen last, where the model is."""
        self._sampled = [index for index, request in enumerate(requests) if request.do_sample]
        self._wants_log_probs = any(row.with_log_probs for row in rows)

    def choose(self, scores: Tensor) -> list[int]:
        """One token a row, from the scores (N, V); it is written into the row, unless the row fails."""
        self.pick(scores)
        return self.settle()

    @property
    def needs_texts(self) -> bool:
        """Whether the next choice depends on what was written before it, and not only on the scores."""
        return self.rules.read_tokens

    @property
    def is_plain(self) -> bool:
        """Whether every row takes the best token, but for what is added to the scores."""
        return not self._sampled and not self._wants_log_probs and self.rules.are_a_bias

    def pick(self, scores: Tensor) -> None:
        """The first half of a choice: where the model is, `tokens` are chosen. Nobody has waited for them yet."""
        ruled = scores
        if self.rules.are_any:
            ruled = self.rules.apply(scores.clone() if self._wants_log_probs else scores, self._history())
        best, tokens = best_of(ruled)
        if self._sampled:
            requests = [self.rows[index].request for index in self._sampled]
            filtered = filter_scores(ruled[self._sampled], requests)
            tokens[self._sampled] = draw(filtered, [self.rows[index].random.random() for index in self._sampled])
        # All at once, for asking a GPU takes time; a float tells all whole numbers up to 2**24.
        told = [best, tokens.to(best)]
        if self._wants_log_probs:
            told.append(scores.gather(1, tokens[:, None])[:, 0] - scores.logsumexp(-1))
        self.tokens, self.told = tokens, Told(torch.stack(told)[None])

    def settle(self) -> list[int]:
        """The second half: wait for the tokens, and write them into their rows."""
        ((highest, numbers, *logs),) = self.told.read()
        if self._wants_log_probs:
            for row, value in zip(self.rows, logs[0], strict=True):
                row.log_probs.append(value)
        return add_tokens(self.rows, highest, numbers, self.end)

    def _history(self) -> History:
        n_written = [len(row.written) for row in self.rows]
        if not self.rules.read_tokens:
            nothing = torch.empty(len(self.rows), 0, dtype=torch.long, device=self.device)
            return History(nothing, nothing.bool(), n_written)
        texts = [row.given + row.written for row in self.rows]
        length = max(map(len, texts))
        padded = torch.tensor([[0] * (length - len(text)) + text for text in texts], device=self.device)
        real = torch.tensor([[False] * (length - len(text)) + [True] * len(text) for text in texts], device=self.device)
        return History(padded, real, n_written)


def add_tokens(rows: Sequence[Row], highest: Sequence[float], numbers: Sequence[float], end: int) -> list[int]:
    """Write each row's token, whose score was the highest, into it. The rows that have none fail."""
    chosen = [int(number) for number in numbers]
    if not all(map(math.isfinite, highest)):
        for row, score in zip(rows, highest, strict=True):
            if score != score:  # NaN wins every comparison, so that the best score tells of it
                row.fail(FloatingPointError(BROKEN))
            elif score == NEVER:
                row.fail(ValueError("the rules of a request forbid every token: nothing can be written"))
    for row, token in zip(rows, chosen, strict=True):
        if row.error is None:
            row.add(token, end)
    return chosen


def write_rows(
    writer: Writer, rows: Sequence[Row], tokens: Tensor, mask: Tensor | None = None, *, end: int
) -> Iterator[list[Choice]]:
    """Write all rows to their ends; each step's tokens are yielded as they come. A row that fails raises its error.

    `tokens` (N, T) is what the rows stand after, with False in `mask` where it is padded on the left.
    """
    live, chooser = list(rows), None
    ahead: Tensor | None = None
    while live:
        if chooser is None:  # before the step, which it would otherwise wait for on a GPU
            chooser = Chooser(live, end=end, vocab_size=writer.model.config.vocab_size, device=writer.device)
        chooser.pick(writer.step(tokens, mask) if ahead is None else ahead)
        feeder = writer.feeder(chooser.tokens[:, None]) if chooser.is_plain else None
        if feeder is not None:
            yield from _write_fed(feeder, live, chooser.rules, chooser.told, end)
            return
        # On a GPU the next step begins before anybody has seen this one's tokens: rows that turn out to have ended have
        # taken one step too many, which nobody reads.
        ahead, goes_on = None, any(len(row.written) + 1 < row.max_new for row in live)
        if writer.can_run_ahead and goes_on and not chooser.needs_texts:
            ahead = writer.step(chooser.tokens[:, None])
        chosen = chooser.settle()
        yield _choices(live, chosen)
        tokens, mask = chooser.tokens[:, None], None
        staying = [index for index, row in enumerate(live) if row.reason is None]
        if len(staying) < len(live):
            live, chooser = [live[index] for index in staying], None
            if live:
                writer.keep(staying)
                tokens = tokens[staying]
                ahead = None if ahead is None else ahead[staying]


def _choices(rows: Sequence[Row], tokens: Sequence[int]) -> list[Choice]:
    """What each row has taken; a row that failed raises its error."""
    for row in rows:
        if row.error is not None:
            raise row.error
    return [Choice(row, token) for row, token in zip(rows, tokens, strict=True)]


def _write_fed(feeder: Feeder, rows: Sequence[Row], rules: Rules, first: Told, end: int) -> Iterator[list[Choice]]:
    """The same by a writer that feeds itself, from the first token on.

    A few steps are asked for at once, and the next few before these are looked at, so that no device waits for Python.
    """
    asked, told = len(rows[0].written) + 1, deque([first])
    most = max(row.max_new for row in rows)
    live = dict(enumerate(rows))  # by the place in the batch, which stays
    feeder.bias.copy_(rules.bias_after(asked))
    while live:
        while len(told) < 2 and asked < most:
            if asked == rules.shortest:
                feeder.bias.copy_(rules.bias_after(asked))
            until = min(rules.shortest, most) if asked < rules.shortest else most
            steps = min(feeder.most, until - asked)
            told.append(Told(feeder.feed(steps)))
            asked += steps
        for highest, numbers in told.popleft().read():
            places = list(live)
            now = list(live.values())
            chosen = add_tokens(now, [highest[place] for place in places], [numbers[place] for place in places], end)
            yield _choices(now, chosen)
            live = {place: row for place, row in live.items() if row.reason is None}
            if not live:
                return
