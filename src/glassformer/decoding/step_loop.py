"""The decoding loop of greedy search and sampling: a step adds one token to each sequence.

Up to rounding, the result of a sequence does not depend on the other sequences of its batch.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from glassformer.decoding.cpu_sampling import sample_rows
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.recorded_greedy import GreedyRunner, greedy_runner_for
from glassformer.decoding.rules import NAN_LOGITS, History, Rules
from glassformer.decoding.sampling import NEG_INF, filter_logits, sample
from glassformer.decoding.text_stream import TextStream
from glassformer.kernels.kernel_registry import PLAIN
from glassformer.kernels.kernel_set import KernelSet
from glassformer.runtime.async_readback import AsyncReadback
from glassformer.runtime.step_runner import StepRunner

Reason = Literal["end", "length", "stop", "error"]


class TokenConstraint(Protocol):
    """Decides which tokens may come next in one sequence, given those before, such as a grammar."""

    @property
    def is_complete(self) -> bool:
        """Whether the sequence is complete, so that nothing can follow."""

    def forbid(self, scores: Tensor) -> None:
        """Set the logits (V,) of the tokens that may not come next to -inf, in place."""

    def add(self, token: int) -> None:
        """Note that this token was chosen."""


@dataclass(eq=False)
class SequenceState:
    """A sequence that is being generated: its request, its tokens so far, and why it ended."""

    request: GenerationConfig
    given: list[int]
    """The tokens before the new ones: the prompt, or BEGIN."""
    max_new: int
    """Limit of new tokens: the lower of the request's limit and the model's."""
    number: int = 0
    """The index of this sequence among the samples of its request."""
    stream: TextStream | None = None
    """Decodes tokens; None if no tokenizer was given."""
    with_log_probs: bool = False
    n_top_log_probs: int = 0
    """How many of the most likely tokens of each step to note in `top_log_probs`."""
    constraint: TokenConstraint | None = None
    """Which tokens may come next, such as those that continue valid JSON; None allows every token."""
    written: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    """The model's log-probability of each new token and of END, before any rule or filter; empty by default."""
    top_log_probs: list[list[tuple[int, float]]] = field(default_factory=list)
    """For each entry of `log_probs`, the most likely tokens and their log-probabilities; empty by default."""
    reason: Reason | None = None
    """Why the sequence ended; None while it runs."""
    error: Exception | None = None

    def __post_init__(self) -> None:
        self._text, self._n_decoded, self._is_whole = "", 0, False
        self._ends = frozenset(self.request.eos_token_id)
        is_free = self.constraint is None and self.request.forced_eos_token_id is None
        self._ends_by_tokens = is_free and (self.stream is None or not self.stream.stop_strings)

    @property
    def text(self) -> str:
        """The decoded text so far. Tokens are decoded when it is asked for, many at once, or to find stop strings."""
        if self.stream is None or self._is_whole:
            return self._text
        self._is_whole = self.reason is not None  # before the tokens are counted: none is added afterwards
        new = self.written[self._n_decoded :]
        self._n_decoded += len(new)
        self._text += self.stream.push(*new)
        if self._is_whole:
            self._text += self.stream.finish()
        return self._text

    @cached_property
    def random(self) -> np.random.Generator:
        """The sequence's own random generator, so that sampling does not depend on the rest of the batch."""
        key = np.array([self.request.seed % 2**64, self.number], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key))

    def last_token(self, token: int) -> int:
        """Return the request's forced end if the next token is the last one, otherwise `token`.

        Recorded steps do not apply this rule, because no later step depends on it.
        """
        forced = self.request.forced_eos_token_id
        return token if forced is None or len(self.written) + 1 < self.request.max_new_tokens else forced

    def add(self, token: int, end: int) -> None:
        """Append a token and set `reason` if the sequence ends. END is not appended."""
        if token == end or token in self._ends:
            self.reason = "end"
        else:
            self.written.append(token)
            if self.constraint is not None:
                self.constraint.add(token)
            if self.stream is not None and self.stream.stop_strings and self._finds_stop():
                self.reason = "stop"
            elif self.constraint is not None and self.constraint.is_complete:
                self.reason = "end"
            elif len(self.written) >= self.max_new:
                self.reason = "length"

    def extend(self, tokens: Sequence[int], end: int) -> None:
        """Append the tokens of several steps up to the one that ends the sequence, and set `reason` if it ends."""
        if self._ends_by_tokens and end not in tokens and self._ends.isdisjoint(tokens):
            self.written.extend(tokens[: self.max_new - len(self.written)])
            if len(self.written) >= self.max_new:
                self.reason = "length"
            return
        for token in tokens:
            self.add(self.last_token(token), end)
            if self.reason is not None:
                return

    def _finds_stop(self) -> bool:
        """Decode the new token and return whether it completes a stop string."""
        assert self.stream is not None
        _ = self.text
        return self.stream.is_stopped

    def fail(self, error: Exception) -> None:
        """End the sequence with an error."""
        self.reason, self.error = "error", error


class TokenChooser:
    """Chooses the next token of each sequence in a batch: applies the rules, then takes the best token or samples."""

    def __init__(
        self,
        rows: Sequence[SequenceState],
        *,
        end: int,
        vocab_size: int,
        device: torch.device,
        kernels: KernelSet = PLAIN,
    ):
        requests = [row.request for row in rows]
        self.rows = list(rows)
        self.end = end
        self.device = device
        self.kernels = kernels
        self.rules = Rules(requests, end=end, vocab_size=vocab_size, device=device)
        self.tokens = torch.empty(0)
        """The tokens chosen last, on the model's device."""
        self._sampled = [index for index, request in enumerate(requests) if request.do_sample]
        self._wants_log_probs = any(row.with_log_probs for row in rows)
        self._n_top = max((row.n_top_log_probs for row in rows), default=0)
        self._constrained = [index for index, row in enumerate(rows) if row.constraint is not None]

    def choose(self, scores: Tensor) -> list[int]:
        """Choose the next token of each sequence from the logits (N, V), append it, and return all chosen tokens.

        A sequence without a valid token fails instead (`add_tokens`).
        """
        self.start(scores)
        return self.finish()

    @property
    def needs_tokens(self) -> bool:
        """Whether a rule needs the chosen tokens in Python: then the next step cannot run ahead on the device."""
        return self.rules.read_tokens or bool(self._constrained)

    @property
    def is_greedy(self) -> bool:
        """Whether each sequence just takes the token with the highest logit + bias, with one bias for all sequences.

        It is False if log-probabilities are asked for, or if a sequence has a constraint, too.
        """
        is_plain = not self._sampled and not self._wants_log_probs and not self._constrained
        return is_plain and self.rules.are_a_bias

    def start(self, scores: Tensor) -> None:
        """Choose the next tokens from the logits (N, V), keep them in `tokens`, and start to copy them to the CPU."""
        ruled = scores
        if self.rules.are_any:
            ruled = self.rules.apply(scores.clone() if self._wants_log_probs else scores, self._history())
        if self._constrained:
            ruled = ruled.clone()
            for index in self._constrained:
                constraint = self.rows[index].constraint
                assert constraint is not None
                constraint.forbid(ruled[index])
        if len(self._sampled) == len(self.rows):
            best, tokens = ruled.amax(-1), self._sample(ruled)
        else:
            best, tokens = self.kernels.best_token(ruled)
            if self._sampled:
                tokens[self._sampled] = self._sample(ruled[self._sampled])
        # One copy for everything, because each costs a GPU round trip. A float32 holds token ids up to 2**24 exactly.
        numbers = [best, tokens.to(best)]
        if self._wants_log_probs:
            total = scores.logsumexp(-1)
            numbers.append(scores.gather(1, tokens[:, None])[:, 0] - total)
            if self._n_top:
                likeliest = scores.topk(min(self._n_top, scores.shape[1]))
                numbers += [*(likeliest.values - total[:, None]).T, *likeliest.indices.to(best).T]
        self.tokens, self.readback = tokens, AsyncReadback(torch.stack(numbers)[None])

    def take(self, results: Tensor, tokens: Tensor) -> None:
        """Take `tokens` (N,), which a recorded step has chosen greedily, and start to copy `results` to the CPU.

        `results` (2, N) are the scores of these tokens and their ids, as `finish` reads them.
        """
        self.tokens, self.readback = tokens, AsyncReadback(results[None])

    def _sample(self, scores: Tensor) -> Tensor:
        """Sample the next tokens of the sequences with `do_sample`, given their logits, one row each."""
        rows = [self.rows[index] for index in self._sampled]
        requests, numbers = [row.request for row in rows], [row.random.random() for row in rows]
        if scores.device.type == "cpu":
            return sample_rows(scores, requests, numbers, self.kernels)
        return sample(filter_logits(scores, requests), numbers)

    def finish(self) -> list[int]:
        """Wait for the tokens that `start` chose, append them to their sequences, and return them."""
        ((highest, numbers, *logs),) = self.readback.read()
        if self._wants_log_probs:
            n_top = len(logs) // 2
            values, tokens = logs[1 : 1 + n_top], logs[1 + n_top :]
            for index, row in enumerate(self.rows):
                row.log_probs.append(logs[0][index])
                if row.n_top_log_probs:
                    found = [(int(tokens[place][index]), values[place][index]) for place in range(n_top)]
                    row.top_log_probs.append(found[: row.n_top_log_probs])
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


def add_tokens(
    rows: Sequence[SequenceState], highest: Sequence[float], numbers: Sequence[float], end: int
) -> list[int]:
    """Append the token id `numbers[i]`, or the forced last one, to sequence i, and return the ids as integers.

    `highest` has the highest score of each sequence. If it is NaN, or -inf because the rules forbid every token, the
    sequence fails instead.
    """
    chosen = list(map(int, numbers))
    for index, row in enumerate(rows):
        if row.request.forced_eos_token_id is not None:
            chosen[index] = row.last_token(chosen[index])
    if not all(map(math.isfinite, highest)):
        for row, score in zip(rows, highest, strict=True):
            if score != score:  # NaN counts as the highest score, so one NaN anywhere shows here
                row.fail(FloatingPointError(NAN_LOGITS))
            elif score == NEG_INF:
                row.fail(
                    ValueError("the rules of a request forbid every token: allow some in suppress_tokens or logit_bias")
                )
    for row, token in zip(rows, chosen, strict=True):
        if row.error is None:
            row.add(token, end)
    return chosen


def add_steps(rows: Sequence[SequenceState], results: np.ndarray, end: int) -> None:
    """Append the tokens of several steps to their sequences, each up to its end. If one fails, its error is raised.

    `results` (steps, 2, N) are the highest score and the token id of each sequence, as `add_tokens` takes them.
    """
    if np.isfinite(results[:, 0]).all():
        for row, tokens in zip(rows, results[:, 1].T.astype(np.int64).tolist(), strict=True):
            row.extend(tokens, end)
        return
    for highest, numbers in results.tolist():
        places = [place for place, row in enumerate(rows) if row.reason is None]
        running = [rows[place] for place in places]
        add_tokens(running, [highest[place] for place in places], [numbers[place] for place in places], end)
        raise_errors(running)


def run_sequences(runner: StepRunner, rows: Sequence[SequenceState], scores: Tensor, *, end: int) -> Iterator[None]:
    """Decode all sequences to their ends. A sequence that fails raises its error.

    It yields each time that tokens have been added to the sequences: after every step, or after a few. `scores` (N, V)
    are the logits after the prompts, which the runner has read (`StepRunner.prefill`).
    """
    live, chooser = list(rows), None
    ahead: Tensor | None = scores
    tokens = torch.empty(0)  # those of the next step
    while live:
        if chooser is None:
            vocab_size, kernels = runner.model.config.vocab_size, runner.cache.kernels
            chooser = TokenChooser(live, end=end, vocab_size=vocab_size, device=runner.device, kernels=kernels)
        scores = runner.step(tokens) if ahead is None else ahead
        greedy = greedy_runner_for(runner) if chooser.is_greedy else None
        if greedy is not None:
            yield from _run_greedy(greedy, live, chooser.rules, scores, end)
            return
        chooser.start(scores)
        # On a GPU the next step starts before the tokens of this one are read. Sequences that have ended then take one
        # step too many, whose result is not used.
        ahead, goes_on = None, any(len(row.written) + 1 < row.max_new for row in live)
        if runner.can_run_ahead and goes_on and not chooser.needs_tokens:
            ahead = runner.step(chooser.tokens[:, None])
        chooser.finish()
        raise_errors(live)
        yield
        tokens = chooser.tokens[:, None]
        staying = close_gaps([row.reason is None for row in live])
        if len(staying) < len(live):
            live, chooser = [live[index] for index in staying], None
            if live:
                runner.keep(staying)
                tokens = tokens[staying]
                ahead = None if ahead is None else ahead[staying]


def close_gaps(stays: Sequence[bool]) -> list[int]:
    """Return the rows that stay, so that few of them move: rows from the end take the places of those that do not."""
    count = sum(stays)
    last = (index for index in range(count, len(stays)) if stays[index])
    return [index if stays[index] else next(last) for index in range(count)]


def raise_errors(rows: Sequence[SequenceState]) -> None:
    """Raise the error of the first sequence that failed, if any did."""
    for row in rows:
        if row.error is not None:
            raise row.error


def _run_greedy(
    runner: GreedyRunner, rows: Sequence[SequenceState], rules: Rules, scores: Tensor, end: int
) -> Iterator[None]:
    """Run the loop of `run_sequences` with recorded greedy steps, each of which reads the previous tokens itself.

    A few steps are launched at once, and the next few before the results of these are read, so that the GPU need not
    wait for Python.
    """
    launched, most = len(rows[0].written), max(row.max_new for row in rows)
    live, places = list(rows), list(range(len(rows)))  # the unfinished sequences, and their rows of the batch
    runner.bias.set(rules, launched)
    pending = deque([AsyncReadback(runner.start(scores))])
    launched += 1
    runner.bias.set(rules, launched)
    while live:
        while len(pending) < 2 and launched < most:
            if launched == rules.min_new_tokens:
                runner.bias.set(rules, launched)
            until = min(rules.min_new_tokens, most) if launched < rules.min_new_tokens else most
            steps = min(runner.max_steps, until - launched)
            pending.append(AsyncReadback(runner.run(steps)))
            launched += steps
        add_steps(live, pending.popleft().read_array()[:, :, places], end)
        yield
        if any(row.reason is not None for row in live):
            places = [place for place, row in zip(places, live, strict=True) if row.reason is None]
            live = [row for row in live if row.reason is None]
