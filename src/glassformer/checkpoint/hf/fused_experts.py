"""Stored tensors of experts, one for each matrix. HF's models in memory have one for all experts of a layer.

HF ships and saves checkpoints with one tensor for each matrix of each expert. Its models hold
`mlp.experts.gate_up_proj` (experts, 2 F, C) and `mlp.experts.down_proj` (experts, C, F), and may be stored that way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from glassformer.checkpoint.external_model import Tensors
from glassformer.checkpoint.hf.expert_decoders import EXPERT_VARIANTS, expert_names

if TYPE_CHECKING:
    from torch import Tensor

FUSED = re.compile(r"(?P<layer>.*layers\.\d+\.)mlp\.(?P<part>experts\.gate_up_proj|experts\.down_proj|gate\.weight)")
MOST_EXPERTS = 1 << 12
"""The most experts of a layer. No real model has as many."""
KEPT = 2
"""Stored tensors that are kept in memory, because the matrices of an expert are in two."""


class StoredMatrix(NamedTuple):
    """Where a matrix is stored: in these rows of one expert, or as a whole tensor if `expert` is None."""

    stored: str
    expert: int | None = None
    rows: slice = slice(None)


class SplitExperts:
    """Lazy access to tensors (see `Tensors`), of which some are parts of stored ones."""

    def __init__(self, tensors: Tensors, pieces: dict[str, StoredMatrix]):
        self._tensors, self._pieces = tensors, pieces
        self._kept: dict[str, Tensor] = {}

    def keys(self) -> Iterator[str]:
        """Return an iterator over the names of all tensors."""
        return iter(self._pieces)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading its values."""
        piece = self._pieces[name]
        shape = self._tensors.shape(piece.stored)
        return shape if piece.expert is None else (len(range(*piece.rows.indices(shape[1]))), *shape[2:])

    def stored_as(self, name: str) -> str:
        """Return the number format of a stored tensor, such as BF16."""
        return self._tensors.stored_as(self._pieces[name].stored)

    def __getitem__(self, name: str) -> Tensor:
        """Read the values of one tensor and return it."""
        piece = self._pieces[name]
        if piece.expert is None:
            return self._tensors[piece.stored]
        if piece.stored not in self._kept:
            self._kept = dict([*self._kept.items()][1 - KEPT :])
            self._kept[piece.stored] = self._tensors[piece.stored]
        return self._kept[piece.stored][piece.expert, piece.rows]


def with_split_experts(tensors: Tensors, model_type: object) -> Tensors:
    """Return the tensors with one for each matrix of each expert, under the names that HF ships.

    The result is `tensors` itself for a family without experts, and if the experts are stored that way.
    """
    stored = list(tensors.keys())
    is_known = isinstance(model_type, str) and model_type in EXPERT_VARIANTS
    if not is_known or not any(_is_fused(tensors, name) for name in stored):
        return tensors
    pieces: dict[str, StoredMatrix] = {}
    for name in stored:
        found = FUSED.fullmatch(name)
        if found is None or (found["part"] != "gate.weight" and not _is_fused(tensors, name)):
            pieces[name] = StoredMatrix(name)
            continue
        layer = found["layer"]
        if found["part"] == "gate.weight":
            pieces[f"{layer}{expert_names(str(model_type), 0)['ffn.router']}.weight"] = StoredMatrix(name)
            continue
        n_experts, n_rows = tensors.shape(name)[:2]
        theirs, half = expert_names(str(model_type), n_experts), n_rows // 2
        parts = {"gate_proj": slice(0, half), "up_proj": slice(half, n_rows)}
        for part, rows in (parts if "gate_up" in name else {"down_proj": slice(None)}).items():
            for index in range(n_experts):
                pieces[f"{layer}{theirs[f'ffn.experts.{index}.{part}']}.weight"] = StoredMatrix(name, index, rows)
    return SplitExperts(tensors, pieces)


def _is_fused(tensors: Tensors, name: str) -> bool:
    if not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
        return False
    shape = tensors.shape(name)
    return len(shape) == 3 and shape[0] <= MOST_EXPERTS
