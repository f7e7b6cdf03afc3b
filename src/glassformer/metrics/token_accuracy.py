"""How well tokens are guessed: mean loss and accuracy; and what somebody scores who knows only how common each is."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from glassformer.metrics.scores import Scores

Tokens = np.ndarray[Any, np.dtype[np.int64]]


def score_guesses(loss: float, hits: int, count: int) -> Scores:
    """Of the sum of losses, and how often the likeliest token was the right one."""
    if not count:
        raise ValueError("there is nothing to guess: expected at least one text")
    return Scores({"loss": loss / count, "accuracy": 100 * hits / count})


def score_commonest(seen: Iterable[Tokens], true: Iterable[Tokens], vocab_size: int) -> Scores:
    """Of always guessing the commonest token; the loss is that of all tokens' shares, each counted once more."""
    counts = np.ones(vocab_size)
    for tokens in seen:
        counts += np.bincount(tokens.ravel(), minlength=vocab_size)
    losses, commonest = -np.log(counts / counts.sum()), int(counts.argmax())
    loss, hits, count = 0.0, 0, 0
    for tokens in true:
        loss += float(losses[tokens].sum())
        hits += int((tokens == commonest).sum())
        count += tokens.size
    return score_guesses(loss, hits, count)
