"""What may be written next, and what is less welcome: rules on the scores of the next token.

Each row of a batch has rules of its own, so that requests that differ can share a batch. A rule that no row asks for
costs nothing. They are applied in the order of HF's `generate`.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.decoding.generation_config import GenerationConfig

NEVER = float("-inf")
BROKEN = "the model's scores are NaN: its weights or its input are broken"


class History(NamedTuple):
    """What stands before the next token, padded on the left to one length."""

    tokens: Tensor  # (N, L): the prompt, or BEGIN, and what was written
    is_real: Tensor  # (N, L), False where a row is padded
    n_written: Sequence[int]  # how many of the last tokens were written and not given; known without asking a device


class Rules:
    """The rules of some requests, one a row."""

    def __init__(
        self, requests: Sequence[GenerationConfig], *, end: int, vocab_size: int, device: torch.device | str = "cpu"
    ):
        self.requests = list(requests)
        self.end = end
        self.device = torch.device(device)
        self.vocab_size = vocab_size
        self._check_ids()
        self._repetition = self._numbers("repetition_penalty", 1.0)
        self._presence = self._numbers("presence_penalty", 0.0)
        self._shortest = [request.min_new_tokens for request in self.requests]
        self._bias = self._make_bias()
        sizes = [request.no_repeat_ngram_size for request in self.requests]
        self._ngrams = {n: torch.tensor([size == n for size in sizes], device=self.device) for n in {*sizes} - {0}}
        self._bad_runs = [
            (row, run) for row, request in enumerate(self.requests) for run in request.bad_words_ids if len(run) > 1
        ]
        self._biases: dict[bool, Tensor] = {}
        """Where they are a bias, and once it was asked for: while a text may not end, and after that."""
        self._longest_prefix = max((len(request.prefix) for request in self.requests), default=0)

    @property
    def are_any(self) -> bool:
        """Whether some row has a rule at all."""
        numbers = self._repetition, self._presence, self._bias
        others = self._ngrams, self._bad_runs, self._longest_prefix, any(self._shortest)
        return any(x is not None for x in numbers) or any(map(bool, others))

    @property
    def read_tokens(self) -> bool:
        """Whether some rule looks at the tokens before; else a history needs none, which saves gathering them."""
        return self._repetition is not None or self._presence is not None or bool(self._ngrams or self._bad_runs)

    @cached_property
    def are_a_bias(self) -> bool:
        """Whether all they do is to add the same numbers to the scores of every row, step after step."""
        return len(self._distinct()) == 1 and not self.read_tokens and not self._longest_prefix

    @property
    def shortest(self) -> int:
        """Where they are a bias: how many tokens must be written before a text may end."""
        return self._shortest[0]

    def bias_after(self, n_written: int) -> Tensor:
        """Where they are a bias: the numbers, (V,), which stay ours."""
        is_short = n_written < self.shortest
        if is_short not in self._biases:
            nothing = torch.zeros(self.vocab_size, dtype=torch.float32, device=self.device)
            bias = nothing if self._bias is None else self._bias[0].clone()
            if is_short:
                for token in self._ends(0):  # one by one: a list of them would be sent to the device, and waited for
                    bias[token] = NEVER
            self._biases[is_short] = bias
        return self._biases[is_short]

    def apply(self, scores: Tensor, history: History) -> Tensor:
        """The scores (N, V) under the rules, which may be changed in place; what is forbidden is minus infinity."""
        if self.are_a_bias and len({n_written < self.shortest for n_written in history.n_written}) == 1:
            return scores + self.bias_after(history.n_written[0])
        if self._bias is not None:
            scores = scores + self._bias
        if self._repetition is not None:
            penalty = self._repetition[:, None]
            punished = torch.where(scores < 0, scores * penalty, scores / penalty)
            scores = torch.where(self._seen(history.tokens, history.is_real), punished, scores)
        if self._presence is not None:
            places = torch.arange(history.tokens.shape[1], 0, -1, device=self.device)
            written = self._seen(history.tokens, places <= torch.tensor(history.n_written, device=self.device)[:, None])
            scores = scores - written * self._presence[:, None]
        for size, rows in self._ngrams.items():
            scores = scores.masked_fill(self._repeats(history, size) & rows[:, None], NEVER)
        for row, run in self._bad_runs:
            if history.tokens[row, -len(run) + 1 :].tolist() == list(run[:-1]):
                scores[row, run[-1]] = NEVER
        short = [row for row, least in enumerate(self._shortest) if history.n_written[row] < least]
        if short:
            self._forbid_ends(scores, short)
        return self._force(scores, history) if self._longest_prefix else scores

    def _forbid_ends(self, scores: Tensor, rows: list[int]) -> None:
        ends = {row: self._ends(row) for row in rows}
        if len(rows) == len(self.requests) and all(tokens == ends[rows[0]] for tokens in ends.values()):
            for token in ends[rows[0]]:  # all alike: no list of places has to be sent to the device
                scores[:, token] = NEVER
            return
        places = torch.tensor([(row, token) for row in rows for token in ends[row]], device=self.device).view(-1, 2).T
        scores[places[0], places[1]] = NEVER

    def _ends(self, row: int) -> set[int]:
        return {*self.requests[row].eos_token_id} | ({self.end} if self.end >= 0 else set())

    def _seen(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Which tokens of the vocabulary stand in a row where `counts` is True: (N, L) -> (N, V)."""
        nowhere = self.vocab_size  # one column more, for what does not count
        seen = torch.zeros(len(tokens), nowhere + 1, dtype=torch.bool, device=self.device)
        return seen.scatter_(1, tokens.masked_fill(~counts, nowhere), True)[:, :nowhere]

    def _repeats(self, history: History, size: int) -> Tensor:
        """Which tokens would complete a run of `size` that is already there."""
        tokens, real = history.tokens, history.is_real
        length = tokens.shape[1]
        if length < size:
            return torch.zeros(len(tokens), self.vocab_size, dtype=torch.bool, device=self.device)
        runs = tokens.unfold(1, size, 1)  # (N, L - size + 1, size)
        inside = real.unfold(1, size, 1).all(-1)
        last = tokens[:, length - size + 1 :]  # (N, size - 1)
        same = (runs[:, :, :-1] == last[:, None]).all(-1) & inside
        same &= real[:, length - size + 1 :].all(1, keepdim=True)
        return self._seen(runs[:, :, -1], same)

    def _force(self, scores: Tensor, history: History) -> Tensor:
        for row, n_written in enumerate(history.n_written):
            prefix = self.requests[row].prefix
            if n_written < len(prefix):
                wanted = prefix[n_written]
                own = scores[row, wanted].clone()
                scores[row] = NEVER
                scores[row, wanted] = own
        return scores

    def _numbers(self, name: str, nothing: float) -> Tensor | None:
        """One number a row, or None where no row asks for it."""
        values = [getattr(request, name) for request in self.requests]
        return None if all(value == nothing for value in values) else torch.tensor(values, device=self.device)

    def _make_bias(self) -> Tensor | None:
        if not any(request.logit_bias or request.suppress_tokens or request.bad_words_ids for request in self.requests):
            return None
        # Rows of one request share one row; and all entries go to the device at once.
        requests = self.requests if len(self._distinct()) > 1 else self.requests[:1]
        entries: dict[tuple[int, int], float] = {}
        for row, request in enumerate(requests):
            entries |= {(row, token): value for token, value in request.logit_bias.items()}
            entries |= {(row, token): NEVER for token in request.suppress_tokens}
            entries |= {(row, run[0]): NEVER for run in request.bad_words_ids if len(run) == 1}
        bias = torch.zeros(len(requests), self.vocab_size, dtype=torch.float32, device=self.device)
        if entries:
            rows, tokens = torch.tensor([*entries], device=self.device).T
            bias[rows, tokens] = torch.tensor([*entries.values()], dtype=torch.float32, device=self.device)
        return bias

    def _distinct(self) -> list[GenerationConfig]:
        """Each request once: the rows of a batch are often of one."""
        return [*{id(request): request for request in self.requests}.values()]

    def _check_ids(self) -> None:
        for request in self._distinct():
            named = {
                "logit_bias": request.logit_bias,
                "suppress_tokens": request.suppress_tokens,
                "bad_words_ids": [token for run in request.bad_words_ids for token in run],
                "prefix": request.prefix,
                "eos_token_id": request.eos_token_id,
            }
            for name, tokens in named.items():
                for token in tokens:
                    if not 0 <= token < self.vocab_size:
                        raise ValueError(f"{name} names token {token}: expected 0 to {self.vocab_size - 1}")
