"""Heads: modules that turn the last hidden states (B, T, C) into logits, class scores or an embedding of the sequence.

Every head takes `real` (B, T), True for real tokens and False for padding; None means all are real.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.models.config import PoolingName
from glassformer.nn.activations import HeadActivationName, activation_function
from glassformer.nn.dropout import Dropout


class DenseTransform(nn.Module):
    """A dense layer, an activation and an optional norm, applied inside a head before its last layer."""

    def __init__(
        self,
        width_in: int,
        width_out: int,
        *,
        activation: HeadActivationName,
        norm: nn.Module | None = None,
        bias: bool = True,
    ):
        super().__init__()
        self.dense = nn.Linear(width_in, width_out, bias=bias)
        self.act = activation_function(activation)
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """Apply the dense layer, the activation and the norm to x: (..., width_in) -> (..., width_out)."""
        x = self.act(self.dense(x))
        return x if self.norm is None else self.norm(x)


class LanguageModelHead(nn.Module):
    """Head that returns logits over the vocabulary at each position.

    Args:
        scale: Factor on the hidden states before the projection to the vocabulary.
        transform: Applied to the hidden states first, as in BERT; None for most models.
        softcap: Soft bound of the logits, as in Gemma 2; None for most models.
    """

    def __init__(
        self,
        width: int,
        vocab_size: int,
        *,
        bias: bool,
        scale: float,
        transform: DenseTransform | None,
        softcap: float | None = None,
    ):
        super().__init__()
        self.softcap = softcap
        self.transform = transform
        self.scale = scale
        self.out_proj = nn.Linear(width, vocab_size, bias=bias)
        self.skips_output_layer = False
        """Whether `forward` returns the input of `out_proj`; set by losses that compute the output layer themselves."""

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Return logits (B, T, V) of hidden states (B, T, C). Padding gets logits too."""
        if self.transform is not None:
            hidden = self.transform(hidden)
        if self.scale != 1.0:
            hidden = hidden * self.scale
        if self.skips_output_layer:
            return hidden
        logits: Tensor = self.out_proj(hidden)
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


class SequenceClassHead(nn.Module):
    """Head that returns one score per class for a whole sequence, from its pooled hidden states."""

    def __init__(
        self, width: int, n_labels: int, *, pooling: PoolingName, transform: DenseTransform | None, dropout: float
    ):
        super().__init__()
        self.pooling: PoolingName = pooling
        self.transform = transform
        self.dropout = Dropout(dropout)
        self.out_proj = nn.Linear(width, n_labels)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Return class scores (B, n_labels) of hidden states (B, T, C)."""
        pooled = pool(hidden, real, self.pooling)
        if self.transform is not None:
            pooled = self.transform(pooled)
        return self.out_proj(self.dropout(pooled))


class TokenClassHead(nn.Module):
    """Head that returns one score per class for each token.

    It is the span head too, with two classes: start of the span and end of the span.
    """

    def __init__(self, width: int, n_labels: int, *, dropout: float, transform: DenseTransform | None = None):
        super().__init__()
        self.transform = transform
        self.dropout = Dropout(dropout)
        self.out_proj = nn.Linear(width, n_labels)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Return class scores (B, T, n_labels) of hidden states (B, T, C). Padding gets scores too."""
        if self.transform is not None:
            hidden = self.transform(hidden)
        return self.out_proj(self.dropout(hidden))


class EmbeddingHead(nn.Module):
    """Head that returns one embedding for a whole sequence, from its pooled hidden states.

    With `unit_length` the embedding has Euclidean norm 1.
    """

    def __init__(self, *, pooling: PoolingName, transform: DenseTransform | None, unit_length: bool = True):
        super().__init__()
        self.pooling: PoolingName = pooling
        self.transform = transform
        self.unit_length = unit_length

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Return embeddings (B, C) of hidden states (B, T, C)."""
        pooled = pool(hidden, real, self.pooling)
        if self.transform is not None:
            pooled = self.transform(pooled)
        return F.normalize(pooled, dim=-1, eps=1e-12) if self.unit_length else pooled


def pool(hidden: Tensor, real: Tensor | None, pooling: PoolingName) -> Tensor:
    """Reduce the hidden states of each sequence to one vector: (B, T, C) -> (B, C).

    `pooling` "mean", "mean_sqrt", "weighted_mean" and "max" are over the real tokens; "first" and "last" take the first
    and last *real* token, whichever side the padding is on.
    """
    if real is None:
        real = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
    if pooling in ("mean", "mean_sqrt", "weighted_mean"):
        weight = real.to(hidden.dtype)[:, :, None]  # (B, T, 1)
        if pooling == "weighted_mean":
            weight = weight * real.cumsum(1).to(hidden.dtype)[:, :, None]
        total = weight.sum(1).clamp_min(1)
        return (hidden * weight).sum(1) / (total.sqrt() if pooling == "mean_sqrt" else total)
    if pooling == "max":
        is_empty = ~real.any(1, keepdim=True)  # a sequence without real tokens keeps all, so that none is infinite
        return hidden.masked_fill(~(real | is_empty)[:, :, None], float("-inf")).amax(1)
    length = real.shape[1]
    index = real.int().argmax(1) if pooling == "first" else length - 1 - real.flip(1).int().argmax(1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), index]
