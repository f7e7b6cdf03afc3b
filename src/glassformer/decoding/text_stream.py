"""Tokens to text as they come: whole characters only, and nothing that may still turn out to be a stop string."""

from collections.abc import Sequence
from typing import Protocol

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What bytes that do not yet make a character decode to."""


class Decodes(Protocol):
    """A tokenizer, as far as it is needed here."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these ids."""


class TextStream:
    """Give it tokens with `push`; each answer is the text that has become certain. `finish` gives the rest.

    All answers together are the text of all tokens, however the tokens split its characters; or, where a stop string
    appears, the text before it.
    """

    def __init__(self, tokenizer: Decodes, stop_strings: Sequence[str] = ()):
        self.tokenizer = tokenizer
        self.stop_strings = tuple(stop_strings)
        self.is_stopped = False
        self._told: list[int] = []  # the tokens of the last whole piece: those that follow may depend on them
        self._new: list[int] = []
        self._pending = ""  # certain as text, but perhaps the beginning of a stop string

    def push(self, token: int) -> str:
        """One more token; the text that is certain now and was not before."""
        if self.is_stopped:
            return ""
        self._new.append(token)
        piece = self._piece()
        if piece.endswith(UNFINISHED):
            return ""
        self._told, self._new = self._new, []
        return self._release(piece)

    def finish(self) -> str:
        """The rest: there will be no more tokens."""
        if self.is_stopped:
            return ""
        text = self._release(self._piece() if self._new else "")
        self._new = []
        rest, self._pending = self._pending, ""
        return text + rest

    def _piece(self) -> str:
        """What the new tokens add to those before them."""
        before = self.tokenizer.decode(self._told) if self._told else ""
        return self.tokenizer.decode(self._told + self._new)[len(before) :]

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
    """How many of the last characters of the text could begin the stop string."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[len(text) - size :]):
            return size
    return 0
