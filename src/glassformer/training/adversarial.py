"""Adversarial training (Miyato, Dai and Goodfellow 2017): learn every batch a second time, made harder.

Let θ be the token embeddings and g the gradient of the loss at θ. The second pass uses θ + radius · g / |g|, the point
at this distance where the loss has grown most, as far as its slope tells. A model that is right there too does not
depend on details of single embeddings, which matters most where there are few examples.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from glassformer.nn.embeddings import Embeddings


def token_tables(model: nn.Module) -> list[Tensor]:
    """Return the tables of token embeddings that are learned."""
    tables = [module.tokens.weight for module in model.modules() if isinstance(module, Embeddings)]
    return list({id(table): table for table in tables if table.requires_grad}.values())


@contextmanager
def shifted_embeddings(model: nn.Module, radius: float) -> Iterator[None]:
    """Add `radius` · g / |g| to the token embeddings inside the block, where g is their gradient now.

    |g| is the norm over all tables. At the end the tables have their old bits. Nothing is shifted if |g| is 0.
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
