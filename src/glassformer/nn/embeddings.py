"""From token ids to vectors: look up, scale, add positions and types, normalise, drop, project."""

import math

from torch import Tensor, nn

from glassformer.nn.dropout import Dropout
from glassformer.nn.tensor_checks import check_ids


class Embeddings(nn.Module):
    """The first floor of every model.

    `positions` is a module from position numbers to vectors, or None where positions enter elsewhere. `norm` and
    `projection` (from a narrow table to the model's width, as in ALBERT) are modules or None.
    """

    def __init__(
        self,
        vocab_size: int,
        width: int,
        *,
        positions: nn.Module | None = None,
        n_token_types: int = 0,
        scale: bool = False,
        norm: nn.Module | None = None,
        projection: nn.Module | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = positions
        self.token_types = nn.Embedding(n_token_types, width) if n_token_types else None
        self.scale = math.sqrt(width) if scale else None
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.projection = projection

    def forward(self, tokens: Tensor, positions: Tensor, token_types: Tensor | None = None) -> Tensor:
        """Tokens and types (B, T), position numbers (B or 1, T) -> (B, T, C)."""
        x = self.tokens(tokens)  # (B, T, C)
        if self.scale is not None:
            x = x * self.scale
        if self.token_types is not None:
            # A model with types and none given reads everything as type 0, as BERT does.
            x = x + (self.token_types.weight[0] if token_types is None else self.token_types(token_types))
        if self.positions is not None:
            x = x + self.positions(positions, x.dtype)
        if self.norm is not None:
            x = self.norm(x)
        x = self.dropout(x)
        return x if self.projection is None else self.projection(x)

    def check(self, name: str, tokens: Tensor, token_types: Tensor | None = None) -> None:
        """Raise unless every id is one this table has."""
        check_ids(name, tokens, self.tokens.num_embeddings)
        if token_types is None:
            return
        if self.token_types is None:
            raise ValueError("token_types were given to a model without them: expected a config with token_types > 0")
        check_ids("token_types", token_types, self.token_types.num_embeddings)
        if token_types.shape != tokens.shape:
            raise ValueError(
                f"token_types has shape {tuple(token_types.shape)}: expected {tuple(tokens.shape)}, as {name}"
            )
