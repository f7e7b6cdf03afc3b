"""Heads: modules that turn the last hidden states (B, T, C) into logits, class scores or an embedding of the sequence.

Every head takes `real` (B, T), True for real tokens and False for padding; None means all are real.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.nn.activations import HeadActivationName, activation_function
from glassformer.nn.dropout import Dropout

Pooling = Literal["first", "last", "mean"]


class DenseTransform(nn.Module):
    """A dense layer, an activation and an optional norm, applied inside a head before its last layer."""

    def __init__(self, width_in: int, width_out: int, *, activation: HeadActivationName, norm: nn.Module | None = None):
        super().__init__()
        self.dense = nn.Linear(width_in, width_out)
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
        self, width: int, n_labels: int, *, pooling: Pooling, transform: DenseTransform | None, dropout: float
    ):
        super().__init__()
        self.pooling: Pooling = pooling
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

    def __init__(self, width: int, n_labels: int, *, dropout: float):
        super().__init__()
        self.dropout = Dropout(dropout)
        self.out_proj = nn.Linear(width, n_labels)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Return class scores (B, T, n_labels) of hidden states (B, T, C). Padding gets scores too."""
        return self.out_proj(self.dropout(hidden))


class EmbeddingHead(nn.Module):
    """Head that returns one embedding with Euclidean norm 1 for a whole sequence, from its pooled hidden states."""

    def __init__(self, *, pooling: Pooling, transform: DenseTransform | None):
        super().__init__()
        self.pooling: Pooling = pooling
        self.transform = transform

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Return embeddings (B, C) of hidden states (B, T, C)."""
        pooled = pool(hidden, real, self.pooling)
        if self.transform is not None:
            pooled = self.transform(pooled)
        return F.normalize(pooled, dim=-1, eps=1e-12)


def pool(hidden: Tensor, real: Tensor | None, pooling: Pooling) -> Tensor:
    """Reduce the hidden states of each sequence to one vector: (B, T, C) -> (B, C).

    `pooling` "mean" is the mean over the real tokens; "first" and "last" take the first and last *real* token,
    whichever side the padding is on.
    """
    if real is None:
        real = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
    if pooling == "mean":
        weight = real.to(hidden.dtype)[:, :, None]  # (B, T, 1)
        return (hidden * weight).sum(1) / weight.sum(1).clamp_min(1)
    length = real.shape[1]
    index = real.int().argmax(1) if pooling == "first" else length - 1 - real.flip(1).int().argmax(1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), index]
