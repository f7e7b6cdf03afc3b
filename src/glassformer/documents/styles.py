"""What each document's blocks are made of, as config values, and masks as the documents pass them."""

from typing import Any

from torch import Tensor

from glassformer.nn import as_mask

PAPER: dict[str, Any] = {"norm": "layer", "norm_eps": 1e-5, "norm_placement": "post", "activation": "relu"}
"""Documents 000 and 001: the paper's post-norm, torch's layer norm, ReLU."""

PRE_NORM: dict[str, Any] = {"norm": "mean_std", "norm_eps": 1e-6, "norm_placement": "pre", "activation": "relu"}
"""Document 002: pre-norm with the mean/std norm, ReLU."""

MODERN: dict[str, Any] = {"norm": "mean_std", "norm_eps": 1e-6, "norm_placement": "pre", "activation": "gelu"}
"""Document 003: as 002, with GELU."""


def document_mask(name: str, mask: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    """A mask of 1/0 or True/False that broadcasts to `shape`, (batch, 1, query, key), as booleans, four-dimensional."""
    if mask is None:
        return None
    allowed = as_mask(name, mask)
    if allowed.dim() == 2:
        allowed = allowed[None, None]  # (query, key), the same for every sentence
    fits = allowed.dim() == 4 and all(size in (1, full) for size, full in zip(allowed.shape, shape, strict=True))
    if not fits:
        hint = f"; (batch, key) is written {name}[:, None, None, :]" if mask.dim() == 2 else ""
        raise ValueError(f"{name} has shape {tuple(mask.shape)}: expected one that broadcasts to {shape}{hint}")
    return allowed


def flat_mask(mask: Tensor | None) -> Tensor | None:
    """(batch, 1, 1, length) as (batch, length), which is what 003's complete models take; others as they are."""
    return mask[:, 0, 0] if mask is not None and mask.dim() == 4 and mask.shape[1:3] == (1, 1) else mask
