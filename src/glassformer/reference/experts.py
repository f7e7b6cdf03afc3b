"""A mixture of experts: the feed-forward networks of a layer, of which each token uses a few."""

import numpy as np

from glassformer.reference.attention import softmax
from glassformer.reference.blocks import FeedForward, Linear
from glassformer.reference.config import Config
from glassformer.reference.parameters import Array, Parameters


class ExpertFeedForward:
    """Sum of the experts that a router chooses for each token, times their probabilities, and of the shared expert."""

    def __init__(self, params: Parameters, config: Config):
        def expert(name: str) -> FeedForward:
            return FeedForward(params.at(name), config.activation, config.gated)

        self.config = config
        self.router = Linear(params.at("router"))
        self.experts = [expert(f"experts.{index}") for index in range(config.n_experts)]
        self.shared = None if config.shared_expert_d_ff is None else expert("shared_expert")
        self.shared_gate = Linear(params.at("shared_gate"))

    def forward(self, x: Array) -> Array:
        """Apply the network to every token of x (B, T, C) and return the same shape."""
        rows = x.reshape(-1, x.shape[-1])  # (N, C)
        self.probabilities = softmax(self.router.forward(rows))  # (N, E)
        self.chosen = np.argsort(-self.probabilities, axis=-1, kind="stable")[:, : self.config.experts_per_token]
        weights = np.take_along_axis(self.probabilities, self.chosen, -1)  # (N, K)
        self.total = weights.sum(-1, keepdims=True) if self.config.normalize_expert_weights else np.ones(())
        self.weights = weights / self.total
        self.found: dict[int, Array] = {}
        y = np.zeros_like(rows)
        for index, expert in enumerate(self.experts):
            tokens, places = np.nonzero(self.chosen == index)
            if len(tokens):
                self.found[index] = expert.forward(rows[tokens])
                y[tokens] += self.weights[tokens, places, None] * self.found[index]
        if self.shared is not None:
            self.share = 1 / (1 + np.exp(-self.shared_gate.forward(rows)))  # (N, 1)
            self.common = self.shared.forward(rows)
            y += self.share * self.common
        return y.reshape(x.shape)

    def backward(self, dy: Array) -> Array:
        """Return the gradient of x. Which experts are chosen has no gradient; their weights have one."""
        drows = dy.reshape(-1, dy.shape[-1])
        dx, dweights = np.zeros_like(drows), np.zeros_like(self.weights)
        for index, found in self.found.items():
            tokens, places = np.nonzero(self.chosen == index)
            dweights[tokens, places] = (drows[tokens] * found).sum(-1)
            dx[tokens] += self.experts[index].backward(drows[tokens] * self.weights[tokens, places, None])
        if self.config.normalize_expert_weights:
            dweights = dweights - (dweights * self.weights).sum(-1, keepdims=True)
        dprobabilities = np.zeros_like(self.probabilities)
        np.put_along_axis(dprobabilities, self.chosen, dweights / self.total, -1)
        inner = (dprobabilities * self.probabilities).sum(-1, keepdims=True)
        dx += self.router.backward(self.probabilities * (dprobabilities - inner))
        if self.shared is not None:
            dshare = (drows * self.common).sum(-1, keepdims=True)
            dx += self.shared.backward(drows * self.share)
            dx += self.shared_gate.backward(dshare * self.share * (1 - self.share))
        return dx.reshape(dy.shape)
