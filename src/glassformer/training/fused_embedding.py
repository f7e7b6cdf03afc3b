"""Token embeddings whose gradient fast kernels compute on a GPU (`kernels/embedding_gradient.py`)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from glassformer.kernels.embedding_gradient import embedding_gradient
from glassformer.nn import Embeddings


def fuse_embeddings(model: nn.Module) -> int:
    """Let the kernels compute the gradients of a model's token embeddings, in place, and return how many.

    They keep their parameters.
    """
    tables = [module.tokens for module in model.modules() if isinstance(module, Embeddings)]
    tables = [table for table in dict.fromkeys(tables) if type(table) is nn.Embedding and table.padding_idx is None]
    for table in tables:
        table.__class__ = FusedEmbedding
    return len(tables)


class FusedEmbedding(nn.Embedding):
    """An embedding table whose gradient is one operation."""

    @override
    def forward(self, ids: Tensor) -> Tensor:
        rows: Tensor = _Lookup.apply(ids, self.weight)  # type: ignore[no-untyped-call]
        return rows


class _Lookup(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, ids: Tensor, weight: Tensor) -> Tensor:
        """Return the rows (..., C) of a table (V, C)."""
        ctx.save_for_backward(ids)
        ctx.n_ids = len(weight)
        return F.embedding(ids, weight)

    @staticmethod
    @override
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradient by the table."""
        (ids,) = ctx.saved_tensors
        gradient = upstream[0].flatten(0, -2).contiguous()
        return None, embedding_gradient(gradient, ids.flatten(), ctx.n_ids)
