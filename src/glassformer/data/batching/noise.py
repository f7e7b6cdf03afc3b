"""Denoising objectives: masked tokens (BERT), span corruption (T5), text infilling and sentence permutation (BART).

All randomness comes from the argument `random`. The argument `ids` holds no special tokens, so that these are never
hidden or moved. `share` is the share of the tokens to hide, and `mean_span` the mean length of hidden spans.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from glassformer.data.batching.data_order import Numbers

Noise = Callable[[Numbers, np.random.Generator], "Noised"]
"""A function that corrupts the tokens of one text, with a random generator."""


class Noised(NamedTuple):
    """A training example of a denoising model: the corrupted text as input (`source`), and the output (`target`)."""

    source: Numbers
    target: Numbers


class Masked(NamedTuple):
    """A text in which some tokens are hidden, for masked language modeling."""

    shown: Numbers
    """The input tokens, as many as the text has."""
    places: Numbers
    """The positions to predict, ascending. At some of them `shown` has the original token."""
    answers: Numbers
    """The original tokens at `places`."""


def random_of(*numbers: int) -> np.random.Generator:
    """Return a random generator seeded by these numbers, such as seed, epoch and row."""
    return np.random.default_rng(numbers)


def hidden_count(length: int | Numbers, share: float) -> Numbers:
    """Return the number of tokens to hide: `share` of the length, rounded, at least one unless the text is empty."""
    length = np.asarray(length, dtype=np.int64)
    return np.minimum(np.maximum(np.rint(length * share).astype(np.int64), 1), length)


def mask_tokens(ids: Numbers, random: np.random.Generator, *, share: float, mask: int, words: Numbers) -> Masked:
    """Choose tokens to predict and hide them, for masked language modeling (Devlin et al. 2019).

    Of the chosen tokens 80 % are replaced by the id `mask`, 10 % by a random one of the ids `words`, and 10 % stay, so
    that the model cannot rely on the tokens that it sees.
    """
    places = np.sort(random.permutation(len(ids))[: int(hidden_count(len(ids), share))])
    chance = random.random(len(places))
    shown = ids.copy()
    shown[places[chance < 0.8]] = mask
    swapped = places[chance >= 0.9]
    shown[swapped] = random.choice(words, size=len(swapped))
    return Masked(shown, places, ids[places])


def span_counts(length: int | Numbers, share: float, mean_span: float) -> tuple[Numbers, Numbers]:
    """Return how many tokens of a text of this length `hide_spans` hides, and in how many spans.

    At least one visible token precedes each span. A text of one token is hidden whole.
    """
    hidden = hidden_count(length, share)
    length = np.asarray(length, dtype=np.int64)
    hidden = np.where(length > 1, np.minimum(hidden, length - 1), length)
    spans = np.maximum(np.rint(hidden / mean_span).astype(np.int64), 1)
    return hidden, np.minimum(np.minimum(spans, hidden), np.maximum(length - hidden, 1))


def hide_spans(
    ids: Numbers, random: np.random.Generator, *, share: float, mean_span: float, sentinels: Sequence[int]
) -> Noised:
    """Hide random spans of a text: T5's span corruption (Raffel et al. 2020).

    In the source, a sentinel replaces each hidden span. The target lists each sentinel followed by its span, and ends
    with one more sentinel. `sentinels` are the ids to use, in order.
    """
    hidden, spans = (int(count) for count in span_counts(len(ids), share, mean_span))
    if len(sentinels) <= spans:
        raise ValueError(f"{len(sentinels)} sentinels for {spans} spans: expected one more than spans")
    # Visible and hidden parts alternate, starting with a visible one.
    kept_parts, hidden_parts = _cut(len(ids) - hidden, spans, random), _cut(hidden, spans, random)
    source: list[Numbers] = []
    target: list[Numbers] = []
    place = 0
    for sentinel, kept, gone in zip(sentinels, kept_parts, hidden_parts, strict=False):
        source += [ids[place : place + kept], np.array([sentinel])]
        target += [np.array([sentinel]), ids[place + kept : place + kept + gone]]
        place += kept + gone
    return Noised(np.concatenate(source), np.concatenate([*target, np.array([sentinels[spans]])]))


def fill_spans(source: Sequence[int], target: Sequence[int], sentinels: Sequence[int]) -> list[int]:
    """Undo `hide_spans`: return the source with each sentinel replaced by the tokens that follow it in the target."""
    spans = written_spans(target, sentinels)
    return [found for token in source for found in spans.get(token, [token])]


def written_spans(target: Sequence[int], sentinels: Sequence[int]) -> dict[int, list[int]]:
    """Map each sentinel to the tokens that follow it in the target; to an empty list if it does not occur."""
    spans: dict[int, list[int]] = {sentinel: [] for sentinel in sentinels}
    current: list[int] = []
    for token in target:
        if token in spans:
            current = spans[token]
        else:
            current.append(token)
    return spans


def infill(ids: Numbers, random: np.random.Generator, *, share: float, mean_span: float, mask: int) -> Numbers:
    """Return the text with random spans replaced by one `mask` each: BART's text infilling (Lewis et al. 2020).

    Span lengths are Poisson distributed and may be 0. Exactly `hidden_count` tokens are hidden, and the result is not
    longer than the text.
    """
    hidden = int(hidden_count(len(ids), share))
    lengths: list[int] = []
    while (left := hidden - sum(lengths)) > 0:
        lengths.append(min(int(random.poisson(mean_span)), left))
    while len(lengths) > hidden:
        lengths.remove(0)
    shown = len(ids) - hidden + len(lengths)
    is_mask = np.zeros(shown, dtype=bool)
    is_mask[random.permutation(shown)[: len(lengths)]] = True
    # Position in the original text at each output position: a mask skips all tokens that it hides.
    steps = np.ones(shown, dtype=np.int64)
    steps[is_mask] = lengths
    places = np.cumsum(steps) - steps
    return np.where(is_mask, mask, ids[np.minimum(places, len(ids) - 1)]) if len(ids) else ids


def shuffle_sentences(ids: Numbers, random: np.random.Generator, *, stops: Numbers) -> Numbers:
    """Return the text with its sentences in random order: BART's sentence permutation (Lewis et al. 2020).

    A sentence ends with one of the token ids `stops`, or with the text.
    """
    ends = np.flatnonzero(np.isin(ids, stops)) + 1
    sentences = [part for part in np.split(ids, ends) if len(part)]
    return np.concatenate([sentences[index] for index in random.permutation(len(sentences))]) if sentences else ids


def _cut(total: int, parts: int, random: np.random.Generator) -> list[int]:
    """Return `parts` random span lengths of at least 1, whose sum is `total`. For a `total` of 0, return [0]."""
    cuts = np.sort(random.permutation(max(total - 1, 0))[: parts - 1]) + 1
    return [int(size) for size in np.diff([0, *cuts, total])]
