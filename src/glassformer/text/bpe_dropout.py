"""BPE-dropout (Provilkov et al. 2020): a word is segmented differently each time, so that a model learns its parts.

At every step of segmenting a word, each possible merge is skipped with some probability, and the best of the others is
applied. Segmentation ends when a step skips all merges or none is possible. The random numbers of the `tokenizers`
library cannot be seeded. Those of this module depend on the seed, a version number and the text, but not on the order
in which texts are encoded.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from hashlib import shake_128
from heapq import heapify, heappop, heappush
from itertools import pairwise
from random import Random
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers

from glassformer.text.tokenizer import Tokenizer

POOL = 8
"""Number of random segmentations per word. With a fixed pool, the segmentations of frequent words can be cached."""
REMEMBERED = 2**18
"""Size of each cache. An evicted segmentation is drawn again with the same result."""
SHORT = 32
"""Maximum length in characters of a text whose split into words is cached: words recur, sentences do not."""


class BpeDropout:
    """Encodes texts with a tokenizer's vocabulary, but segments the words at random.

    `chance` is the probability that a merge is skipped; the paper uses 0.1. With 0, words are segmented as the
    tokenizer does, and with 1 into single bytes. All segmentations of a text decode to the same text.
    """

    def __init__(self, tokenizer: Tokenizer, chance: float, seed: int = 0):
        if isinstance(chance, bool) or not isinstance(chance, int | float) or not 0 <= chance <= 1:
            raise ValueError(f"chance={chance!r}: expected a probability, from 0 to 1")
        contents = tokenizer.to_json()
        vocab, merges = _read(json.loads(contents))
        self._inner = tokenizers.Tokenizer.from_str(contents)
        self._letters = {letter: vocab[letter] for letter in pre_tokenizers.ByteLevel.alphabet()}
        # (left id, right id) -> (rank of the merge, id of the result).
        self._merges = {
            (vocab[left], vocab[right]): (rank, vocab[left + right]) for rank, (left, right) in enumerate(merges)
        }
        self._chance, self._seed = chance, seed
        self._cut = lru_cache(REMEMBERED)(self._draw_cut)
        self._remembered_words = lru_cache(REMEMBERED)(self._words)

    def encode_batch(self, texts: Sequence[str], version: int) -> list[list[int]]:
        """Return the ids of each text, without BEGIN and END. Another `version` gives other random segmentations."""
        return [self._encode(text, version) for text in texts]

    def _encode(self, text: str, version: int) -> list[int]:
        words = self._remembered_words(text) if len(text) <= SHORT else self._words(text)
        # one random byte per word of the text
        choices = shake_128(f"{self._seed} {version} {text}".encode()).digest(len(words))
        return [token for word, choice in zip(words, choices, strict=True) for token in self._cut(word, choice % POOL)]

    def _words(self, text: str) -> list[str]:
        """Split a text into words as the tokenizer does. Merges never cross words.

        In the result, each letter stands for one byte of the word.
        """
        if self._inner.normalizer is not None:
            text = self._inner.normalizer.normalize_str(text)
        return [word for word, _ in self._inner.pre_tokenizer.pre_tokenize_str(text)]

    def _draw_cut(self, word: str, choice: int) -> tuple[int, ...]:
        """Return one of the word's POOL random segmentations as token ids. `choice` selects it, from 0 to POOL - 1."""
        draw = Random(f"{self._seed} {choice} {word}").random
        # A ring closed by an empty position. No merge contains -1, so the ends need no special case.
        pieces = [*(self._letters[letter] for letter in word), -1]
        before, after = list(range(-1, len(word))), [*range(1, len(word) + 1), 0]
        waiting = [(*self._merges[pair], i) for i, pair in enumerate(pairwise(pieces)) if pair in self._merges]
        heapify(waiting)
        skipped = []
        while waiting:
            candidate = rank, whole, place = heappop(waiting)
            gone = after[place]
            if self._merges.get((pieces[place], pieces[gone])) != (rank, whole):
                continue  # an earlier merge used one of the two
            if draw() < self._chance:
                skipped.append(candidate)
                continue
            pieces[place], pieces[gone] = whole, -1
            after[place] = after[gone]
            before[after[place]] = place
            for left in (before[place], place):
                if merge := self._merges.get((pieces[left], pieces[after[left]])):
                    heappush(waiting, (*merge, left))
            # Merges skipped in this step are candidates again in the next.
            for candidate in skipped:
                heappush(waiting, candidate)
            skipped.clear()
        return tuple(piece for piece in pieces if piece >= 0)


def _read(contents: dict[str, Any]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the vocabulary of a parsed `tokenizer.json`, and its merges in the order in which they were learned.

    Raises ValueError for a tokenizer that BPE-dropout does not support.
    """
    model = contents["model"]
    if model["type"] != "BPE":
        raise ValueError(
            f"BPE-dropout skips merges, and a {model['type'].lower()} tokenizer has none: "
            'train one with TokenizerConfig(kind="bpe"), or do without dropout'
        )
    # A tokenizer of another library may pre-tokenize in ways that are not implemented here.
    strange = [name for name, value in model.items() if value and name not in ("type", "vocab", "merges")]
    strange += [name for name in ("truncation", "padding") if contents[name]]
    strange += [token["content"] for token in contents["added_tokens"] if not token["special"]]
    if (contents["pre_tokenizer"] or {}).get("type") != "ByteLevel":
        strange.append("pre_tokenizer")
    if strange:
        raise ValueError(f"the tokenizer has its own {', '.join(strange)}: expected one made by Tokenizer.train")
    return model["vocab"], model["merges"]
