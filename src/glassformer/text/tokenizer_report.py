"""Measure how a tokenizer splits texts: tokens per word, bytes per token, unknown pieces, and texts that come back."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from glassformer.text.tokenizer import UNKNOWN, Tokenizer

AnyTokenizer = Tokenizer | PretrainedTokenizer
BATCH = 256
"""The number of texts that are encoded at a time."""


@dataclass(frozen=True, kw_only=True)
class TokenizerReport:
    """The sums over some texts. Tokens are counted without the special tokens around a text."""

    n_texts: int = 0
    n_characters: int = 0
    n_bytes: int = 0
    n_words: int = 0
    """The number of words between white space."""
    n_tokens: int = 0
    n_unknown: int = 0
    """The number of tokens that stand for unknown pieces."""
    n_same: int = 0
    """The number of texts that decoding returns exactly."""
    differing: str | None = None
    """The first text that decoding does not return, or None."""
    decoded: str | None = None
    """What decoding returns instead of `differing`."""

    @property
    def fertility(self) -> float:
        """Return the tokens per word (Rust et al. 2021). A good tokenizer for a language needs few."""
        return self.n_tokens / max(self.n_words, 1)

    @property
    def bytes_per_token(self) -> float:
        """Return the bytes of UTF-8 text per token."""
        return self.n_bytes / max(self.n_tokens, 1)

    @property
    def unknown_rate(self) -> float:
        """Return the share of tokens that are unknown."""
        return self.n_unknown / max(self.n_tokens, 1)

    @property
    def round_trip_rate(self) -> float:
        """Return the share of texts that decoding returns exactly."""
        return self.n_same / max(self.n_texts, 1)

    def to_dict(self) -> dict[str, Any]:
        """Return all sums and rates as plain values, for JSON."""
        rates = ("fertility", "bytes_per_token", "unknown_rate", "round_trip_rate")
        return {**asdict(self), **{name: getattr(self, name) for name in rates}}


def measure_tokenizer(tokenizer: AnyTokenizer, texts: Iterable[str]) -> TokenizerReport:
    """Encode and decode the texts and return the report."""
    unknown = unknown_id(tokenizer)
    sums = dict.fromkeys(("n_texts", "n_characters", "n_bytes", "n_words", "n_tokens", "n_unknown", "n_same"), 0)
    differing = decoded = None
    for batch in _batches(texts):
        for text, ids in zip(batch, encode_plain(tokenizer, batch), strict=True):
            back = tokenizer.decode(ids)
            sums["n_texts"] += 1
            sums["n_characters"] += len(text)
            sums["n_bytes"] += len(text.encode("utf-8", "replace"))
            sums["n_words"] += len(text.split())
            sums["n_tokens"] += len(ids)
            sums["n_unknown"] += 0 if unknown is None else ids.count(unknown)
            sums["n_same"] += back == text
            if back != text and differing is None:
                differing, decoded = text, back
    return TokenizerReport(**sums, differing=differing, decoded=decoded)


def encode_plain(tokenizer: AnyTokenizer, texts: list[str]) -> list[list[int]]:
    """Return the token ids of each text, without special tokens around it."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer.encode_batch(texts)
    return [tokenizer.encode_plain(text) for text in texts]


def unknown_id(tokenizer: AnyTokenizer) -> int | None:
    """Return the id of the token for unknown pieces; None if no text can become it."""
    if isinstance(tokenizer, Tokenizer):
        return UNKNOWN
    unknown = tokenizer.unknown
    # GPT-2 names its end token as the unknown token, but its bytes leave nothing unknown.
    return None if unknown is None or unknown == tokenizer.end else unknown


def longest_tokens(tokenizer: AnyTokenizer, count: int) -> list[tuple[int, str]]:
    """Return the ids and texts of the longest tokens by characters, special tokens excluded; of equals the first."""
    ids = [index for index in range(tokenizer.vocab_size) if index not in tokenizer.special_ids]
    named = zip(ids, tokenizer.tokens(ids), strict=True)
    return sorted(named, key=lambda entry: (-len(entry[1]), entry[0]))[:count]


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    waiting = iter(texts)
    while batch := list(islice(waiting, BATCH)):
        yield batch
