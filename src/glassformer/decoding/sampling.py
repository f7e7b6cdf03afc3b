"""Sampling: how a random next token is chosen from a language model's logits.

A language model gives one logit z per token of its vocabulary; softmax turns them into probabilities,
p(token) = exp z(token) / Σ exp z. Always taking the most likely token (greedy search) gives dull, repetitive text.
Drawing from all tokens sometimes takes a very unlikely one, and the text derails. The rules below lie in between:

| setting              | what it does                                               | paper                    |
|----------------------|------------------------------------------------------------|--------------------------|
| `repetition_penalty` | makes tokens that have occurred less likely                | Keskar et al. 2019       |
| `temperature`        | sharpens (below 1) or flattens (above 1) the distribution  | Ackley et al. 1985       |
| `top_k`              | keeps the k most likely tokens                             | Fan et al. 2018          |
| `top_p`              | keeps the most likely tokens that together reach p         | Holtzman et al. 2020     |
| `min_p`              | keeps tokens at least p times as likely as the best one    | Nguyen et al. 2024       |
| `typical_p`          | keeps tokens about as surprising as expected               | Meister et al. 2023      |

They are applied in this order, as in HF's `generate`; each sees the probabilities that those before it have left.
`rules.py` applies the repetition penalty, because beam search needs it too; `filter_logits` applies the other five.
Then `sample` draws. On a CPU `cpu_sampling.py` does the same without sorting the vocabulary.

Shapes: N sequences, V vocabulary. Each function takes logits (N, V) and one setting per sequence, (N, 1). A filter sets
the logits of the tokens that may not be drawn to -inf, so that softmax gives them probability 0 and divides it among
the tokens that are left.

The examples use one sequence and four tokens with probabilities 0.5, 0.25, 0.15 and 0.1. Temperature 0.5 squares
them, and top-k drops the last token:

>>> logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()
>>> request = GenerationConfig(do_sample=True, temperature=0.5, top_k=3)
>>> probabilities(filter_logits(logits, [request]))
[0.746, 0.187, 0.067, 0.0]
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from glassformer.decoding.generation_config import GenerationConfig

NEG_INF = float("-inf")


def filter_logits(logits: Tensor, requests: Sequence[GenerationConfig]) -> Tensor:
    """Apply each request's temperature and filters to its row of logits (N, V). Filtered tokens get -inf.

    `STAGES` lists the settings in their order. One that has its default in every request is skipped.
    """
    for name, apply in STAGES.items():
        values = [getattr(request, name) for request in requests]
        if any(value != getattr(GenerationConfig, name) for value in values):
            logits = apply(logits, torch.tensor(values)[:, None])
    return logits


def penalize_repetition(logits: Tensor, has_occurred: Tensor, penalty: Tensor) -> Tensor:
    """Make the tokens that have occurred less likely (Keskar et al. 2019): z / penalty, or z · penalty if z < 0.

    `has_occurred` (N, V) marks the tokens of the prompt and of the text so far. How often one occurred has no effect.
    Above 1 the penalty discourages repetition (1.2 is usual); 1 disables it.

    Here the first token has occurred. Its logit is log 0.5 < 0, and 2 · log 0.5 = log 0.25: it is now as likely as the
    second. The probabilities 0.25, 0.25, 0.15 and 0.1 are divided by their sum 0.75.

    >>> has_occurred = torch.tensor([[True, False, False, False]])
    >>> probabilities(penalize_repetition(logits, has_occurred, torch.tensor([[2.0]])))
    [0.333, 0.333, 0.2, 0.133]
    """
    penalized = torch.where(logits < 0, logits * penalty, logits / penalty)  # both branches lower the logit
    return torch.where(has_occurred, penalized, logits)


def apply_temperature(logits: Tensor, temperature: Tensor) -> Tensor:
    """Divide the logits by the temperature t (Ackley et al. 1985): probabilities become proportional to p ** (1 / t).

    Below 1 likely tokens become likelier; towards 0 sampling becomes greedy search. Above 1 the distribution flattens.

    >>> probabilities(apply_temperature(logits, torch.tensor([[0.5]])))  # squares: 0.25, 0.0625, 0.0225, 0.01
    [0.725, 0.181, 0.065, 0.029]
    """
    return logits / temperature.to(logits.device)


def filter_top_k(logits: Tensor, k: Tensor) -> Tensor:
    """Keep the k most likely tokens of each row, and those equal to the k-th (Fan et al. 2018). 0 disables the filter.

    >>> probabilities(filter_top_k(logits, torch.tensor([[2]])))  # 0.5 and 0.25, divided by their sum 0.75
    [0.667, 0.333, 0.0, 0.0]
    """
    count = k.clamp_max(logits.shape[-1])
    likeliest = logits.topk(max(int(count.max()), 1)).values
    lowest_kept = likeliest.gather(1, (count.clamp_min(1) - 1).to(logits.device))
    is_dropped = (logits < lowest_kept) & (count > 0).to(logits.device)
    return logits.masked_fill(is_dropped, NEG_INF)


def filter_top_p(logits: Tensor, p: Tensor) -> Tensor:
    """Nucleus sampling (Holtzman et al. 2020): keep the most likely tokens, just enough to reach a sum of p.

    The set is small where the model is sure and large where it is not, unlike top-k. At least one token is kept; 1
    disables the filter.

    >>> probabilities(filter_top_p(logits, torch.tensor([[0.7]])))  # 0.5 is below 0.7; 0.5 + 0.25 is enough
    [0.667, 0.333, 0.0, 0.0]
    """
    p = p.to(logits.device)
    probs = logits.softmax(-1)
    kept, tokens = probs.sort(descending=True, stable=True)
    is_kept = kept.cumsum(-1) - kept < p  # the tokens before it have not reached p
    is_kept[:, 0] = True  # if p is 0
    return _keep(logits, tokens, is_kept, p)


def filter_min_p(logits: Tensor, p: Tensor) -> Tensor:
    """Keep tokens with at least p times the probability of the most likely one (Nguyen et al. 2024).

    The limit follows the model: where it is sure of its best token, few other tokens pass. 0 disables the filter.

    >>> probabilities(filter_min_p(logits, torch.tensor([[0.4]])))  # the limit is 0.4 * 0.5 = 0.2
    [0.667, 0.333, 0.0, 0.0]
    """
    probs = logits.softmax(-1)
    return logits.masked_fill(probs < p.to(logits.device) * probs.amax(-1, keepdim=True), NEG_INF)


def filter_typical(logits: Tensor, p: Tensor) -> Tensor:
    """Locally typical sampling (Meister et al. 2023): keep the most typical tokens until their probabilities reach p.

    A token's surprisal is -log(probability); the entropy is the expected surprisal. Typical tokens have a surprisal
    close to the entropy, so a token can be dropped for being too predictable. 1 disables the filter.

    Here the surprisals are 0.69, 1.39, 1.90 and 2.30, and the entropy is 1.21: the second token is the most typical.

    >>> probabilities(filter_typical(logits, torch.tensor([[0.2]])))
    [0.0, 1.0, 0.0, 0.0]
    """
    p = p.to(logits.device)
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp()
    entropy = -(log_probs * probs).nansum(-1, keepdim=True)
    distance = (-log_probs - entropy).abs()
    ordered, tokens = distance.sort()
    sums = probs.gather(1, tokens).cumsum(-1)
    last = (sums < p).sum(-1, keepdim=True).clamp_max(tokens.shape[-1] - 1)
    is_kept = distance <= ordered.gather(1, last)
    return logits.masked_fill(~is_kept & (p < 1), NEG_INF)


def sample(logits: Tensor, numbers: Sequence[float]) -> Tensor:
    """Sample one token per row by inverse-CDF sampling: logits (N, V) -> (N,).

    `numbers` holds one uniform number in [0, 1) per row, so that a request's result does not depend on the rest of the
    batch. The tokens lie side by side on the line from 0 to 1, in the order of the vocabulary, each as wide as its
    probability; the number points at one of them. Below, 0.6 lies beyond the first token, which ends at 0.5, and before
    0.75.

    >>> sample(logits, [0.6]).tolist()
    [1]
    """
    ends = logits.softmax(-1).cumsum(-1)
    total = ends[:, -1:]  # 1 up to rounding
    target = torch.tensor(numbers, dtype=ends.dtype, device=ends.device)[:, None] * total
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))  # a product may round up to total
    # The first token that ends beyond the target has a width above 0. A row of NaN has none; the caller reports it.
    return (ends <= target).sum(-1).clamp_max(logits.shape[-1] - 1)


def probabilities(logits: Tensor) -> list[float]:
    """Return the probabilities of a single row of logits (1, V), rounded for reading."""
    return [round(value, 3) for value in logits.softmax(-1)[0].tolist()]


def _keep(logits: Tensor, tokens: Tensor, is_kept: Tensor, p: Tensor) -> Tensor:
    """Return the logits (N, V), with -inf except at the ids `tokens` (N, V) where `is_kept` (N, V) is True.

    A row whose p is 1 is returned unchanged: the filter is disabled there.
    """
    kept = torch.full_like(logits, NEG_INF).scatter(1, tokens, logits.gather(1, tokens).where(is_kept, NEG_INF))
    return logits.where(p >= 1, kept)


STAGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "temperature": apply_temperature,
    "top_k": filter_top_k,
    "top_p": filter_top_p,
    "min_p": filter_min_p,
    "typical_p": filter_typical,
}
"""The functions that `filter_logits` applies, in this order, by the `GenerationConfig` setting that they take."""
