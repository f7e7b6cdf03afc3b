"""A layer with a convolution beside it, as the first layer of DeBERTa v2 (He et al. 2021) has one."""

from typing import Any

from torch import Tensor, nn

from glassformer.nn.activations import HeadActivationName, activation_function
from glassformer.nn.dropout import Dropout
from glassformer.nn.layers import Layer
from glassformer.nn.masks import Mask


class Convolution(nn.Module):
    """A convolution over neighboring tokens, added to another state: norm(y + act(conv(x))).

    Padding counts as zeros. `kernel` is the number of tokens that it reads, which is odd.
    """

    def __init__(self, width: int, kernel: int, *, activation: HeadActivationName, norm: nn.Module, dropout: float):
        super().__init__()
        if kernel % 2 == 0:
            raise ValueError(f"conv_kernel={kernel}: expected an odd number")
        self.conv = nn.Conv1d(width, width, kernel, padding=kernel // 2)
        self.act = activation_function(activation)
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, y: Tensor, real: Tensor | None) -> Tensor:
        """Return norm(y + act(conv(x))) for x and y (B, T, C). `real` is (B, T), False for padding."""
        if real is not None:
            x = x * real[:, :, None]
        found = self.conv(x.transpose(1, 2)).transpose(1, 2)  # (B, T, C)
        if real is not None:
            found = found * real[:, :, None]
        return self.norm(y + self.act(self.dropout(found)))


class ConvolvedLayer(Layer):
    """A Transformer layer whose output is added to a convolution of its input."""

    def __init__(self, *args: Any, convolution: Convolution, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.convolution = convolution

    def forward(self, x: Tensor, *, mask: Mask | None = None, **inputs: Any) -> Tensor:
        """Apply the layer and the convolution to x (B, T, C) and return the same shape.

        The arguments are those of `Layer.forward`. Packed documents are refused: the convolution would mix them.
        """
        if mask is not None and mask.key_segments is not None:
            raise ValueError("segments were given to a model with conv_kernel, which mixes neighbors: expected none")
        return self.convolution(x, super().forward(x, mask=mask, **inputs), None if mask is None else mask.real)
