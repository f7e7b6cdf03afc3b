"""Linear layers, embedding look-up, norms, activations and the feed-forward network.

Every block has a `forward`, which stores what `backward` needs. `backward` takes the gradient of the loss with respect
to the output, adds the parameters' gradients to `params.grads`, and returns the gradient with respect to the input. An
object may be used only once per forward pass.
"""

import math
from collections.abc import Callable

import numpy as np

from glassformer.reference.parameters import Array, Parameters


class Linear:
    """Linear layer y = x Wᵀ + b, with W stored as (out, in) like torch's.

    `tied` holds the weight to use as W instead of `params`, such as the token embedding table.
    """

    def __init__(self, params: Parameters, *, tied: Parameters | None = None):
        self.params, self.owner = params, params if tied is None else tied

    def forward(self, x: Array) -> Array:
        """Return the output of the layer for x: (..., in) -> (..., out)."""
        self.x = x
        y = x @ self.owner["weight"].T
        return y + self.params["bias"] if "bias" in self.params else y

    def backward(self, dy: Array) -> Array:
        """Return the gradient of x. The gradients of W and b are summed over all axes of x but the last."""
        rows, grads = self.x.reshape(-1, self.x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        self.owner.add_grad("weight", grads.T @ rows)
        if "bias" in self.params:
            self.params.add_grad("bias", grads.sum(0))
        return dy @ self.owner["weight"]


class Lookup:
    """Embedding look-up: returns row `id` of a table for each token id."""

    def __init__(self, params: Parameters):
        self.params = params

    def forward(self, ids: Array) -> Array:
        """Return the embeddings of token ids: (B, T) -> (B, T, C)."""
        self.ids = ids
        return self.params["weight"][ids]

    def backward(self, dy: Array) -> None:
        """Add the gradient at each position to the table row that was looked up there. Ids have no gradient."""
        grad = np.zeros_like(self.params["weight"])
        np.add.at(grad, self.ids, dy)
        self.params.add_grad("weight", grad)


class LayerNorm:
    """Layer norm over the last axis: weight · (x - mean) / √(variance + eps) + bias."""

    def __init__(self, params: Parameters, eps: float):
        self.params, self.eps = params, eps

    def forward(self, x: Array) -> Array:
        """Normalize x (..., C) over its last axis and return the same shape."""
        centred = x - x.mean(-1, keepdims=True)
        self.rate = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + self.eps)
        self.normal = centred * self.rate
        y: Array = _weight(self.params) * self.normal
        return y + self.params["bias"] if "bias" in self.params else y

    def backward(self, dy: Array) -> Array:
        """Return the gradient of x, which includes the paths through the mean and the variance."""
        _add_affine_grads(self.params, dy, self.normal)
        dn = dy * _weight(self.params)
        return self.rate * (dn - dn.mean(-1, keepdims=True) - self.normal * (dn * self.normal).mean(-1, keepdims=True))


class RmsNorm:
    """RMS norm over the last axis: weight · x / √(mean of squares + eps). Unlike layer norm it subtracts no mean."""

    def __init__(self, params: Parameters, eps: float):
        self.params, self.eps = params, eps

    def forward(self, x: Array) -> Array:
        """Normalize x (..., C) over its last axis and return the same shape."""
        self.rate = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + self.eps)
        self.normal = x * self.rate
        y: Array = _weight(self.params) * self.normal
        return y

    def backward(self, dy: Array) -> Array:
        """Return the gradient of x, which includes the path through the root mean square."""
        _add_affine_grads(self.params, dy, self.normal)
        dn = dy * _weight(self.params)
        return self.rate * (dn - self.normal * (dn * self.normal).mean(-1, keepdims=True))


class OffsetRmsNorm:
    """RMS norm whose parameter is the difference of the weight from 1: (1 + weight) · x / √(mean of squares + eps)."""

    def __init__(self, params: Parameters, eps: float):
        self.params, self.eps = params, eps

    def forward(self, x: Array) -> Array:
        """Normalize x (..., C) over its last axis and return the same shape."""
        self.rate = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + self.eps)
        self.normal = x * self.rate
        return (1 + self.params["weight"]) * self.normal

    def backward(self, dy: Array) -> Array:
        """Return the gradient of x, which includes the path through the root mean square."""
        _add_affine_grads(self.params, dy, self.normal)
        dn = dy * (1 + self.params["weight"])
        return self.rate * (dn - self.normal * (dn * self.normal).mean(-1, keepdims=True))


class MeanStdNorm:
    """Norm over the last axis with the unbiased standard deviation: weight · (x - mean) / (std + eps) + bias.

    It is how documents 002 and 003, two of the five tutorial documents that this project implements, write layer norm.
    """

    def __init__(self, params: Parameters, eps: float):
        self.params, self.eps = params, eps

    def forward(self, x: Array) -> Array:
        """Normalize x (..., C) over its last axis and return the same shape."""
        self.centred = x - x.mean(-1, keepdims=True)
        variance = (self.centred**2).sum(-1, keepdims=True) / (x.shape[-1] - 1)
        self.std = np.sqrt(np.maximum(variance, np.finfo(x.dtype).tiny))  # never 0: backward divides by it
        self.normal = self.centred / (self.std + self.eps)
        return self.params["weight"] * self.normal + self.params["bias"]

    def backward(self, dy: Array) -> Array:
        """Return the gradient of x, which includes the paths through the mean and the standard deviation."""
        _add_affine_grads(self.params, dy, self.normal)
        dn = dy * self.params["weight"]
        bottom = self.std + self.eps
        dstd = -(dn * self.centred).sum(-1, keepdims=True) / bottom**2
        dcentred = dn / bottom + dstd * self.centred / (self.std * (dy.shape[-1] - 1))
        return dcentred - dcentred.mean(-1, keepdims=True)


Norm = LayerNorm | RmsNorm | OffsetRmsNorm | MeanStdNorm


def make_norm(kind: str, params: Parameters, eps: float) -> Norm:
    """Return the norm of this kind ("layer", "rms", "offset_rms" or "mean_std") with these parameters."""
    forms: dict[str, type[Norm]] = {"layer": LayerNorm, "rms": RmsNorm, "mean_std": MeanStdNorm}
    forms["offset_rms"] = OffsetRmsNorm
    return forms[kind](params, eps)


def _weight(params: Parameters) -> Array | float:
    if "weight" in params:
        return params["weight"]
    return 1.0


def _add_affine_grads(params: Parameters, dy: Array, normal: Array) -> None:
    width = dy.shape[-1]
    if "weight" in params:
        params.add_grad("weight", (dy * normal).reshape(-1, width).sum(0))
    if "bias" in params:
        params.add_grad("bias", dy.reshape(-1, width).sum(0))


_erf = np.vectorize(math.erf, otypes=[np.float64])  # NumPy has no erf


def relu(x: Array) -> tuple[Array, Array]:
    """Return ReLU and its derivative at x. Every activation function here returns this pair."""
    return np.maximum(x, 0), (x > 0).astype(x.dtype)


def gelu(x: Array) -> tuple[Array, Array]:
    """Return GELU, x times the standard normal cumulative distribution function of x, and its derivative at x."""
    below = 0.5 * (1 + _erf(x / math.sqrt(2)))
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return x * below, below + x * density


def gelu_tanh(x: Array) -> tuple[Array, Array]:
    """Return the tanh approximation of GELU, as in GPT-2, and its derivative at x."""
    a, b = math.sqrt(2 / math.pi), 0.044715
    t = np.tanh(a * (x + b * x**3))
    return 0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t**2) * a * (1 + 3 * b * x**2)


def silu(x: Array) -> tuple[Array, Array]:
    """Return SiLU, x times the sigmoid of x, and its derivative at x."""
    gate = 1 / (1 + np.exp(-x))
    return x * gate, gate * (1 + x * (1 - gate))


def tanh(x: Array) -> tuple[Array, Array]:
    """Return the hyperbolic tangent and its derivative at x."""
    t = np.tanh(x)
    return t, 1 - t**2


def identity(x: Array) -> tuple[Array, Array]:
    """Return x and 1, its derivative."""
    return x, np.ones_like(x)


ACTIVATIONS: dict[str, Callable[[Array], tuple[Array, Array]]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "tanh": tanh,
    "identity": identity,
}


class FeedForward:
    """Feed-forward network: down(act(up(x))), or with `gated` down(act(gate(x)) · up(x))."""

    def __init__(self, params: Parameters, activation: str, gated: bool):
        self.activation = ACTIVATIONS[activation]
        self.up, self.down = Linear(params.at("up_proj")), Linear(params.at("down_proj"))
        self.gate = Linear(params.at("gate_proj")) if gated else None

    def forward(self, x: Array) -> Array:
        """Apply the network to every token of x (B, T, C) and return the same shape."""
        self.raised = self.up.forward(x)
        self.active, self.slope = self.activation(self.raised if self.gate is None else self.gate.forward(x))
        return self.down.forward(self.active if self.gate is None else self.active * self.raised)

    def backward(self, dy: Array) -> Array:
        """Return the gradient of x.

        In the gated form, each factor of the hidden product gets the gradient times the other factor.
        """
        dhidden = self.down.backward(dy)
        if self.gate is None:
            return self.up.backward(dhidden * self.slope)
        dx = self.gate.backward(dhidden * self.raised * self.slope)
        return dx + self.up.backward(dhidden * self.active)
