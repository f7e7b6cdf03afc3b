"""The convolution beside the first layer of DeBERTa v2: norm(y + act(conv(x)))."""

import numpy as np

from glassformer.reference.blocks import ACTIVATIONS, make_norm
from glassformer.reference.config import Config
from glassformer.reference.parameters import Array, Parameters


class Convolution:
    """A convolution over neighboring tokens of x, added to another state y and normalized. Padding counts as zeros."""

    def __init__(self, params: Parameters, config: Config):
        self.params, self.kernel = params.at("conv"), config.conv_kernel or 1
        self.activation = ACTIVATIONS[config.conv_activation]
        self.norm = make_norm(config.norm, params.at("norm"), config.norm_eps)

    def forward(self, x: Array, y: Array, real: Array) -> Array:
        """Return norm(y + act(conv(x))) for x and y (B, T, C). `real` is (B, T), False for padding."""
        self.real, length, side = real[:, :, None], x.shape[1], self.kernel // 2
        padded = np.pad(x * self.real, ((0, 0), (side, side), (0, 0)))
        self.windows = np.stack([padded[:, i : i + length] for i in range(self.kernel)], axis=-1)  # (B, T, C, K)
        found = np.einsum("btck,ock->bto", self.windows, self.params["weight"]) + self.params["bias"]
        out, self.slope = self.activation(found * self.real)
        return self.norm.forward(y + out)

    def backward(self, dout: Array) -> tuple[Array, Array]:
        """Return the gradients of x and y."""
        dy = self.norm.backward(dout)
        dfound = dy * self.slope * self.real
        self.params.add_grad("weight", np.einsum("bto,btck->ock", dfound, self.windows))
        self.params.add_grad("bias", dfound.sum((0, 1)))
        dwindows = np.einsum("bto,ock->btck", dfound, self.params["weight"])
        length, side = dy.shape[1], self.kernel // 2
        dpadded = np.zeros((dy.shape[0], length + 2 * side, dy.shape[2]))
        for i in range(self.kernel):
            dpadded[:, i : i + length] += dwindows[..., i]
        return dpadded[:, side : side + length] * self.real, dy
