"""Orders of the rows of attention matrices in HF's checkpoints that differ from ours.

Each order has a method `indices`: our row i is HF's row `indices(n_rows)[i]`. It is computed when a tensor is read or
written, never for a config alone, whose numbers may be of any size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class RowOrder(Protocol):
    """The order of the rows of HF's tensor."""

    def indices(self, n_rows: int) -> Tensor:
        """Return the number of HF's row for each of our rows."""


@dataclass(frozen=True)
class HeadGroups:
    """One matrix for Q, K and V, in which each key-value head follows the query heads that share it.

    This is the order of Falcon, and with as many key-value heads as query heads that of GPT-NeoX. Ours is all queries,
    then all keys, then all values.

    >>> HeadGroups(n_kv_heads=2, head_dim=1).indices(8).tolist()  # q q k v, q q k v
    [0, 1, 4, 5, 2, 6, 3, 7]
    """

    n_kv_heads: int
    head_dim: int

    def indices(self, n_rows: int) -> Tensor:
        """Return the number of HF's row for each of our rows."""
        import torch

        rows = torch.arange(n_rows).view(self.n_kv_heads, -1, self.head_dim)
        return torch.cat([rows[:, :-2].flatten(), rows[:, -2].flatten(), rows[:, -1].flatten()])


@dataclass(frozen=True)
class RotaryPairs:
    """Queries or keys whose rotary positions turn the pairs (0, 1), (2, 3), ... of a head, as in GPT-J and Cohere.

    Ours turn the pairs (i, i + width / 2), where `width` is the number of rotated features of a head.

    >>> RotaryPairs(head_dim=6, width=4).indices(6).tolist()
    [0, 2, 1, 3, 4, 5]
    """

    head_dim: int
    width: int

    def indices(self, n_rows: int) -> Tensor:
        """Return the number of HF's row for each of our rows."""
        import torch

        rows = torch.arange(n_rows).view(-1, self.head_dim)
        turned = rows[:, : self.width].reshape(len(rows), -1, 2).transpose(1, 2).flatten(1)
        return torch.cat([turned, rows[:, self.width :]], 1).flatten()
