"""Perplexity and bits per byte of a text, and the bits per byte that a compressor (xz) needs, for comparison."""

import lzma
import math
from collections.abc import Sequence

from glassformer.metrics.scores import Scores


def score_perplexity(nats: float, n_tokens: int, n_bytes: int, *, by_character: bool = False) -> Scores:
    """Return bits per byte, loss (nats per token) and perplexity of a text.

    `nats` is the text's negative log-likelihood. `n_tokens` and `n_bytes` are its size after the tokenizer's
    normalization. If that changes the text, for example to lower case, the scores are not comparable with scores on
    the original text. The first score is the main one: bits per byte, which are comparable between tokenizers, or with
    `by_character` the loss, as is usual for character models.
    """
    if n_tokens < 1 or n_bytes < 1:
        raise ValueError("there is no text to score on: expected at least one character")
    loss, bits = nats / n_tokens, nats / math.log(2) / n_bytes
    perplexity = math.exp(min(loss, 700.0))
    if by_character:
        return Scores({"loss": loss, "bits_per_byte": bits, "perplexity": perplexity})
    return Scores({"bits_per_byte": bits, "loss": loss, "perplexity": perplexity})


def compressed_bits(texts: Sequence[str], *, after: Sequence[str] = ()) -> float:
    """Return the bits per byte that xz needs to compress `texts` after it has seen the texts `after`.

    It is the size of `after` and `texts` compressed together, less that of `after` alone, per byte of `texts`. xz runs
    at its highest level.
    """
    text, before = ("\n".join(part).encode() for part in (texts, after))
    if not text:
        raise ValueError("there is no text to compress: expected at least one character")
    seen = _size(before) if before else 0
    return 8 * (_size(before + text) - seen) / len(text)


def _size(text: bytes) -> int:
    return len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
