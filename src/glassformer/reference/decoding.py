"""Greedy and beam search.

Both take a function `next_log_probs`, which returns the log-probabilities (N, V) of the next token after each of N
prefixes (N, T), so they work with any model. Nothing is cached: this is slow, but easy to verify.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from glassformer.reference.attention import log_softmax
from glassformer.reference.models import DecoderModel, EncoderDecoderModel
from glassformer.reference.parameters import Array

NextLogProbs = Callable[[Array], Array]


class Hypothesis(NamedTuple):
    """A finished hypothesis: the generated tokens, without the prefix, and the score that the search gave it."""

    tokens: list[int]
    score: float


def continues(model: DecoderModel) -> NextLogProbs:
    """Return the function `next_log_probs` of a decoder-only model, for `greedy` and `beam_search`."""
    return lambda prefixes: log_softmax(model.forward(prefixes)[:, -1])


def translates(model: EncoderDecoderModel, source: Array) -> NextLogProbs:
    """Return the function `next_log_probs` of an encoder-decoder for one source sentence of token ids (S,)."""

    def next_log_probs(prefixes: Array) -> Array:
        sources = np.broadcast_to(source, (len(prefixes), len(source)))
        return log_softmax(model.forward(sources, prefixes)[:, -1])

    return next_log_probs


def greedy(next_log_probs: NextLogProbs, begin: list[int], end: int, max_new: int) -> Hypothesis:
    """Generate the most probable token at each step after the prefix `begin`, until `end` or `max_new` tokens.

    The score of the returned hypothesis is the sum of its tokens' log-probabilities.
    """
    tokens: list[int] = []
    score = 0.0
    for _ in range(max_new):
        log_probs = next_log_probs(np.array([begin + tokens]))[0]
        best = int(log_probs.argmax())
        tokens.append(best)
        score += float(log_probs[best])
        if best == end:
            break
    return Hypothesis(tokens, score)


def beam_search(
    next_log_probs: NextLogProbs, begin: list[int], end: int, max_new: int, *, width: int, length_penalty: float = 1.0
) -> list[Hypothesis]:
    """Return up to `width` hypotheses, best first, scored by log-probability / length ** length_penalty.

    Hypotheses follow the prefix `begin` and finish at the token `end` or after `max_new` tokens. Ties between
    candidates go to the higher-ranked beam, then the likelier token, then the lower id. Ties between finished
    hypotheses go to the one that finished earlier, then the higher-ranked one. The search stops when no unfinished
    hypothesis can still enter the result: log-probabilities only decrease, so its score is bounded by its current
    log-probability at the most favorable length.
    """
    alive: list[tuple[list[int], float]] = [([], 0.0)]
    finished: list[Hypothesis] = []
    for length in range(1, max_new + 1):
        log_probs = next_log_probs(np.array([begin + tokens for tokens, _ in alive]))
        totals = np.array([total for _, total in alive])[:, None] + log_probs  # (alive, V)
        rows, tokens_of = np.divmod(np.arange(totals.size), totals.shape[1])
        order = np.lexsort((tokens_of, -log_probs.ravel(), rows, -totals.ravel()))[: 2 * width]
        alive_next: list[tuple[list[int], float]] = []
        for rank, flat in enumerate(order):
            row, token = divmod(int(flat), totals.shape[1])
            tokens, total = alive[row][0] + [token], float(totals[row, token])
            if token == end or length == max_new:
                # A finished candidate ranked below the beam width is dropped, as an unfinished one would be.
                if rank < width:
                    finished.append(Hypothesis(tokens, total / length**length_penalty))
            elif len(alive_next) < width:
                alive_next.append((tokens, total))
        finished = sorted(finished, key=lambda hypothesis: -hypothesis.score)[:width]
        alive = alive_next
        if not alive or _is_decided(alive, finished, length, max_new, width, length_penalty):
            break
    return finished


def _is_decided(
    alive: list[tuple[list[int], float]],
    finished: list[Hypothesis],
    length: int,
    max_new: int,
    width: int,
    length_penalty: float,
) -> bool:
    if len(finished) < width:
        return False
    flattering = max_new if length_penalty > 0 else length + 1
    hope = max(total for _, total in alive) / flattering**length_penalty
    return finished[-1].score >= hope
