"""The loss that lets all experts of a model get equally many tokens, and how evenly they get them.

It is the one of Switch Transformers (Fedus et al. 2022, equations 4 to 6), as HF computes it: E Σ f_e p_e over E
experts, where f_e is how often expert e is chosen per token, and p_e its mean probability, over the tokens of all
layers. It equals K, the number of experts per token, if all experts are chosen equally often.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from glassformer.nn.expert_feedforward import ExpertFeedForward


@contextmanager
def watching_routers(model: nn.Module, see: Callable[[Tensor], object]) -> Iterator[None]:
    """Context manager that calls `see` with the scores (B, T, E) of every router of a model that computes in its block.

    Gradient checkpointing computes layers again after the block, so `see` should keep the scores as they are.
    """
    routers = [module.router for module in model.modules() if isinstance(module, ExpertFeedForward)]
    handles = [router.register_forward_hook(lambda *call: _ignore(see(call[-1]))) for router in routers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _ignore(_: object) -> None:
    """Return None: a hook that returned anything else would replace the output."""


class RoutedTokens:
    """How often the experts were chosen, and their mean probabilities, over all scores that were added."""

    def __init__(self, per_token: int):
        self.per_token = per_token
        self.choices: Tensor | float = 0.0
        self.probabilities: Tensor | float = 0.0
        self.n_tokens: Tensor | float = 0.0

    def add(self, scores: Tensor, real: Tensor | None = None) -> None:
        """Add the scores (B, T, E) of a router. `real` is (B, T), False for tokens that do not count."""
        probabilities = scores.flatten(0, -2).float().softmax(-1)  # (N, E)
        chosen = probabilities.detach().topk(self.per_token).indices
        choices = torch.zeros_like(probabilities).scatter(1, chosen, 1.0)
        counts = probabilities.new_ones(len(probabilities)) if real is None else real.flatten().float()
        self.choices = self.choices + counts @ choices
        self.probabilities = self.probabilities + counts @ probabilities
        self.n_tokens = self.n_tokens + counts.sum()

    def loss(self) -> Tensor:
        """Return the balance loss. Without tokens that count it is 0."""
        assert isinstance(self.choices, Tensor)
        assert isinstance(self.n_tokens, Tensor)
        n_tokens = self.n_tokens.clamp_min(1)
        return len(self.choices) * ((self.choices / n_tokens) * (self.probabilities / n_tokens)).sum()

    def in_words(self) -> str:
        """Return a line about the shares of tokens that the experts got."""
        assert isinstance(self.choices, Tensor)
        shares = self.choices / self.choices.sum()
        return (
            f"experts: the busiest of {len(shares)} is chosen for {shares.max():.1%} of all places, the idlest for "
            f"{shares.min():.1%} (even: {1 / len(shares):.1%}); balance loss {self.loss():.3f}"
        )


def balance_loss(scores: Sequence[Tensor], per_token: int, real: Tensor | None = None) -> Tensor:
    """Return the balance loss of the routers' scores, each (B, T, E); `per_token` experts are chosen for a token.

    `real` is (B, T), False for tokens that do not count, such as padding.
    """
    tokens = RoutedTokens(per_token)
    for one in scores:
        tokens.add(one, real)
    return tokens.loss()
