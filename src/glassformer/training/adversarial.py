"""Adversarial training (Miyato, Dai and Goodfellow 2017): train on every batch a second time, with harder embeddings.

Let θ be the token embeddings and g the gradient of the loss at θ. The second pass uses θ + radius · g / |g|: to first
order, the point at this distance where the loss is largest. A model that also predicts correctly there does not
depend on details of single embeddings, which matters most if there are few examples.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from glassformer.nn.embeddings import Embeddings


def token_tables(model: nn.Module) -> list[Tensor]:
    """Return the token embedding tables of the model that are not frozen, each once."""
    tables = [module.tokens.weight for module in model.modules() if isinstance(module, Embeddings)]
    return list({id(table): table for table in tables if table.requires_grad}.values())


@contextmanager
def shifted_embeddings(model: nn.Module, radius: float) -> Iterator[None]:
    """Context manager that adds `radius` · g / |g| to the token embeddings, where g is their current gradient.

    |g| is the norm over all embedding tables; if it is 0, nothing is added. At the end the exact old values return.
    """
    tables = token_tables(model)
    before = [table.detach().clone() for table in tables]
    gradients = [table.grad for table in tables if table.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    factor = torch.where(norm > 0, radius / norm, torch.zeros_like(norm))
    try:
        with torch.no_grad():
            for table in tables:
                if table.grad is not None:
                    table.addcmul_(table.grad, factor)
        yield
    finally:
        with torch.no_grad():
            for table, old in zip(tables, before, strict=True):
                table.copy_(old)  # in place: CUDA graphs hold the addresses of the tables
