"""Log-probabilities of tokens in the two forms of OpenAI's API: that of chats, and that of completions."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from glassformer.serve.token_bytes import TokenBytes

LOWEST = -9999.0
"""Reported in place of minus infinity, which JSON does not have."""


class TokenScores(NamedTuple):
    """Tokens, the log-probability of each, and the most likely tokens in its place."""

    tokens: Sequence[int]
    log_probs: Sequence[float | None]
    """None for the first token of a text, which nothing precedes."""
    top: Sequence[Sequence[tuple[int, float]]]

    def followed_by(self, other: "TokenScores") -> "TokenScores":
        """Return these scores and then those of another part of the text."""
        return TokenScores([*self.tokens, *other.tokens], [*self.log_probs, *other.log_probs], [*self.top, *other.top])


def as_chat_log_probs(scores: TokenScores, n_top: int, texts: TokenBytes) -> dict[str, Any]:
    """Return log-probabilities as chat completions report them: an object for each token."""

    def entry(token: int, value: float | None) -> dict[str, Any]:
        return {"token": texts.name(token), "logprob": _number(value), "bytes": [*texts.of(token)]}

    content = []
    for place, (token, value) in enumerate(zip(scores.tokens, scores.log_probs, strict=True)):
        top = scores.top[place][:n_top] if place < len(scores.top) else []
        content.append({**entry(token, value), "top_logprobs": [entry(*one) for one in top]})
    return {"content": content, "refusal": None}


def as_completion_log_probs(scores: TokenScores, n_top: int, texts: TokenBytes, offset: int = 0) -> dict[str, Any]:
    """Return log-probabilities as completions report them: a list for each kind of value.

    `offset` is the place of the first token in the text, in characters.
    """
    names = [texts.name(token) for token in scores.tokens]
    tops: list[dict[str, float] | None] = []
    offsets, written = [], b""
    for place, token in enumerate(scores.tokens):
        offsets.append(offset + len(written.decode("utf-8", "ignore")))
        written += texts.of(token)
        top = scores.top[place][:n_top] if place < len(scores.top) else []
        found = {texts.name(one): _number(value) or 0.0 for one, value in reversed(top)}
        tops.append(dict(reversed(found.items())) if scores.log_probs[place] is not None else None)
    return {
        "tokens": names,
        "token_logprobs": [_number(value) for value in scores.log_probs],
        "top_logprobs": tops if n_top else None,
        "text_offset": offsets,
    }


def _number(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else LOWEST
