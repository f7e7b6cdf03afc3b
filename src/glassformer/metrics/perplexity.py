"""How well a text was foretold: nats a token, perplexity, bits a byte; and what a compressor would need."""

import lzma
import math
from collections.abc import Sequence

from glassformer.metrics.scores import Scores


def score_surprise(nats: float, n_tokens: int, n_bytes: int, *, by_character: bool = False) -> Scores:
    """`nats` is the negative log-probability of `n_tokens` tokens, which are `n_bytes` bytes of text.

    The text is the one that was predicted, after normalization: what lower-casing removes is neither predicted nor
    counted. Scores of a lower-cased text and of the original one do not compare.

    Bits a byte compare models whatever their tokens are, so they come first; where tokens are characters, nats a
    character do, for that is how such models are compared.
    """
    if n_tokens < 1 or n_bytes < 1:
        raise ValueError("there is no text to score on: expected at least one character")
    loss, bits = nats / n_tokens, nats / math.log(2) / n_bytes
    perplexity = math.exp(min(loss, 700.0))
    if by_character:
        return Scores({"loss": loss, "bits_per_byte": bits, "perplexity": perplexity})
    return Scores({"bits_per_byte": bits, "loss": loss, "perplexity": perplexity})


def compressed_bits(texts: Sequence[str], *, after: Sequence[str] = ()) -> float:
    """Bits a byte that xz at its best needs for these texts; with `after`, for them behind those, which it has seen."""
    text, before = ("\n".join(part).encode() for part in (texts, after))
    if not text:
        raise ValueError("there is no text to compress: expected at least one character")
    seen = _size(before) if before else 0
    return 8 * (_size(before + text) - seen) / len(text)


def _size(text: bytes) -> int:
    return len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
