"""Attention masks. True always means *may attend*.

A `Mask` describes its rules (causal, window, padding, segments) and builds the boolean tensor only when a backend needs
it. A plain causal mask reaches the fused kernel as a flag. With a window and many queries, the mask is built for one
block of queries at a time, with the keys in their reach, so that memory grows with the length, not with its square
(`by_blocks`).

Queries are the *last* positions of the keys: with a cache of seven tokens, two new queries have nine keys and are at
positions 7 and 8. The same rule therefore works for whole sequences, chunks and single tokens.

`models/inputs.py` builds the mask of a model's input: causal in decoders, with padding and segments where given.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.kernels.kernel_set import KernelSet, is_exporting
from glassformer.nn.tensor_checks import check_broadcasts, check_positive, check_shape

QUERY_BLOCK = 256
"""Number of queries in a block, where attention with a window is computed by blocks."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Mask:
    """Which keys each query may attend to: the keys that every given rule allows. `Mask()` allows every key."""

    causal: bool = False
    """A query may attend only to keys at its own and earlier positions."""
    window: int | None = None
    """A query may attend only to keys fewer than this many positions away, in either direction."""
    query_positions: Tensor | None = None
    """(B or 1, T), query positions for the window rule instead of 0, 1, 2, ...; set together with `key_positions`."""
    key_positions: Tensor | None = None
    real: Tensor | None = None
    """(B, S), True where the key is a real token, False where it is padding."""
    query_segments: Tensor | None = None
    """(B, T), number of the packed document that each query belongs to; set together with `key_segments`."""
    key_segments: Tensor | None = None
    """(B, S), number of the packed document that each key belongs to. Documents do not attend to each other."""
    attends_to_self: bool = False
    """The caller guarantees that every query may attend to its own key, so that no query is fully masked."""
    allowed: Tensor | None = None
    """(B or 1, H or 1, T or 1, S or 1), any other rule, as a boolean tensor: True = may attend."""
    additive: "AdditiveMask | None" = None
    """The additive form of this mask, shared by all layers of a stack; set by `with_additive`."""
    by_blocks: bool = False
    """Whether attention is computed for blocks of queries, each with the keys in its window; set by `with_additive`."""

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
        """Whether the mask is causal and has no other rule, so that a kernel can take it as a flag."""
        others = self.window, self.real, self.key_segments, self.allowed
        return self.causal and all(rule is None for rule in others)

    @property
    def is_only_padding(self) -> bool:
        """Whether the mask excludes padding and has no other rule."""
        others = self.window, self.key_segments, self.allowed
        return self.real is not None and not self.causal and all(rule is None for rule in others)

    def check(self, batch: int, n_heads: int, n_queries: int, n_keys: int) -> None:
        """Raise ValueError unless every rule fits scores of shape (batch, n_heads, n_queries, n_keys)."""
        if self.real is not None:
            check_shape("mask real", self.real, (batch, n_keys))
        if self.query_segments is not None and self.key_segments is not None:
            check_shape("mask query_segments", self.query_segments, (batch, n_queries))
            check_shape("mask key_segments", self.key_segments, (batch, n_keys))
        if self.allowed is not None:
            check_broadcasts("mask", self.allowed, (batch, n_heads, n_queries, n_keys))

    def dense(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """Return the mask as a boolean tensor that broadcasts to (B, H, T, S), or None if every key is allowed."""
        parts: list[Tensor] = []
        if self.causal and n_queries > 1:  # a single query stands at the last key and may attend to all
            parts.append(self._causal(n_queries, n_keys, device))
        if self.window is not None:
            parts.append(self._in_window(self.window, n_queries, n_keys, device))
        if self.real is not None:
            parts.append(self.real[:, None, None, :])  # (B, 1, 1, S)
        if self.query_segments is not None and self.key_segments is not None:
            is_same = self.query_segments[:, :, None] == self.key_segments[:, None, :]  # (B, T, S)
            parts.append(is_same[:, None])  # (B, 1, T, S)
        if self.allowed is not None:
            parts.append(self.allowed)
        if not parts:
            return None
        result = parts[0]
        for part in parts[1:]:
            result = result & part
        return result  # (B or 1, H or 1, T or 1, S or 1)

    def with_additive(
        self, n_queries: int, n_keys: int, bias: Tensor | None, like: Tensor, kernels: KernelSet | None = None
    ) -> "Mask":
        """Return a copy of this mask that also holds its additive form (`AdditiveMask`), which includes `bias`.

        A stack calls this once, so that its layers need not each compute the additive form. That form has the dtype
        and device of `like`; `kernels` are the kernels that may read it. The mask itself is returned if it needs no
        additive form: without a bias, if it allows every key, or if it is only causal and T equals S. If attention is
        to be computed by blocks, a copy with `by_blocks` is returned instead. A mask that has its additive form already
        is returned unchanged.
        """
        if self.additive is not None and bias is None:
            return self
        if bias is None and self.is_only_causal and n_queries == n_keys:
            return self  # the kernel takes a flag instead
        if bias is None and self._can_use_blocks(n_queries, n_keys):
            return replace(self, by_blocks=True)
        additive = AdditiveMask.of(self, n_queries, n_keys, bias, like, kernels)
        return self if additive is None else replace(self, additive=additive)

    def at(self, wanted: Tensor, n_queries: int, n_keys: int) -> "Mask":
        """Return the mask of one query of each sequence: at place `wanted` (B,), from 0, among the queries."""
        place = (n_keys - n_queries + wanted)[:, None]  # among the keys
        queries, keys = self.query_positions, self.key_positions
        if self.window is not None and queries is None:
            queries, keys = place, torch.arange(n_keys, device=wanted.device)[None]
        elif queries is not None:
            queries = pick(queries, wanted)
        allowed = None if self.allowed is None else self.allowed.expand(len(wanted), -1, n_queries, -1)
        allowed = None if allowed is None else pick(allowed.transpose(1, 2), wanted).transpose(1, 2)
        if self.causal:
            is_before = (torch.arange(n_keys, device=wanted.device) <= place)[:, None, None]  # (B, 1, 1, S)
            allowed = is_before if allowed is None else allowed & is_before
        return replace(
            self,
            causal=False,
            query_positions=queries,
            key_positions=keys,
            query_segments=None if self.query_segments is None else pick(self.query_segments, wanted),
            allowed=allowed,
            additive=None,
            by_blocks=False,
        )

    def block(self, first: int, last: int, n_queries: int, n_keys: int, device: torch.device) -> "tuple[Mask, slice]":
        """Return the mask of the queries from `first` to before `last`, and the keys in their reach, which it is for.

        It needs a window that counts places among the keys, as `by_blocks` guarantees.
        """
        assert self.window is not None
        shift = n_keys - n_queries  # the place of the first query among the keys
        end = min(n_keys, shift + last + (0 if self.causal else self.window - 1))
        queries, keys = slice(first, last), slice(max(0, shift + first - self.window + 1), end)
        places = torch.arange(n_keys, device=device)[None]
        allowed = self.allowed
        if allowed is not None:
            allowed = allowed if allowed.shape[2] == 1 else allowed[:, :, queries]
            allowed = allowed if allowed.shape[3] == 1 else allowed[:, :, :, keys]
        part = replace(
            self,
            query_positions=(places[:, shift:] if self.query_positions is None else self.query_positions)[:, queries],
            key_positions=(places if self.key_positions is None else self.key_positions)[:, keys],
            real=None if self.real is None else self.real[:, keys],
            query_segments=None if self.query_segments is None else self.query_segments[:, queries],
            key_segments=None if self.key_segments is None else self.key_segments[:, keys],
            allowed=allowed,
            additive=None,
            by_blocks=False,
        )
        return part, keys

    def _can_use_blocks(self, n_queries: int, n_keys: int) -> bool:
        """Return whether attention by blocks gives the same result and saves memory. On a GPU this may wait for it.

        Not while gradients are recorded: with dropout, a kernel must see all weights of a query at once.
        """
        if self.window is None or n_queries <= QUERY_BLOCK or n_keys <= self.window + QUERY_BLOCK:
            return False
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or is_exporting():
            return False
        return self._counts_places(n_queries, n_keys)

    def _counts_places(self, n_queries: int, n_keys: int) -> bool:
        """Return whether keys that are allowed have the same distance by their positions as by their places.

        This holds without padding, and with padding on the left if the mask is causal. Padding elsewhere is between
        two tokens with neighboring positions, or has queries of its own.
        """
        query, key = self.query_positions, self.key_positions
        if query is None or key is None:
            return True
        is_next = key.diff(dim=1) == 1  # (B or 1, S - 1)
        if self.real is not None:
            if not self.causal or self.key_segments is not None:
                return False
            is_next = is_next | (self.real.cumsum(1)[:, :-1] == 0)  # padding before the first token
        elif self.key_segments is not None:
            is_next = is_next | (self.key_segments.diff(dim=1) != 0)
        return bool(is_next.all() & (query == key[:, n_keys - n_queries :]).all())

    def _causal(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        query = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
        return (torch.arange(n_keys, device=device)[None, :] <= query)[None, None]  # (1, 1, T, S)

    def _in_window(self, window: int, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        query, key = self.query_positions, self.key_positions
        if query is None or key is None:
            key = torch.arange(n_keys, device=device)[None]
            query = key[:, n_keys - n_queries :]
        near = (query[:, :, None] - key[:, None, :]).abs() < window
        return near[:, None]  # (B or 1, 1, T, S)


class AdditiveMask(NamedTuple):
    """A mask and a bias in the form that fused kernels take: one tensor that is added to the scores."""

    values: Tensor
    """Broadcasts to (B, H, T, S): the bias where attention is allowed, -inf elsewhere."""
    fully_masked: Tensor | None = None
    """True for queries that may attend to no key, whose output must be set to 0.

    None if no such correction is needed.
    """
    unmasked_values: Tensor | None = None
    """`values` with 0 for fully masked queries, because some CUDA kernels return garbage for a row of -inf."""
    key_end: Tensor | None = None
    """(B or 1,), one past the last key that any query of a sequence may attend to; None if no kernel uses it."""
    kernels: KernelSet | None = None
    """Kernels of the model that the mask is for; None for torch's own."""

    @property
    def safe_values(self) -> Tensor:
        """The tensor to add for kernels that do not support fully masked queries.

        It is `unmasked_values`, which holds 0 for such queries, or `values` if that is None.
        """
        return self.values if self.unmasked_values is None else self.unmasked_values

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
        """Return the additive form of `mask` and `bias`, or None if there is nothing to add.

        It has the dtype and device of `like`; `kernels` are the kernels that may read it.
        """
        has_kernel = kernels is not None and kernels.can_attend_to_cache(like) and n_queries <= kernels.max_queries
        has_kernel = has_kernel and n_keys > 0 and not torch.is_grad_enabled()
        real = mask.real if mask.is_only_padding and bias is None and has_kernel else None
        if kernels is not None and real is not None and kernels.can_number_step(real, like.dtype):
            return cls(*kernels.mask_padding(real, like.dtype), kernels)
        allowed = mask.dense(n_queries, n_keys, like.device)
        if allowed is None and bias is None and has_kernel and not like.is_cuda:
            allowed = torch.ones(1, 1, 1, n_keys, dtype=torch.bool, device=like.device)  # the kernel is faster
        if allowed is None:
            return None if bias is None else cls(bias.to(like.dtype))
        zero = torch.zeros((), dtype=like.dtype, device=like.device)
        neg_inf = torch.full((), -torch.inf, dtype=like.dtype, device=like.device)
        values = torch.where(allowed, zero if bias is None else bias.to(like.dtype), neg_inf)
        key_end = None
        if has_kernel:
            key_end = find_key_end(allowed.expand(*allowed.shape[:3], n_keys))
        if mask.attends_to_self or not like.is_cuda:
            return cls(values, key_end=key_end, kernels=kernels)
        fully_masked = ~allowed.any(-1, keepdim=True)
        return cls(values, fully_masked, torch.where(fully_masked, zero, values), key_end, kernels)


def as_mask(name: str, values: Tensor) -> Tensor:
    """Convert a mask of True/False or 1/0, in any numeric dtype, to booleans.

    On the CPU, any other value raises ValueError. This catches additive masks (0 and -inf), in which 0 means allowed.
    On other devices, and in compiled code, the values are not checked. `name` is the name of the argument in error
    messages.
    """
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} is a {type(values).__name__}: expected a tensor of True/False or 1/0")
    if values.dtype == torch.bool:
        return values
    if values.device.type == "cpu" and not torch.compiler.is_compiling():
        unexpected = values[(values != 0) & (values != 1)]
        if unexpected.numel():
            raise ValueError(f"{name} holds {unexpected[0].item()}: expected True/False or 1/0 (1 = may attend)")
    return values != 0


def pick(x: Tensor, wanted: Tensor) -> Tensor:
    """Return the entry of each sequence at place `wanted` (B,): (B or 1, T, ...) -> (B, 1, ...)."""
    rows = torch.arange(len(wanted), device=wanted.device)
    return x.expand(len(wanted), *x.shape[1:])[rows, wanted][:, None]


def find_key_end(allowed: Tensor) -> Tensor:
    """Return, for each batch row, one past the last key that any of its queries may attend to.

    The mask `allowed` is (B or 1, H or 1, T or 1, S); the result is (B or 1,).
    """
    places = torch.arange(1, allowed.shape[3] + 1, device=allowed.device)
    is_seen = allowed[:, 0, 0] if allowed.shape[1] == allowed.shape[2] == 1 else allowed.any(2).any(1)
    return (is_seen * places).amax(1)
