"""Denoising objectives: masked tokens (BERT), span corruption (T5), text infilling and sentence permutation (BART).

All randomness comes from the `random` argument. The functions get tokens without special tokens, so that these are
never hidden or moved.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from glassformer.data.batching.data_order import Numbers

Noise = Callable[[Numbers, np.random.Generator], "Noised"]
"""A function that corrupts the tokens of one text."""


class Noised(NamedTuple):
    """A corrupted text: the model's input and its target."""

    source: Numbers
    target: Numbers


class Masked(NamedTuple):
    """A text with masked tokens."""

    shown: Numbers
    """The input tokens, as many as the text has."""
    places: Numbers
    """The positions to predict, ascending. Some of them are shown unchanged."""
    answers: Numbers
    """The original tokens at `places`."""


def random_of(*numbers: int) -> np.random.Generator:
    """Return a random generator seeded by these numbers, such as seed, epoch and row."""
    return np.random.default_rng(numbers)


def hidden_count(length: int | Numbers, share: float) -> Numbers:
    """Return the number of tokens to hide: a share of the length, at least one unless the text is empty."""
    length = np.asarray(length, dtype=np.int64)
    return np.minimum(np.maximum(np.rint(length * share).astype(np.int64), 1), length)


def mask_tokens(ids: Numbers, random: np.random.Generator, *, share: float, mask: int, words: Numbers) -> Masked:
    """Masked language modeling (Devlin et al. 2019).

    Of the chosen tokens 80 % are replaced by `mask`, 10 % by a random one of `words`, and 10 % stay, so that the model
    cannot rely on the shown token.
    """
    places = np.sort(random.permutation(len(ids))[: int(hidden_count(len(ids), share))])
    chance = random.random(len(places))
    shown = ids.copy()
    shown[places[chance < 0.8]] = mask
    swapped = places[chance >= 0.9]
    shown[swapped] = random.choice(words, size=len(swapped))
    return Masked(shown, places, ids[places])


def span_counts(length: int | Numbers, share: float, mean_span: float) -> tuple[Numbers, Numbers]:
    """Return how many tokens T5's objective hides, and in how many spans.

    Both depend on the length only. At least one visible token precedes each span; a text of one token is hidden whole.
    """
    hidden = hidden_count(length, share)
    length = np.asarray(length, dtype=np.int64)
    hidden = np.where(length > 1, np.minimum(hidden, length - 1), length)
    spans = np.maximum(np.rint(hidden / mean_span).astype(np.int64), 1)
    return hidden, np.minimum(np.minimum(spans, hidden), np.maximum(length - hidden, 1))


def hide_spans(
    ids: Numbers, random: np.random.Generator, *, share: float, mean_span: float, sentinels: Sequence[int]
) -> Noised:
    """Span corruption (Raffel et al. 2020).

    The input has one sentinel for each hidden span. The target lists each sentinel followed by its span, and ends with
    one more sentinel.
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
    """Undo `hide_spans`: replace each sentinel of the input by the tokens that the target gives for it."""
    spans = written_spans(target, sentinels)
    return [found for token in source for found in spans.get(token, [token])]


def written_spans(target: Sequence[int], sentinels: Sequence[int]) -> dict[int, list[int]]:
    """Return the tokens that follow each sentinel in the target, in sentinel order; empty for an absent sentinel."""
    spans: dict[int, list[int]] = {sentinel: [] for sentinel in sentinels}
    current: list[int] = []
    for token in target:
        if token in spans:
            current = spans[token]
        else:
            current.append(token)
    return spans


def infill(ids: Numbers, random: np.random.Generator, *, share: float, mean_span: float, mask: int) -> Numbers:
    """Text infilling (Lewis et al. 2020): replace spans of random length by one `mask` each.

    Span lengths are Poisson distributed and may be 0. The number of hidden tokens is exact, and the result is no longer
    than the text.
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
    """Sentence permutation (Lewis et al. 2020): shuffle the sentences. Each ends with one of `stops`."""
    ends = np.flatnonzero(np.isin(ids, stops)) + 1
    sentences = [part for part in np.split(ids, ends) if len(part)]
    return np.concatenate([sentences[index] for index in random.permutation(len(sentences))]) if sentences else ids


def _cut(total: int, parts: int, random: np.random.Generator) -> list[int]:
    """Split `total` into `parts` random summands, each at least 1 if `total` allows."""
    cuts = np.sort(random.permutation(max(total - 1, 0))[: parts - 1]) + 1
    return [int(size) for size in np.diff([0, *cuts, total])]
