"""Disentangled attention of DeBERTa: the part of attention scores that depends on relative positions."""

import math

import numpy as np

from glassformer.reference.blocks import Linear, make_norm
from glassformer.reference.config import Config
from glassformer.reference.parameters import Array, Parameters
from glassformer.reference.positions import distance_ahead


class RelativeTable:
    """A learned vector for each bucket of distances, with an optional norm, shared by all layers of a stack."""

    def __init__(self, params: Parameters, config: Config):
        self.params, self.n_buckets, self.max_distance = params, config.relative_buckets, config.relative_max_distance
        self.norm = make_norm(config.norm, params.at("norm"), config.norm_eps) if config.relative_norm else None
        self.is_log = config.relative_log

    def forward(self, positions: Array) -> tuple[Array, Array]:
        """Return the vectors (2N, C) and the row of each pair of tokens: positions (B, T) -> (B, T, T)."""
        rows = np.vectorize(self.row, otypes=[int])(-distance_ahead(positions))
        weight = self.params["weight"]
        return weight if self.norm is None else self.norm.forward(weight), rows

    def backward(self, dtable: Array) -> None:
        """Add the gradient of the learned vectors, given that of the normalized ones."""
        self.params.add_grad("weight", dtable if self.norm is None else self.norm.backward(dtable))

    def row(self, distance: int) -> int:
        """Return the row for a distance, query position minus key position. Far distances share rows."""
        half, bucket = self.n_buckets // 2, int(distance)
        if self.is_log and abs(bucket) > half:
            growth = np.log(np.float32(abs(bucket)) / np.float32(half)) / np.float32(
                math.log((self.max_distance - 1) / half)
            )
            bucket = int(math.copysign(math.ceil(growth * np.float32(half - 1)) + half, bucket))
        return min(max(bucket + self.n_buckets, 0), 2 * self.n_buckets - 1)


class DisentangledBias:
    """The score of each query with the vector of its distance to a key, plus that of the key with the same vector."""

    def __init__(self, params: Parameters, config: Config):
        self.config = config
        start = "" if config.share_relative_proj else "relative_"
        self.q_proj, self.k_proj = Linear(params.at(f"{start}q_proj")), Linear(params.at(f"{start}k_proj"))

    def forward(self, q: Array, k: Array, table: Array, rows: Array) -> Array:
        """Return the bias of the scores for q and k (B, H, T, D): (B, H, T, T)."""
        self.q, self.k, self.rows, self.n_rows = q, k, rows, len(table)
        self.by_query = self._heads(self.k_proj.forward(table))[:, rows]  # (H, B, T, T, D)
        self.by_key = self._heads(self.q_proj.forward(table))[:, rows]
        scores = np.einsum("bhtd,hbtsd->bhts", q, self.by_query) + np.einsum("bhsd,hbtsd->bhts", k, self.by_key)
        return self.config.scale * scores

    def backward(self, dbias: Array) -> tuple[Array, Array, Array]:
        """Return the gradients of q, k and the table of vectors."""
        dbias = dbias * self.config.scale
        dq = np.einsum("bhts,hbtsd->bhtd", dbias, self.by_query)
        dk = np.einsum("bhts,hbtsd->bhsd", dbias, self.by_key)
        dtable = self.k_proj.backward(self._summed(np.einsum("bhts,bhtd->btshd", dbias, self.q)))
        return dq, dk, dtable + self.q_proj.backward(self._summed(np.einsum("bhts,bhsd->btshd", dbias, self.k)))

    def _heads(self, x: Array) -> Array:
        """Split projected vectors into heads: (2N, H·D) -> (H, 2N, D)."""
        return x.reshape(len(x), self.config.n_heads, -1).transpose(1, 0, 2)

    def _summed(self, grads: Array) -> Array:
        """Sum the gradients (B, T, T, H, D) of all pairs with the same row: (2N, H·D)."""
        total = np.zeros((self.n_rows, *grads.shape[3:]))
        np.add.at(total, self.rows, grads)
        return total.reshape(self.n_rows, -1)
