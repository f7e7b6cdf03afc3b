"""Decode tokens as they come: complete characters only, holding back what may be the start of a stop string."""

from collections.abc import Sequence
from typing import Protocol

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""Incomplete UTF-8 bytes decode to this character."""


class Decodes(Protocol):
    """The interface of a tokenizer that turns token ids into text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of these ids."""


def decode_after(tokenizer: Decodes, before: Sequence[int], ids: Sequence[int]) -> str:
    """Return the text that `ids` add to the text of the tokens `before` them.

    Some tokenizers, such as that of Llama, leave out the space before the first word of a text. So a continuation that
    is decoded alone would be joined to the last word of its prompt.
    """
    if not before:
        return tokenizer.decode(ids)
    return tokenizer.decode([*before, *ids])[len(tokenizer.decode(before)) :]


class TextStream:
    """Incremental decoder: `push` tokens and get the text that is now final; `finish` returns the rest.

    The pieces together are the text of all tokens, or the text before the first stop string. `before` are the last
    tokens of the text that these tokens continue (see `decode_after`).
    """

    def __init__(self, tokenizer: Decodes, stop_strings: Sequence[str] = (), *, before: Sequence[int] = ()):
        self.tokenizer = tokenizer
        self.stop_strings = tuple(stop_strings)
        self.is_stopped = False
        self._last = list(before)  # the tokens of the last piece; how later ones decode may depend on them
        self._new: list[int] = []
        self._pending = ""  # final text that may be the start of a stop string

    def push(self, *tokens: int) -> str:
        """Add tokens and return the text that has become final. With stop strings, add one token at a time."""
        if self.is_stopped or not tokens:
            return ""
        n_before = len(self._new)
        self._new += tokens
        piece = self._piece()
        if piece.endswith(UNFINISHED) and len(tokens) > 1:
            self._new = self._new[:n_before]
            return "".join(map(self.push, tokens))  # up to the last complete character
        if piece.endswith(UNFINISHED):
            return ""
        self._last, self._new = self._new, []
        return self._release(piece)

    def finish(self) -> str:
        """Return the text that was held back. Call it after the last token."""
        if self.is_stopped:
            return ""
        text = self._release(self._piece() if self._new else "")
        self._new = []
        rest, self._pending = self._pending, ""
        return text + rest

    def _piece(self) -> str:
        """Decode the tokens that came since the last returned piece of text, and return the text they add."""
        return decode_after(self.tokenizer, self._last, self._new)

    def _release(self, piece: str) -> str:
        text = self._pending + piece
        places = [place for stop in self.stop_strings if (place := text.find(stop)) >= 0]
        if places:
            self.is_stopped = True
            self._pending = ""
            return text[: min(places)]
        held = max((_overlap(text, stop) for stop in self.stop_strings), default=0)
        self._pending = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """Return how many of the last characters of `text` are the start of the stop string."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[len(text) - size :]):
            return size
    return 0
