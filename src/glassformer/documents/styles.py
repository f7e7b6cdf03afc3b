"""What each document's blocks are made of, as config values, and masks as the documents pass them."""

from typing import Any

from torch import Tensor

from glassformer.nn import Mask, as_mask

PAPER: dict[str, Any] = {"norm": "layer", "norm_eps": 1e-5, "norm_placement": "post", "activation": "relu"}
"""Documents 000 and 001: the paper's post-norm, torch's layer norm, ReLU."""

PRE_NORM: dict[str, Any] = {"norm": "mean_std", "norm_eps": 1e-6, "norm_placement": "pre", "activation": "relu"}
"""Document 002: pre-norm with the mean/std norm, ReLU."""

MODERN: dict[str, Any] = {"norm": "mean_std", "norm_eps": 1e-6, "norm_placement": "pre", "activation": "gelu"}
"""Document 003: as 002, with GELU."""


def document_mask(name: str, mask: Tensor | None) -> Mask:
    """A mask of 1/0 or True/False that broadcasts to (batch, 1, query, key)."""
    if mask is None:
        return Mask()
    if mask.dim() > 4:
        raise ValueError(
            f"{name} has shape {tuple(mask.shape)}: expected one that broadcasts to (batch, 1, query, key)"
        )
    allowed = as_mask(name, mask)
    while allowed.dim() < 4:
        allowed = allowed[None]
    return Mask(allowed=allowed)


def token_mask(name: str, attention_mask: Tensor | None, tokens: Tensor) -> Tensor | None:
    """An attention mask (batch, length) over tokens, as document 003's complete models take it."""
    if attention_mask is None:
        return None
    if attention_mask.shape != tokens.shape:
        raise ValueError(
            f"{name} has shape {tuple(attention_mask.shape)}: expected {tuple(tokens.shape)}, as the tokens"
        )
    return as_mask(name, attention_mask)
