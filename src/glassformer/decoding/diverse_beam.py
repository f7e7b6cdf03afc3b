"""Diverse beam search (Vijayakumar et al. 2018): several small beams per sentence that avoid each other's tokens.

The texts of one beam often differ in a few words only. Here a sentence has G groups with a beam of K hypotheses each.
In every step the groups choose one after the other, and a token costs `diversity_penalty` for each time that an earlier
group has chosen it in this step. The penalty decides the choice, but is not part of a hypothesis's probability.

Shapes: B sentences, G groups, K hypotheses per group, V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.sampling import NEG_INF
from glassformer.kernels.stable_topk import stable_topk

Rank = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""The type of `BeamSearch._rank`, which returns the totals, parents and tokens of the best 2K continuations."""


class RankedGroups(NamedTuple):
    """The best 2K continuations of every group, best first. Each tensor is (B·G, 2K)."""

    totals: Tensor
    """Log-probabilities, without the penalty."""
    parents: Tensor
    tokens: Tensor
    penalized: Tensor
    """Log-probabilities with the penalty, which order the continuations."""


def rank_groups(
    logs: Tensor, alive: Tensor, by_rank: Tensor, config: GenerationConfig, end: int, rank: Rank
) -> RankedGroups:
    """Return the best 2K continuations of every group. Each group avoids the tokens that earlier groups chose.

    Args:
        logs: Log-probabilities of the next tokens, (B·G·K, V).
        alive: Log-probabilities of the hypotheses, (B·G, K).
        by_rank: The indices of the hypotheses of each group from best to worst, (B·G, K).
        end: The id of END. A continuation that ends is not a choice that later groups avoid.
        rank: Ranks the continuations of one group (`BeamSearch._rank`).
    """
    groups, width, vocab_size = config.num_beam_groups, alive.shape[1], logs.shape[1]
    logs = logs.view(-1, groups, width, vocab_size)  # (B, G, K, V)
    alive, by_rank = (x.view(-1, groups, width) for x in (alive, by_rank))  # (B, G, K)
    times_chosen = torch.zeros(len(logs), vocab_size, device=logs.device)
    found = []
    for group in range(groups):
        own_logs, own_alive = logs[:, group], alive[:, group]
        penalized_logs = own_logs - config.diversity_penalty * times_chosen[:, None]
        values, best = stable_topk(penalized_logs.flatten(0, 1), min(2 * width, vocab_size))
        shape = (len(logs), width, -1)
        penalized, parents, tokens = rank(own_alive, values.view(shape), best.view(shape), by_rank[:, group])
        totals = own_alive.gather(1, parents) + own_logs.flatten(1).gather(1, parents * vocab_size + tokens)
        found.append((totals, parents, tokens, penalized))
        continuing = penalized.masked_fill(tokens == end, NEG_INF).sort(descending=True, stable=True).indices
        chosen = tokens.gather(1, continuing[:, :width])
        times_chosen.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=times_chosen.dtype))
    return RankedGroups(*(torch.stack(some, 1).flatten(0, 1) for some in zip(*found, strict=True)))
