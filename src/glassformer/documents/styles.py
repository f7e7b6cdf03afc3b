"""The config values of each tutorial document's layers, and the conversion of the masks that the documents pass.

`docs/documents.md` describes the five tutorial documents that this project implements.
"""

from typing import Any

from torch import Tensor

from glassformer.nn import as_mask

PAPER: dict[str, Any] = {"norm": "layer", "norm_eps": 1e-5, "norm_placement": "post", "activation": "relu"}
"""Tutorial documents 000 and 001: post-norm with torch's layer norm, and ReLU, as in the paper."""

PRE_NORM: dict[str, Any] = {"norm": "mean_std", "norm_eps": 1e-6, "norm_placement": "pre", "activation": "relu"}
"""Tutorial document 002: pre-norm with the mean/std norm, and ReLU."""

MODERN: dict[str, Any] = {"norm": "mean_std", "norm_eps": 1e-6, "norm_placement": "pre", "activation": "gelu"}
"""Tutorial document 003: pre-norm with the mean/std norm, and GELU."""


def document_mask(name: str, mask: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    """Convert a tutorial document's mask of 1/0 or True/False to a boolean tensor of four dimensions, or None to None.

    The mask must broadcast to `shape`, which is (batch, 1 or heads, query, key). If it has two dimensions, they are
    query and key, for every sentence. `name` is the name of the argument in error messages.
    """
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
    """Convert a padding mask (batch, 1, 1, length) to (batch, length); return any other mask, or None, unchanged.

    Document 003's complete models accept both shapes.
    """
    return mask[:, 0, 0] if mask is not None and mask.dim() == 4 and mask.shape[1:3] == (1, 1) else mask
