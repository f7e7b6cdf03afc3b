"""The inputs of each layer of a stack besides the hidden states: the mask, the score bias and the rotary angles.

They are computed once for each kind of layer. Most models have one kind. In some, a few layers are
global: they ignore the mask's window, and their rotary positions may have another base.
"""

from collections.abc import Collection
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn.masks import Mask, pick
from glassformer.nn.positions import Rotary, Rotation


class LayerKinds(NamedTuple):
    """The layers of a stack with other attention than the rest, by their numbers from 0."""

    global_layers: frozenset[int] = frozenset()
    """Layers that ignore the window of the mask."""
    unrotated_layers: frozenset[int] = frozenset()
    """Layers without rotary positions."""

    @classmethod
    def of(cls, global_layers: Collection[int], unrotated_layers: Collection[int]) -> "LayerKinds":
        """Return the kinds with these layers."""
        return cls(frozenset(global_layers), frozenset(unrotated_layers))


@dataclass(frozen=True, kw_only=True)
class SharedInputs:
    """Inputs that all layers of a stack share in one forward pass."""

    positions: Tensor  # (B or 1, T)
    key_positions: Tensor  # (B or 1, S)
    mask: Mask | None
    n_keys: int
    like: Tensor
    """Has the dtype and device of attention scores."""
    dtype: torch.dtype
    """Dtype of the score bias."""
    kernels: KernelSet | None
    is_additive: bool
    """Whether the mask is made additive here. Layers of disentangled attention do so with their own bias."""

    def at(self, wanted: Tensor) -> "SharedInputs":
        """Return the inputs of one token of each sequence, the one at place `wanted` (B,). All keys remain."""
        n_queries = self.positions.shape[1]
        mask = None if self.mask is None else self.mask.at(wanted, n_queries, self.n_keys)
        return replace(self, positions=pick(self.positions, wanted), mask=mask)


class LayerInputs:
    """Computes the mask, bias and rotation of each kind of layer when the first layer of the kind asks for them.

    Args:
        score_bias: Module that computes the position bias of the scores, or a list with one for each layer.
        rotary: Rotary positions; `local_rotary` are those of layers that are not global, if they differ.
    """

    def __init__(
        self,
        shared: SharedInputs,
        kinds: LayerKinds,
        *,
        score_bias: nn.Module | None,
        rotary: Rotary | None,
        local_rotary: Rotary | None,
    ):
        self.shared, self.kinds, self.score_bias = shared, kinds, score_bias
        self.rotary, self.local_rotary = rotary, local_rotary
        self._masks: dict[tuple[bool, int], dict[str, Any]] = {}
        self._rotations: dict[bool, Rotation] = {}

    def of(self, index: int, place: int) -> dict[str, Any]:
        """Return the mask, the bias and the rotation of layer `index`, whose weights are those of layer `place`."""
        return self._mask_and_bias(index, place) | {"rotation": self._rotation(index)}

    def at(self, wanted: Tensor, index: int, place: int) -> dict[str, Any]:
        """Return what `of` returns, and `wanted` (B,). The mask and the bias are those of the tokens there."""
        picked = copy(self)
        picked.shared, picked._masks = self.shared.at(wanted), {}
        return picked._mask_and_bias(index, place) | {"rotation": self._rotation(index), "wanted": wanted}

    def _mask_and_bias(self, index: int, place: int) -> dict[str, Any]:
        shared, bias_module, mask = self.shared, self.score_bias, self.shared.mask
        is_global = mask is not None and mask.window is not None and index in self.kinds.global_layers
        place = place if isinstance(bias_module, nn.ModuleList) else 0
        if (is_global, place) not in self._masks:
            if is_global and mask is not None:
                mask = replace(mask, window=None)
            module = bias_module[place] if isinstance(bias_module, nn.ModuleList) else bias_module
            bias = (
                None
                if module is None
                else module(shared.positions, shared.key_positions).to(shared.like.device, shared.dtype)
            )
            if mask is not None and shared.is_additive:
                mask = mask.with_additive(shared.positions.shape[1], shared.n_keys, bias, shared.like, shared.kernels)
            self._masks[is_global, place] = {"mask": mask, "bias": bias}
        return self._masks[is_global, place]

    def _rotation(self, index: int) -> Rotation | None:
        is_local = self.local_rotary is not None and index not in self.kinds.global_layers
        rotary = self.local_rotary if is_local else self.rotary
        if rotary is None or index in self.kinds.unrotated_layers:
            return None
        if is_local not in self._rotations:
            rotation, like = rotary(self.shared.positions, self.shared.kernels), self.shared.like
            if torch.is_grad_enabled() and self.shared.dtype == like.dtype:  # once, not in every layer
                rotation = Rotation(*(table.to(like.dtype) for table in rotation))
            self._rotations[is_local] = rotation
        return self._rotations[is_local]
