"""The bytes of each token of a tokenizer: what a grammar reads, and what log-probabilities report.

A token need not be whole characters: an emoji may take several tokens of one or two bytes each.
"""

import json
import re
from functools import cache
from typing import Any

from glassformer.text import Tokenizer
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer

_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""A token of SentencePiece for one byte, such as <0x0A>."""
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""How SentencePiece writes a space."""


class TokenBytes:
    """The bytes of each token of a tokenizer.

    Special tokens have none: they are no text. Ids of a model beyond its tokenizer's vocabulary have none either.
    """

    def __init__(self, tokenizer: Tokenizer | PretrainedTokenizer):
        inner: Any = tokenizer._inner
        vocab = inner.get_vocab(with_added_tokens=True)
        decoder = json.loads(inner.to_str())["decoder"]
        is_byte_level = '"ByteLevel"' in json.dumps(decoder)
        names = {index: token for token, index in vocab.items()}
        self.special_ids = tokenizer.special_ids
        self._names = dict(enumerate(tokenizer.tokens(range(max(names, default=-1) + 1))))
        self._bytes: dict[int, bytes] = {}
        added = inner.get_added_tokens_decoder()
        for index, token in names.items():
            if index in self.special_ids:
                continue
            if index in added:  # written as it is, whatever the decoder
                self._bytes[index] = self._names[index].encode()
            elif is_byte_level:
                self._bytes[index] = bytes(_byte_of().get(character, 0x3F) for character in token)
            elif match := _BYTE.fullmatch(token):
                self._bytes[index] = bytes([int(match[1], 16)])
            else:
                self._bytes[index] = token.replace(_SPACE, " ").encode()

    def of(self, token: int) -> bytes:
        """Return the bytes of a token; none for a special token."""
        return self._bytes.get(token, b"")

    def name(self, token: int) -> str:
        """Return a token as text, for display: special tokens by their names, and incomplete characters as U+FFFD."""
        if token in self.special_ids or token not in self._bytes:
            return self._names.get(token, f"<{token}>")
        return self._bytes[token].decode("utf-8", "replace")


@cache
def _byte_of() -> dict[str, int]:
    """Return the byte for each character of a byte-level vocabulary, as in GPT-2's.

    Printable characters stand for themselves. The other bytes, in order, are the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    return table | {chr(0x100 + place): byte for place, byte in enumerate(others)}
