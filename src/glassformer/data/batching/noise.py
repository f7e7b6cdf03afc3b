"""Texts with something missing, for a model to learn what belongs there. What is missing is up to `random` alone.

All of them read the tokens of a text without special ones, so that none of these is ever hidden or moved.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from glassformer.data.batching.batch_plan import Numbers

Noise = Callable[[Numbers, np.random.Generator], "Noised"]
"""What is read of a text, and what should be written."""


class Noised(NamedTuple):
    """What a model reads, and what it should write."""

    source: Numbers
    target: Numbers


class Masked(NamedTuple):
    """A text with some of its tokens hidden."""

    shown: Numbers
    """As long as the text."""
    places: Numbers
    """Where something is hidden, or only asked for, from left to right."""
    answers: Numbers
    """What stood there."""


def random_of(*numbers: int) -> np.random.Generator:
    """Chance that is a function of these numbers: the seed, the epoch, the row."""
    return np.random.default_rng(numbers)


def hidden_count(length: int | Numbers, share: float) -> Numbers:
    """How many tokens of a text are hidden: its share, and at least one of a text that has any."""
    length = np.asarray(length, dtype=np.int64)
    return np.minimum(np.maximum(np.rint(length * share).astype(np.int64), 1), length)


def mask_tokens(ids: Numbers, random: np.random.Generator, *, share: float, mask: int, words: Numbers) -> Masked:
    """BERT's masked words (Devlin et al. 2019): of the tokens that are asked for, 80 % are shown as `mask`, 10 % as any
    of `words`, and 10 % as they are, so that a model cannot trust what it sees."""
    places = np.sort(random.permutation(len(ids))[: int(hidden_count(len(ids), share))])
    chance = random.random(len(places))
    shown = ids.copy()
    shown[places[chance < 0.8]] = mask
    swapped = places[chance >= 0.9]
    shown[swapped] = random.choice(words, size=len(swapped))
    return Masked(shown, places, ids[places])


def span_counts(length: int | Numbers, share: float, mean_span: float) -> tuple[Numbers, Numbers]:
    """How many tokens T5 hides of a text, and in how many spans: a function of its length, so that all is known before.

    A token is left before each span; a text of one token has none to spare, and is hidden whole.
    """
    hidden = hidden_count(length, share)
    length = np.asarray(length, dtype=np.int64)
    hidden = np.where(length > 1, np.minimum(hidden, length - 1), length)
    spans = np.maximum(np.rint(hidden / mean_span).astype(np.int64), 1)
    return hidden, np.minimum(np.minimum(spans, hidden), np.maximum(length - hidden, 1))


def hide_spans(
    ids: Numbers, random: np.random.Generator, *, share: float, mean_span: float, sentinels: Sequence[int]
) -> Noised:
    """T5's span corruption (Raffel et al. 2020): each hidden span is one sentinel in what is read; what is written
    names each sentinel and what it stands for, and ends with one more."""
    hidden, spans = (int(count) for count in span_counts(len(ids), share, mean_span))
    if len(sentinels) <= spans:
        raise ValueError(f"{len(sentinels)} sentinels for {spans} spans: expected one more than spans")
    # Kept and hidden parts take turns, and a kept one comes first.
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
    """`hide_spans` undone: what is read, with each sentinel replaced by what was written for it."""
    spans = written_spans(target, sentinels)
    return [found for token in source for found in spans.get(token, [token])]


def written_spans(target: Sequence[int], sentinels: Sequence[int]) -> dict[int, list[int]]:
    """What was written for each sentinel, in their order; nothing for one that was not named."""
    spans: dict[int, list[int]] = {sentinel: [] for sentinel in sentinels}
    current: list[int] = []
    for token in target:
        if token in spans:
            current = spans[token]
        else:
            current.append(token)
    return spans


def infill(ids: Numbers, random: np.random.Generator, *, share: float, mean_span: float, mask: int) -> Numbers:
    """BART's text infilling (Lewis et al. 2020): spans of random length, some of them empty, are one `mask` each.

    Lengths are Poisson's. As many tokens are hidden as asked for, and what is left is no longer than the text.
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
    # How far into the text each place is: a mask steps over all that it hides.
    steps = np.ones(shown, dtype=np.int64)
    steps[is_mask] = lengths
    places = np.cumsum(steps) - steps
    return np.where(is_mask, mask, ids[np.minimum(places, len(ids) - 1)]) if len(ids) else ids


def shuffle_sentences(ids: Numbers, random: np.random.Generator, *, stops: Numbers) -> Numbers:
    """BART's sentence permutation: the sentences of a text in any order; each ends with one of `stops`."""
    ends = np.flatnonzero(np.isin(ids, stops)) + 1
    sentences = [part for part in np.split(ids, ends) if len(part)]
    return np.concatenate([sentences[index] for index in random.permutation(len(sentences))]) if sentences else ids


def _cut(total: int, parts: int, random: np.random.Generator) -> list[int]:
    """A number as the sum of some, each at least 1 unless there are too few to go round."""
    cuts = np.sort(random.permutation(max(total - 1, 0))[: parts - 1]) + 1
    return [int(size) for size in np.diff([0, *cuts, total])]
