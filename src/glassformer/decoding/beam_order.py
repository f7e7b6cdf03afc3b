"""The order of hypotheses in beam search: the best ones first, and children at the places of their parents."""

import torch
from torch import Tensor


def highest_first(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` highest values of each row (N, n) and their indices. Of equal values the first comes first.

    >>> values, places = highest_first(torch.tensor([[1.0, 3.0, 2.0, 3.0]]), 3)
    >>> values.tolist(), places.tolist()
    ([[3.0, 3.0, 2.0]], [[1, 3, 2]])
    """
    found = values.sort(descending=True, stable=True)
    return found.values[:, :count], found.indices[:, :count]


def stay_in_place(parents: Tensor) -> Tensor:
    """Return an order of the children of `parents` (B, K): one of each stays in its parent's row, to save copies.

    Here the first and third child have parent 2. The first takes the parent's place, and the third a free one.

    >>> stay_in_place(torch.tensor([[2, 1, 2]])).tolist()
    [[2, 1, 0]]
    """
    has_elder = (parents[:, :, None] == parents[:, None]).tril(-1).any(2)
    children = parents.masked_fill(has_elder, parents.shape[1]).argsort(stable=True)  # other children come last
    places = torch.ones_like(parents).scatter(1, parents, 0).argsort(stable=True)  # and so do the rows that are free
    return torch.empty_like(children).scatter(1, places, children)


def indices_in_blocks(blocks: Tensor, size: int) -> Tensor:
    """Return the indices of all items of these blocks of `size` neighbors: i -> i·size, ..., i·size + size - 1.

    >>> indices_in_blocks(torch.tensor([0, 2]), 3).tolist()
    [0, 1, 2, 6, 7, 8]
    """
    return (blocks[:, None] * size + torch.arange(size, device=blocks.device)).view(-1)
