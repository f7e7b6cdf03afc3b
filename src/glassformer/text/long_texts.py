"""Encode long texts in parts, on all cores, where the tokens of the parts are those of the whole text.

The library encodes each text on one core. Most tokenizers split a text at its spaces before they look for tokens. Such
a text can be cut before any single space between two ASCII letters or digits: no word continues there, and nothing that
is done to a word depends on its neighbors. `cuts_at_spaces` knows the kinds of tokenizers for which this holds. The
others encode a long text as a whole.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import tokenizers
from tokenizers import models

from glassformer.text.word_patterns import CUTS, GPT2_WORDS, LLAMA3_WORDS, QWEN2_WORDS

LONG_TEXT = 10_000
"""Characters from which on one text is encoded as a batch is: without spans, which takes half as long."""
PART = 4_000
"""About how many characters a part of a long text has."""

_PLACE = re.compile(r"(?<=[0-9A-Za-z]) (?=[0-9A-Za-z])")
_NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer")
"""Normalizers that change neither a space between two ASCII letters or digits nor anything across it."""
_WORD_PATTERNS = (GPT2_WORDS, LLAMA3_WORDS, QWEN2_WORDS)
"""Patterns of which no match has a space after a character that is no white space."""
_OTHER_PATTERNS = frozenset(pattern for patterns in CUTS.values() for pattern in patterns) - {*_WORD_PATTERNS}
"""Patterns of which no match has a space."""


class TextEncoder:
    """Encodes texts with a tokenizer of the library, long ones in parts where this changes no token."""

    def __init__(self, inner: tokenizers.Tokenizer):
        self._inner = inner

    @cached_property
    def can_cut(self) -> bool:
        """Whether a long text is encoded in parts. It is found out once, because a tokenizer may add many tokens."""
        try:
            return cuts_at_spaces(self._inner)
        except Exception:  # such as that of a step in Python, which has no description
            return False

    def encode(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        """Return the ids of each text, in parallel, with `special` including the special tokens around a text."""
        found: dict[int, list[int]] = {}
        long = [number for number, text in enumerate(texts) if len(text) >= LONG_TEXT]
        if long and self.can_cut:
            parts = {number: list(_parts_of(texts[number])) for number in long}
            flat = [part for of_text in parts.values() for part in of_text]
            encoded = iter(self._inner.encode_batch_fast(flat, add_special_tokens=False))
            for number, of_text in parts.items():
                ids = self._join([next(encoded) for _ in of_text], special=special)
                if ids is not None:
                    found[number] = ids
        others = [number for number in range(len(texts)) if number not in found]
        whole = self._inner.encode_batch_fast([texts[number] for number in others], add_special_tokens=special)
        found |= {number: encoding.ids for number, encoding in zip(others, whole, strict=True)}
        return [found[number] for number in range(len(texts))]

    def _join(self, parts: Sequence[tokenizers.Encoding], *, special: bool) -> list[int] | None:
        """Return the ids of all parts, with `special` between the special tokens; None if it is not clear where."""
        ids = [index for part in parts for index in part.ids]
        if not special:
            return ids
        one = parts[0]
        around = self._inner.post_process(one, None, True)
        mask = around.special_tokens_mask
        first = mask.index(0) if 0 in mask else 0
        last = first + len(one.ids)
        if not one.ids or around.ids[first:last] != one.ids or mask.count(0) != len(one.ids):
            return None
        return [*around.ids[:first], *ids, *around.ids[last:]]


def cuts_at_spaces(inner: tokenizers.Tokenizer) -> bool:
    """Return whether a text cut before a space between two ASCII letters or digits has the same tokens."""
    if inner.truncation is not None or inner.padding is not None or not all(map(_is_local, _normalizers(inner))):
        return False
    if isinstance(inner.model, models.BPE) and inner.model.dropout:
        return False
    for token in inner.get_added_tokens_decoder().values():  # they are found before the text is split
        contents = [token.content]
        if token.normalized and inner.normalizer is not None:
            contents.append(inner.normalizer.normalize_str(token.content))
        if token.rstrip or any(re.search(r"\s", content) for content in contents):
            return False
    steps = _steps(_state(inner.pre_tokenizer), "pretokenizers")
    while steps and _has_no_space(steps[0]):
        del steps[0]
    return bool(steps) and _splits_at_spaces(steps[0]) and all(map(_keeps_words_apart, steps[1:]))


def _parts_of(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start >= 2 * PART:
        cut = _PLACE.search(text, start + PART)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def _state(part: Any) -> dict[str, Any]:
    """Return a part of a tokenizer as `tokenizer.json` describes it; an empty dictionary if there is none."""
    return {} if part is None else json.loads(part.__getstate__())


def _steps(state: dict[str, Any], name: str) -> list[dict[str, Any]]:
    if state.get("type") == "Sequence":
        return [step for part in state[name] for step in _steps(part, name)]
    return [state] if state else []


def _normalizers(inner: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    return _steps(_state(inner.normalizer), "normalizers")


def _is_local(step: dict[str, Any]) -> bool:
    return step["type"] in _NORMALIZERS


def _pattern(step: dict[str, Any]) -> str | None:
    """Return the pattern of a step that makes each match a word; None for another step."""
    is_plain = step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"]
    found: str | None = step["pattern"].get("Regex") if is_plain else None
    return found


def _has_no_space(step: dict[str, Any]) -> bool:
    """Return whether a step looks for characters other than spaces, and does nothing to a space."""
    return step["type"] in ("Digits", "Punctuation") or _pattern(step) in _OTHER_PATTERNS


def _splits_at_spaces(step: dict[str, Any]) -> bool:
    if step["type"] == "ByteLevel":
        return bool(step.get("use_regex", True))
    if step["type"] == "Metaspace":
        return bool(step.get("split", True))
    return step["type"] in ("WhitespaceSplit", "Whitespace", "BertPreTokenizer") or _pattern(step) in _WORD_PATTERNS


def _keeps_words_apart(step: dict[str, Any]) -> bool:
    """Return whether what a step does to a word does not depend on the word's place in the text."""
    return step["type"] == "ByteLevel" or _has_no_space(step) or _pattern(step) in _WORD_PATTERNS
