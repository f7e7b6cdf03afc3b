"""Disentangled attention of DeBERTa (He et al. 2021): scores from contents, and from contents and relative positions.

A score is the sum of three products: the query's content with the key's content, the query's content with the vector of
their distance, and the key's content with the vector of their distance. A table with one vector for each bucket of
distances is shared by all layers; each layer projects it by its own query and key projections.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from glassformer.nn.dropout import Dropout


class RelativeVectors(NamedTuple):
    """The vectors of all buckets of distances, and the bucket of each pair of tokens."""

    table: Tensor
    """(2N, C), for N buckets in each direction."""
    rows: Tensor
    """(B or 1, T, S), the row of `table` for each query and key."""


class DisentangledPositions(nn.Module):
    """The table of relative positions: a learned vector for each bucket of distances, with an optional norm.

    Distances below `n_buckets` / 2 have a bucket each. Larger ones, up to `max_distance`, share buckets whose width
    grows logarithmically. Without `is_log`, every distance below `n_buckets` has a bucket of its own.
    """

    def __init__(
        self,
        n_buckets: int,
        max_distance: int,
        width: int,
        *,
        norm: nn.Module | None,
        is_log: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.n_buckets, self.max_distance, self.is_log = n_buckets, max_distance, is_log
        self.weight = nn.Parameter(torch.empty(2 * n_buckets, width).normal_(std=0.02))
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, queries: Tensor, keys: Tensor) -> RelativeVectors:
        """Return the vectors, and the row of each pair of query positions (B or 1, T) and key positions (B or 1, S)."""
        distance = queries[:, :, None] - keys[:, None, :]  # (B or 1, T, S)
        vectors = self.weight if self.norm is None else self.norm(self.weight)
        return RelativeVectors(self.dropout(vectors), self.row(distance))

    def row(self, distance: Tensor) -> Tensor:
        """Return the row of the table for each distance, query position minus key position."""
        if not self.is_log:
            return (distance + self.n_buckets).clamp(0, 2 * self.n_buckets - 1)
        half = self.n_buckets // 2
        size = distance.abs().clamp_min(half - 1)  # small distances are not used below
        # In float32, as in HF's code: the last digit decides on which side of a border a distance falls.
        growth = torch.log(size.float() / half) / math.log((self.max_distance - 1) / half)
        far = ((growth * (half - 1)).ceil() + half).long() * distance.sign()
        bucket = torch.where(size <= half, distance, far)
        return (bucket + self.n_buckets).clamp(0, 2 * self.n_buckets - 1)


def disentangled_bias(q: Tensor, k: Tensor, table_q: Tensor, table_k: Tensor, index: Tensor) -> Tensor:
    """Return the part of the scores that depends on distances, not scaled, (B, H, T, S).

    q is (B, H, T, D), k is (B, H, S, D), `table_q` and `table_k` are the projected vectors (H, 2N, D), and `index`
    (B or 1, T, S) holds the vector of each pair.
    """
    shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    rows = index[:, None].expand(shape)  # (B, H, T, S)
    by_query = (q @ table_k.transpose(-2, -1)).gather(-1, rows)  # (B, H, T, S)
    by_key = (k @ table_q.transpose(-2, -1)).gather(-1, rows.transpose(-2, -1))  # (B, H, S, T)
    return by_query + by_key.transpose(-2, -1)
