"""Chance: which tokens may be drawn, and the draw itself."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from glassformer.decoding.generation_config import GenerationConfig

NEVER = float("-inf")


def filter_scores(scores: Tensor, requests: Sequence[GenerationConfig]) -> Tensor:
    """The scores (N, V) with each row's temperature, and minus infinity for what its request may not draw."""

    def column(name: str) -> Tensor | None:
        values = [getattr(request, name) for request in requests]
        if all(value == getattr(GenerationConfig, name) for value in values):
            return None
        return torch.tensor(values, device=scores.device)[:, None]

    if (temperature := column("temperature")) is not None:
        scores = scores / temperature
    for name, keep in FILTERS.items():
        if (values := column(name)) is not None:
            scores = keep(scores, values)
    return scores


def draw(scores: Tensor, numbers: Sequence[float]) -> Tensor:
    """One token a row by its chance: scores (N, V), and one random number from 0 to 1 a row -> (N,)."""
    ordered, tokens = scores.softmax(-1).sort(descending=True, stable=True)
    sums = ordered.cumsum(-1)
    # Of the whole, which rounding may leave a little off 1: the first place where the sum is beyond it.
    wanted = torch.tensor(numbers, dtype=sums.dtype, device=sums.device)[:, None] * sums[:, -1:]
    place = (sums <= wanted).sum(-1, keepdim=True)
    last = ((ordered > 0).sum(-1, keepdim=True) - 1).clamp_min(0)  # a row of NaN has none; its caller knows
    return tokens.gather(1, torch.minimum(place, last))[:, 0]


def keep_top_k(scores: Tensor, k: Tensor) -> Tensor:
    """The k best tokens of each row and their equals; k (N, 1), where 0 keeps all."""
    vocab_size = scores.shape[-1]
    count = torch.where(k == 0, vocab_size, k.clamp_max(vocab_size))
    worst = scores.sort(descending=True).values.gather(1, count - 1)
    return scores.masked_fill(scores < worst, NEVER)


def keep_top_p(scores: Tensor, p: Tensor) -> Tensor:
    """The fewest best tokens whose chances reach p; p (N, 1). The best one always stays."""
    ordered, tokens = scores.sort(descending=False)
    below = ordered.softmax(-1).cumsum(-1) <= 1 - p  # all that is worse, and itself, make up no more than the rest
    below[:, -1] = False
    below &= p < 1
    return scores.masked_fill(below.gather(1, tokens.argsort(-1)), NEVER)


def keep_min_p(scores: Tensor, p: Tensor) -> Tensor:
    """Tokens with at least the share p of the best one's chance; p (N, 1)."""
    chances = scores.softmax(-1)
    return scores.masked_fill(chances < p * chances.amax(-1, keepdim=True), NEVER)


def keep_typical(scores: Tensor, p: Tensor) -> Tensor:
    """The tokens nearest to the expected surprise whose chances reach p; p (N, 1). The nearest one always stays."""
    logs = scores.log_softmax(-1)
    chances = logs.exp()
    expected = -(logs * chances).nansum(-1, keepdim=True)
    distance, tokens = (-logs - expected).abs().sort()
    sums = chances.gather(1, tokens).cumsum(-1)
    last = (sums < p).sum(-1, keepdim=True).clamp_max(scores.shape[-1] - 1)
    beyond = (distance > distance.gather(1, last)) & (p < 1)
    return scores.masked_fill(beyond.gather(1, tokens.argsort(-1)), NEVER)


FILTERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "top_k": keep_top_k,
    "top_p": keep_top_p,
    "min_p": keep_min_p,
    "typical_p": keep_typical,
}
"""In the order of HF's `generate`."""
