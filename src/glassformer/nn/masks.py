"""Masks as values: who may attend to whom. True always means *may attend*.

A `Mask` stays symbolic (causal, window, padding, segments) until a backend needs the dense tensor, so a plain causal
mask reaches the fast kernel as a flag. Queries are the *last* positions of the keys: with a cache, two new queries
over nine keys stand at positions 7 and 8. Hence one rule serves whole, chunked and one-token-at-a-time forwards.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.kernels.kernel_set import MAX_QUERIES, KernelSet, find_key_end
from glassformer.nn.tensor_checks import check_broadcasts, check_positive, check_shape


@dataclass(frozen=True, kw_only=True, eq=False)
class Mask:
    """The conjunction of everything set here; a fresh `Mask()` lets everybody attend to everybody."""

    causal: bool = False
    """A query sees keys at its own position and before."""
    window: int | None = None
    """A query sees keys less than this many positions away."""
    query_positions: Tensor | None = None
    """(B or 1, T), for the window where positions are not simply 0, 1, 2, ...; set together with `key_positions`."""
    key_positions: Tensor | None = None
    real: Tensor | None = None
    """(B, S), True where the key is a real token."""
    query_segments: Tensor | None = None
    """(B, T), the number of the document each query belongs to; set together with `key_segments`."""
    key_segments: Tensor | None = None
    """(B, S), the number of the document each key belongs to: packed documents do not see each other."""
    sees_itself: bool = False
    """A promise that every query may attend to its own key, at least: nobody is left with nothing."""
    allowed: Tensor | None = None
    """(B or 1, H or 1, T or 1, S or 1), anything else, spelled out."""
    added: "AdditiveMask | None" = None
    """All of this as numbers, for many layers at once; `spelled_out` sets it."""

    def __post_init__(self) -> None:
        for name in ("real", "allowed"):
            value = getattr(self, name)
            if value is not None and value.dtype != torch.bool:
                raise TypeError(f"mask {name} has dtype {value.dtype}: expected torch.bool, True = may attend")
        if self.window is not None:
            check_positive("mask window", self.window)
        for what in ("segments", "positions"):
            if (getattr(self, f"query_{what}") is None) != (getattr(self, f"key_{what}") is None):
                raise ValueError(f"mask {what}: expected query_{what} and key_{what} together")

    @property
    def is_only_causal(self) -> bool:
        """Nothing but the causal rule, which kernels know by a flag."""
        return self.causal and self.window is None and self._lets_all_tokens

    @property
    def _lets_all_tokens(self) -> bool:
        return self.real is None and self.key_segments is None and self.allowed is None

    def check(self, batch: int, n_heads: int, n_queries: int, n_keys: int) -> None:
        """Raise unless every part fits a (batch, heads, queries, keys) score tensor."""
        if self.real is not None:
            check_shape("mask real", self.real, (batch, n_keys))
        if self.query_segments is not None and self.key_segments is not None:
            check_shape("mask query_segments", self.query_segments, (batch, n_queries))
            check_shape("mask key_segments", self.key_segments, (batch, n_keys))
        if self.allowed is not None:
            check_broadcasts("mask", self.allowed, (batch, n_heads, n_queries, n_keys))

    def dense(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """The boolean tensor that broadcasts to (B, H, T, S), or None where everything is allowed."""
        parts: list[Tensor] = []
        if self.causal and n_queries > 1:  # a single query stands last: it may look at all keys
            parts.append(self._by_order(n_queries, n_keys, device))
        if self.window is not None:
            parts.append(self._by_distance(self.window, n_queries, n_keys, device))
        if self.real is not None:
            parts.append(self.real[:, None, None, :])
        if self.query_segments is not None and self.key_segments is not None:
            parts.append((self.query_segments[:, :, None] == self.key_segments[:, None, :])[:, None])
        if self.allowed is not None:
            parts.append(self.allowed)
        if not parts:
            return None
        result = parts[0]
        for part in parts[1:]:
            result = result & part
        return result  # (B or 1, H or 1, T or 1, S or 1)

    def spelled_out(
        self, n_queries: int, n_keys: int, bias: Tensor | None, like: Tensor, kernels: KernelSet | None = None
    ) -> "Mask":
        """The same, as numbers of the kind of `like` too, with the bias in them: once for all layers of a stack."""
        if bias is None and self.is_only_causal and n_queries == n_keys:
            return self  # a flag is all that a kernel needs
        added = AdditiveMask.of(self, n_queries, n_keys, bias, like, kernels)
        return self if added is None else replace(self, added=added)

    def _by_order(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        query = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
        return (torch.arange(n_keys, device=device)[None, :] <= query)[None, None]  # (1, 1, T, S)

    def _by_distance(self, window: int, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        query, key = self.query_positions, self.key_positions
        if query is None or key is None:
            key = torch.arange(n_keys, device=device)[None]
            query = key[:, n_keys - n_queries :]
        near = (query[:, :, None] - key[:, None, :]).abs() < window
        return near[:, None]  # (B or 1, 1, T, S)


class AdditiveMask(NamedTuple):
    """A mask and a bias as fused kernels want them."""

    numbers: Tensor
    """Added to the scores: the bias, or minus infinity where nobody may look."""
    blind: Tensor | None = None
    """True for queries that may attend to nothing, where there may be some: what they get is to be cleared..."""
    seeing: Tensor | None = None
    """... and the numbers that let those see all, for kernels that would answer them with garbage."""
    key_end: Tensor | None = None
    """(B or 1,), one past the last key that a row may attend to; set where `kernels` can use it."""
    kernels: KernelSet | None = None

    @classmethod
    def of(
        cls,
        mask: Mask,
        n_queries: int,
        n_keys: int,
        bias: Tensor | None,
        like: Tensor,
        kernels: KernelSet | None = None,
    ) -> "AdditiveMask | None":
        """In the numbers that `like` has, or None where there is nothing to add."""
        allowed = mask.dense(n_queries, n_keys, like.device)
        if allowed is None:
            return None if bias is None else cls(bias.to(like.dtype))
        nothing = torch.zeros((), dtype=like.dtype, device=like.device)
        never = torch.full((), -torch.inf, dtype=like.dtype, device=like.device)
        numbers = torch.where(allowed, nothing if bias is None else bias.to(like.dtype), never)
        key_end = None
        has_kernel = kernels is not None and kernels.can_attend_to_cache(like)
        if has_kernel and n_queries <= MAX_QUERIES and n_keys and not torch.is_grad_enabled():
            key_end = find_key_end(allowed.expand(*allowed.shape[:3], n_keys))
        if mask.sees_itself or not like.is_cuda:
            return cls(numbers, key_end=key_end, kernels=kernels)
        blind = ~allowed.any(-1, keepdim=True)
        return cls(numbers, blind, torch.where(blind, nothing, numbers), key_end, kernels)


def as_mask(name: str, values: Tensor) -> Tensor:
    """A mask given as True/False or 1/0, of any numeric dtype, as booleans.

    An additive mask (0 and minus infinity) has the opposite meaning for its zeros, so values other than 0 and 1 are
    refused.
    """
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} is a {type(values).__name__}: expected a tensor of True/False or 1/0")
    if values.dtype == torch.bool:
        return values
    if values.device.type == "cpu" and not torch.compiler.is_compiling():
        strange = values[(values != 0) & (values != 1)]
        if strange.numel():
            raise ValueError(f"{name} holds {strange[0].item()}: expected True/False or 1/0 (1 = may attend)")
    return values != 0
