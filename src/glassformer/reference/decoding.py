"""Writing, token by token: take the best each time (greedy), or keep the best few sentences (beam).

Both ask a function `next_log_probs` for the log-probabilities (N, V) that follow N prefixes (N, T), so they serve any
model. Everything is computed anew at each step: slow, and plainly right.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from glassformer.reference.attention import log_softmax
from glassformer.reference.models import DecoderModel, EncoderDecoderModel
from glassformer.reference.parameters import Array

NextLogProbs = Callable[[Array], Array]


class Hypothesis(NamedTuple):
    """A finished sentence, its tokens after the beginning, and its score."""

    tokens: list[int]
    score: float


def continues(model: DecoderModel) -> NextLogProbs:
    """What a decoder-only model says comes next."""
    return lambda prefixes: log_softmax(model.forward(prefixes)[:, -1])


def translates(model: EncoderDecoderModel, source: Array) -> NextLogProbs:
    """What an encoder-decoder says comes next, having read one source sentence (S,)."""

    def next_log_probs(prefixes: Array) -> Array:
        sources = np.broadcast_to(source, (len(prefixes), len(source)))
        return log_softmax(model.forward(sources, prefixes)[:, -1])

    return next_log_probs


def greedy(next_log_probs: NextLogProbs, begin: list[int], end: int, max_new: int) -> Hypothesis:
    """The most likely token at each step, until `end` or `max_new` tokens; scored by the sum of log-probabilities."""
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
    """The `width` best sentences found, best first, scored by log-probability / length ** length_penalty.

    Of equal totals the one whose beam ranked higher a step before comes first, then the likelier token, then the lower
    id. Of equal scores the sentence that ended earlier comes first, then the one that ranked higher.

    It stops when no unfinished sentence can still come in: log-probabilities only fall, so the best an unfinished one
    can hope for is to lose nothing more, at the length that flatters it most.
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
                # An ending ranked below the beam's width would not have been alive without ending: it does not count.
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
