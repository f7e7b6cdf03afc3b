"""BPE-dropout (Provilkov et al. 2020): a word is cut in other ways as it is seen again, so a model learns its parts.

At every step of cutting a word, each merge that could be made is skipped with some chance; the best one left is made,
and a step that skips all of them is the last. The draws of the `tokenizers` library cannot be seeded. Here they are a
function of the seed, the version (think epoch) and the text: the order in which texts are encoded, and what was encoded
before, change nothing.
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
"""Random cuts to choose among for each word. No more are ever drawn, so that common words cost a look-up."""
REMEMBERED = 2**18
"""Cuts kept in memory. One that was forgotten is drawn again and comes out the same."""
SHORT = 32
"""Characters of the longest text whose split is kept too: single words come again, sentences do not."""


class BpeDropout:
    """Text to ids of the same vocabulary, in smaller pieces than the tokenizer's own, by chance.

    `chance` is how likely each merge is skipped at each step: 0 cuts as the tokenizer does, 1 into single bytes, 0.1 is
    the paper's. The ids decode to the same text as the tokenizer's own.
    """

    def __init__(self, tokenizer: Tokenizer, chance: float, seed: int = 0):
        if isinstance(chance, bool) or not isinstance(chance, int | float) or not 0 <= chance <= 1:
            raise ValueError(f"chance={chance!r}: expected a probability, from 0 to 1")
        contents = tokenizer.to_json()
        vocab, merges = _read(json.loads(contents))
        self._inner = tokenizers.Tokenizer.from_str(contents)
        self._letters = {letter: vocab[letter] for letter in pre_tokenizers.ByteLevel.alphabet()}
        # Two ids side by side -> how early their merge was learnt, and the id of the whole.
        self._merges = {
            (vocab[left], vocab[right]): (rank, vocab[left + right]) for rank, (left, right) in enumerate(merges)
        }
        self._chance, self._seed = chance, seed
        self._cut = lru_cache(REMEMBERED)(self._draw_cut)
        self._remembered_words = lru_cache(REMEMBERED)(self._words)

    def encode_batch(self, texts: Sequence[str], version: int) -> list[list[int]]:
        """The ids of many texts, without BEGIN or END. Another version cuts them in another way."""
        return [self._encode(text, version) for text in texts]

    def _encode(self, text: str, version: int) -> list[int]:
        words = self._remembered_words(text) if len(text) <= SHORT else self._words(text)
        # One byte for each place in the text.
        choices = shake_128(f"{self._seed} {version} {text}".encode()).digest(len(words))
        return [token for word, choice in zip(words, choices, strict=True) for token in self._cut(word, choice % POOL)]

    def _words(self, text: str) -> list[str]:
        """The tokenizer's own first split, a letter for each byte: no merge reaches over its borders."""
        if self._inner.normalizer is not None:
            text = self._inner.normalizer.normalize_str(text)
        return [word for word, _ in self._inner.pre_tokenizer.pre_tokenize_str(text)]

    def _draw_cut(self, word: str, choice: int) -> tuple[int, ...]:
        """Cut number `choice` of the word's pool."""
        draw = Random(f"{self._seed} {choice} {word}").random
        # A ring, closed by a place that holds no piece: no merge knows -1, so the ends need no care.
        pieces = [*(self._letters[letter] for letter in word), -1]
        before, after = list(range(-1, len(word))), [*range(1, len(word) + 1), 0]
        waiting = [(*self._merges[pair], i) for i, pair in enumerate(pairwise(pieces)) if pair in self._merges]
        heapify(waiting)
        skipped = []
        while waiting:
            candidate = rank, whole, place = heappop(waiting)
            gone = after[place]
            if self._merges.get((pieces[place], pieces[gone])) != (rank, whole):
                continue  # an earlier merge took one of the two
            if draw() < self._chance:
                skipped.append(candidate)
                continue
            pieces[place], pieces[gone] = whole, -1
            after[place] = after[gone]
            before[after[place]] = place
            for left in (before[place], place):
                if merge := self._merges.get((pieces[left], pieces[after[left]])):
                    heappush(waiting, (*merge, left))
            # What was skipped in this step may be made in the next.
            for candidate in skipped:
                heappush(waiting, candidate)
            skipped.clear()
        return tuple(piece for piece in pieces if piece >= 0)


def _read(contents: dict[str, Any]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The vocabulary and the merges of `tokenizer.json`, the earliest learnt first."""
    model = contents["model"]
    if model["type"] != "BPE":
        raise ValueError(
            f"BPE-dropout skips merges, and a {model['type'].lower()} tokenizer has none: "
            'train one with TokenizerConfig(kind="bpe"), or do without dropout'
        )
    # A file from elsewhere may cut words by rules that are not followed here.
    strange = [name for name, value in model.items() if value and name not in ("type", "vocab", "merges")]
    strange += [name for name in ("truncation", "padding") if contents[name]]
    strange += [token["content"] for token in contents["added_tokens"] if not token["special"]]
    if (contents["pre_tokenizer"] or {}).get("type") != "ByteLevel":
        strange.append("pre_tokenizer")
    if strange:
        raise ValueError(f"the tokenizer has its own {', '.join(strange)}: expected one made by Tokenizer.train")
    return model["vocab"], model["merges"]
