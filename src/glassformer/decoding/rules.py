"""Rules that change the logits of the next token: biases, penalties, forbidden and forced tokens.

Each batch row has its own rules, so that different requests can share a batch. A rule that no row sets costs nothing.
The rules are applied in the order of HF's `generate`.
"""

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.sampling import NEG_INF, penalize_repetition
from glassformer.runtime.async_readback import upload

NAN_LOGITS = "the model's logits are NaN: check its weights and inputs for NaN or infinity"


class History(NamedTuple):
    """The tokens before the next one, left-padded to one length."""

    tokens: Tensor  # (N, L): the prompt, or BEGIN, and the new tokens
    is_real: Tensor  # (N, L), False at padding
    n_written: Sequence[int]  # how many of the last tokens are new; Python numbers, so that no device is waited for

    @classmethod
    def of_hypotheses(cls, prompts: Tensor, mask: Tensor | None, hypotheses: Tensor) -> "History":
        """Join each prompt (B, T) with the tokens of its K hypotheses (B·K, L). `mask` is False at padding."""
        copies = len(hypotheses) // len(prompts)
        is_real = torch.ones_like(prompts, dtype=torch.bool) if mask is None else mask
        is_real = torch.cat((is_real.repeat_interleave(copies, 0), torch.ones_like(hypotheses, dtype=torch.bool)), 1)
        tokens = torch.cat((prompts.repeat_interleave(copies, 0), hypotheses), 1)
        return cls(tokens, is_real, [hypotheses.shape[1]] * len(hypotheses))


class Rules:
    """The rules of a batch, made from the request (`GenerationConfig`) of each batch row."""

    def __init__(
        self, requests: Sequence[GenerationConfig], *, end: int, vocab_size: int, device: torch.device | str = "cpu"
    ):
        self.requests = list(requests)
        self.end = end
        self.device = torch.device(device)
        self.vocab_size = vocab_size
        self._objects = list({id(request): request for request in self.requests}.values())
        """Each request once: often all rows of a batch have the same one."""
        self._distinct = {_rules_of(request): request for request in self._objects}
        """The requests whose rules differ, each once, by their rules."""
        for request in self._distinct.values():
            check_token_ids(request, vocab_size)
        self._repetition = self._numbers("repetition_penalty", 1.0)
        self._presence = self._numbers("presence_penalty", 0.0)
        self._frequency = self._numbers("frequency_penalty", 0.0)
        self._min_new_tokens = [request.min_new_tokens for request in self.requests]
        sizes = {request.no_repeat_ngram_size for request in self._objects} - {0}
        self._ngrams = {
            size: torch.tensor([request.no_repeat_ngram_size == size for request in self.requests], device=self.device)
            for size in sizes
        }
        has_runs = any(len(run) > 1 for request in self._objects for run in request.bad_words_ids)
        rows = enumerate(self.requests if has_runs else ())
        self._bad_runs = [(row, run) for row, request in rows for run in request.bad_words_ids if len(run) > 1]
        self._biases: dict[bool, Tensor] = {}
        """The biases that `bias_after` has computed so far; the key is whether END is still forbidden."""
        self._longest_prefix = max((len(request.prefix) for request in self._objects), default=0)
        self._force_an_end = any(request.forced_eos_token_id is not None for request in self._objects)

    @property
    def are_any(self) -> bool:
        """Whether any batch row has a rule."""
        numbers = self._repetition, self._presence, self._frequency, self._bias
        others = self._ngrams, self._bad_runs, self._longest_prefix, any(self._min_new_tokens), self._force_an_end
        return any(x is not None for x in numbers) or any(map(bool, others))

    @property
    def read_tokens(self) -> bool:
        """Whether any rule reads the previous tokens. If not, the caller may pass a `History` without tokens."""
        penalties = self._repetition, self._presence, self._frequency
        return any(one is not None for one in penalties) or bool(self._ngrams or self._bad_runs)

    @cached_property
    def are_a_bias(self) -> bool:
        """Whether the rules only add a bias (V,) to the logits, the same for every row (see `bias_after`).

        That is so if all rows have the same rules, none of them about previous tokens, and no forced prefix. A forced
        last token is the exception, which the caller handles (`forces_any`, `add_tokens`).
        """
        return len(self._distinct) == 1 and not self.read_tokens and not self._longest_prefix

    @property
    def min_new_tokens(self) -> int:
        """The number of new tokens before which END is forbidden, for a batch whose rows have the same rules.

        Read it only if `are_a_bias` is True: otherwise each row may have its own number, and this is the first row's.
        """
        return self._min_new_tokens[0]

    def bias_key(self, n_written: int) -> Hashable:
        """Return what `bias_after` depends on. Equal keys of any two `Rules` of one model mean equal biases."""
        return *self._distinct, self.end, n_written < self.min_new_tokens

    def bias_after(self, n_written: int) -> Tensor:
        """Return the bias (V,) that the rules add to the logits of every row after `n_written` new tokens.

        Call it only if `are_a_bias` is True, and do not modify the tensor, which is kept for later calls. A forced last
        token (`forces_any`) is not part of it.
        """
        is_short = n_written < self.min_new_tokens
        if is_short not in self._biases:
            nothing = torch.zeros(self.vocab_size, dtype=torch.float32, device=self.device)
            bias = nothing if self._bias is None else self._bias[0].clone()
            if is_short:  # not `bias[token] = ...`, which waits for a GPU
                bias.index_fill_(0, upload(sorted(self._ends(0)), self.device), NEG_INF)
            self._biases[is_short] = bias
        return self._biases[is_short]

    def apply(self, scores: Tensor, history: History) -> Tensor:
        """Return the logits (N, V) changed by the rules; forbidden tokens get -inf. `scores` itself may be modified."""
        is_bias = self.are_a_bias and not self.forces_any(history.n_written)
        if is_bias and len({n_written < self.min_new_tokens for n_written in history.n_written}) == 1:
            return scores + self.bias_after(history.n_written[0])
        if self._bias is not None:
            scores = scores + self._bias
        if self._repetition is not None:
            seen = self._seen(history.tokens, history.is_real)
            scores = penalize_repetition(scores, seen, self._repetition[:, None])
        if self._presence is not None:
            scores = scores - self._seen(history.tokens, self._is_written(history)) * self._presence[:, None]
        if self._frequency is not None:
            counts = torch.zeros(len(scores), self.vocab_size, device=self.device)
            counts.scatter_add_(1, history.tokens, self._is_written(history).to(counts))
            scores = scores - counts * self._frequency[:, None]
        for size, rows in self._ngrams.items():
            scores = scores.masked_fill(self._repeats(history, size) & rows[:, None], NEG_INF)
        for row, run in self._bad_runs:
            if history.tokens[row, -len(run) + 1 :].tolist() == list(run[:-1]):
                scores[row, run[-1]] = NEG_INF
        short = [row for row, least in enumerate(self._min_new_tokens) if history.n_written[row] < least]
        if short:
            self._forbid_ends(scores, short)
        return self._force(scores, history) if self.forces_any(history.n_written) else scores

    def forces_any(self, n_written: Sequence[int]) -> bool:
        """Return whether a rule decides the next token of a row alone; `n_written` has the new tokens of each row."""
        if not self._longest_prefix and not self._force_an_end:
            return False
        return any(request.forced_token(n) is not None for request, n in zip(self.requests, n_written, strict=True))

    def _forbid_ends(self, scores: Tensor, rows: list[int]) -> None:
        ends = {row: self._ends(row) for row in rows}
        if len(rows) == len(self.requests) and all(tokens == ends[rows[0]] for tokens in ends.values()):
            for token in ends[rows[0]]:  # the same tokens for all rows: no indices are copied to the device
                scores[:, token] = NEG_INF
            return
        places = torch.tensor([(row, token) for row in rows for token in ends[row]], device=self.device).view(-1, 2).T
        scores[places[0], places[1]] = NEG_INF

    def _ends(self, row: int) -> set[int]:
        return {*self.requests[row].eos_token_id} | ({self.end} if self.end >= 0 else set())

    def _seen(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Return a boolean (N, V): whether each token id occurs in the row of `tokens` (N, L).

        Positions where the mask `counts` (N, L) is False are ignored.
        """
        nowhere = self.vocab_size  # an extra column for positions that do not count
        seen = torch.zeros(len(tokens), nowhere + 1, dtype=torch.bool, device=self.device)
        return seen.scatter_(1, tokens.masked_fill(~counts, nowhere), True)[:, :nowhere]

    def _is_written(self, history: History) -> Tensor:
        """Return (N, L): which positions of the history are new tokens, not the prompt."""
        places = torch.arange(history.tokens.shape[1], 0, -1, device=self.device)
        return places <= torch.tensor(history.n_written, device=self.device)[:, None]

    def _repeats(self, history: History, size: int) -> Tensor:
        """Return (N, V): which next tokens would complete a run of `size` tokens that the row's history already has."""
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
        """Allow only the token that a prefix or a forced end asks for, with a score of 0, as HF does.

        So it does not count in a beam search. NaN stays, because it is reported later.
        """
        for row, n_written in enumerate(history.n_written):
            wanted = self.requests[row].forced_token(n_written)
            if wanted is not None:
                is_nan = scores[row, wanted].isnan()
                scores[row] = NEG_INF
                scores[row, wanted] = torch.where(is_nan, torch.nan, 0.0)
        return scores

    def _numbers(self, name: str, nothing: float) -> Tensor | None:
        """Return the setting `name` of each request, (N,), or None if all requests have the neutral value `nothing`."""
        if all(getattr(request, name) == nothing for request in self._objects):
            return None
        return torch.tensor([getattr(request, name) for request in self.requests], device=self.device)

    @cached_property
    def _bias(self) -> Tensor | None:
        """The biases of all rows, (N, V), or (1, V) if they are equal. None if there are none."""
        if not any(request.logit_bias or request.suppress_tokens or request.bad_words_ids for request in self._objects):
            return None
        # Rows of one request share one row of the bias, and all entries are copied to the device at once.
        requests = self.requests if len(self._distinct) > 1 else self.requests[:1]
        entries: dict[tuple[int, int], float] = {}
        for row, request in enumerate(requests):
            entries |= {(row, token): value for token, value in request.logit_bias.items()}
            entries |= {(row, token): NEG_INF for token in request.suppress_tokens}
            entries |= {(row, run[0]): NEG_INF for run in request.bad_words_ids if len(run) == 1}
        bias = torch.zeros(len(requests), self.vocab_size, dtype=torch.float32, device=self.device)
        if entries:
            places = upload([row * self.vocab_size + token for row, token in entries], self.device)
            bias.view(-1).index_copy_(0, places, upload([*entries.values()], self.device, torch.float32))
        return bias


def _rules_of(request: GenerationConfig) -> Hashable:
    """Return the settings of a request that `Rules` applies."""
    return (
        request.min_new_tokens,
        frozenset(request.eos_token_id),
        frozenset(request.logit_bias.items()),
        frozenset(request.suppress_tokens),
        frozenset(map(tuple, request.bad_words_ids)),
        tuple(request.prefix),
        request.forced_eos_token_id,
        request.repetition_penalty,
        request.presence_penalty,
        request.no_repeat_ngram_size,
    )


def check_token_ids(request: GenerationConfig, vocab_size: int) -> None:
    """Raise ValueError if a setting of the request names a token that is not in the vocabulary."""
    named = {
        "logit_bias": request.logit_bias,
        "suppress_tokens": request.suppress_tokens,
        "bad_words_ids": [token for run in request.bad_words_ids for token in run],
        "prefix": request.prefix,
        "eos_token_id": request.eos_token_id,
        "forced_eos_token_id": [] if request.forced_eos_token_id is None else [request.forced_eos_token_id],
    }
    for name, tokens in named.items():
        for token in tokens:
            if not 0 <= token < vocab_size:
                raise ValueError(f"{name} names token {token}: expected 0 to {vocab_size - 1}")
