"""Token embeddings: look up, scale, add token types and positions, normalize, apply dropout, project."""

import math

from torch import Tensor, nn

from glassformer.nn.dropout import Dropout
from glassformer.nn.tensor_checks import check_ids


class Embeddings(nn.Module):
    """Map token ids to vectors and add token types and positions. This is the first module of every model.

    Args:
        width: Size of the embedding vectors.
        positions: Module that maps position numbers to vectors; None if nothing is added to the embeddings, as with
            rotary positions.
        n_token_types: Number of token types (BERT's segments); 0 for a model without them.
        scale: Multiply the token vectors by √width, as in Vaswani et al. (2017).
        multiplier: Multiply the token vectors by this number instead.
        norm: Normalization after token types and positions are added, as in BERT.
        projection: Maps `width` to the width of the model, as in ALBERT.
    """

    def __init__(
        self,
        vocab_size: int,
        width: int,
        *,
        positions: nn.Module | None = None,
        n_token_types: int = 0,
        scale: bool = False,
        multiplier: float | None = None,
        norm: nn.Module | None = None,
        projection: nn.Module | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = positions
        self.token_types = nn.Embedding(n_token_types, width) if n_token_types else None
        self.scale = math.sqrt(width) if scale else multiplier
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.projection = projection

    def forward(self, tokens: Tensor, positions: Tensor, token_types: Tensor | None = None) -> Tensor:
        """Return the embeddings (B, T, C) of token ids (B, T) at position numbers (B or 1, T).

        `token_types` is (B, T); None gives every token type 0, if the model has token types.
        """
        x = self.tokens(tokens)  # (B, T, C)
        if self.scale is not None:
            x = x * self.scale
        if self.token_types is not None:
            # Without given types every token has type 0, as in BERT.
            x = x + (self.token_types.weight[0] if token_types is None else self.token_types(token_types))
        if self.positions is not None:
            x = x + self.positions(positions, x.dtype)
        if self.norm is not None:
            x = self.norm(x)
        x = self.dropout(x)
        return x if self.projection is None else self.projection(x)

    def check(self, name: str, tokens: Tensor, token_types: Tensor | None = None) -> None:
        """Raise TypeError or ValueError unless all token ids and token types, each (B, T), are inside their tables.

        `name` is the name of the token argument in error messages.
        """
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
