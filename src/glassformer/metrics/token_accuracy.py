"""Mean loss and accuracy of token predictions, and the scores of a unigram baseline."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from glassformer.metrics.scores import Scores

Tokens = np.ndarray[Any, np.dtype[np.int64]]


def score_token_accuracy(loss: float, hits: int, count: int) -> Scores:
    """Return mean loss and accuracy of `count` predictions.

    `loss` is their summed loss, and `hits` the number of predictions whose most likely token is correct.
    """
    if not count:
        raise ValueError("there is nothing to guess: expected at least one text")
    return Scores({"loss": loss / count, "accuracy": 100 * hits / count})


def score_unigram_baseline(seen: Iterable[Tokens], true: Iterable[Tokens], vocab_size: int) -> Scores:
    """Return loss and accuracy of a unigram model on the tokens `true`.

    The model gives each token its relative frequency in `seen`, with add-one smoothing, as its probability. It
    therefore always predicts the most frequent token.
    """
    counts = np.ones(vocab_size)
    for tokens in seen:
        counts += np.bincount(tokens.ravel(), minlength=vocab_size)
    losses, commonest = -np.log(counts / counts.sum()), int(counts.argmax())
    loss, hits, count = 0.0, 0, 0
    for tokens in true:
        loss += float(losses[tokens].sum())
        hits += int((tokens == commonest).sum())
        count += tokens.size
    return score_token_accuracy(loss, hits, count)
