"""Training: label-smoothed cross-entropy and Adam."""

from collections.abc import Mapping

import numpy as np

from glassformer.reference.attention import log_softmax
from glassformer.reference.parameters import Array


def label_smoothed_cross_entropy(
    logits: Array, targets: Array, *, smoothing: float = 0.0, ignore: int | None = None
) -> tuple[float, Array]:
    """Return the mean loss per token and its gradient with respect to the logits (..., V).

    The loss is the cross-entropy with a distribution that gives the target token a probability of 1 - smoothing and
    spreads the rest evenly over all V tokens. Targets equal to `ignore` (padding) do not count.
    """
    vocab_size = logits.shape[-1]
    wanted = np.full(logits.shape, smoothing / vocab_size)
    np.put_along_axis(wanted, targets[..., None], 1 - smoothing + smoothing / vocab_size, axis=-1)
    counted = np.ones(targets.shape, dtype=bool) if ignore is None else targets != ignore
    n_tokens = max(int(counted.sum()), 1)
    log_predicted = log_softmax(logits)
    losses = -(wanted * log_predicted).sum(-1)
    gradient = (np.exp(log_predicted) - wanted) * counted[..., None] / n_tokens
    return float((losses * counted).sum() / n_tokens), gradient


class Adam:
    """The Adam optimizer (Kingma and Ba 2015) for parameters in NumPy arrays.

    Each update is `lr` · m / (√v + eps), where m is the running mean of the gradient and v that of its square.
    """

    def __init__(
        self, values: Mapping[str, Array], *, lr: float, betas: tuple[float, float] = (0.9, 0.98), eps: float = 1e-9
    ):
        self.values, self.lr, self.betas, self.eps = values, lr, betas, eps
        self.mean = {name: np.zeros_like(value) for name, value in values.items()}
        self.square = {name: np.zeros_like(value) for name, value in values.items()}
        self.steps = 0

    def step(self, grads: Mapping[str, Array]) -> None:
        """Update every parameter in place from its gradient in `grads`, with bias-corrected running means."""
        self.steps += 1
        first, second = self.betas
        for name, grad in grads.items():
            self.mean[name] = first * self.mean[name] + (1 - first) * grad
            self.square[name] = second * self.square[name] + (1 - second) * grad**2
            mean = self.mean[name] / (1 - first**self.steps)
            square = self.square[name] / (1 - second**self.steps)
            self.values[name][...] -= self.lr * mean / (np.sqrt(square) + self.eps)
