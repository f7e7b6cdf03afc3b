"""Sampling on a CPU without sorting the vocabulary: the rules of `sampling.py`, and the same tokens up to rounding.

To sort 150,000 logits takes tens of milliseconds, but their softmax takes one. So nothing that large is sorted here:

- With a small top-k, everything after it looks at the k candidates only (`_top_candidates`).
- Otherwise softmax is computed once. The filters set the weights of the tokens that they drop to 0. Weights need not
  sum to 1: a filter that needs a probability divides by their sum.
- A filter that keeps the first tokens of an order until their weights reach a limit needs the last of them, not the
  order. `find_cutoff` puts the tokens into buckets and sorts only the bucket in which the limit is reached.
- The draw adds up chunks of weights and looks into one of them (`draw`).

A model that computes with the C++ kernels draws with one of them (`kernels/cpp/sampling.h`), in half of the time and by
the same rules. Their weights are rounded differently, so the same uniform number gives the same token unless it lies
within about 1e-6 of the boundary between two tokens, or a filter's limit does.

A GPU does not use this module: it sorts quickly, and looking for candidates would make Python wait for it.

Shapes: N sequences, V vocabulary. Functions for a single row use NumPy, which for these operations is as fast as torch
and takes a tenth of the time to call.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.sampling import NEG_INF, STAGES, apply_temperature, sample
from glassformer.kernels.kernel_registry import PLAIN
from glassformer.kernels.kernel_set import KernelSet, SamplingSettings

Floats = npt.NDArray[np.floating[Any]]
FEW = 1024
"""Up to this many candidates of a row are filtered by sorting them."""
MARGIN = 32
"""More candidates than top-k asks for, because tokens equal to the k-th are kept too."""
CHUNK = 512
"""The draw adds up the weights of this many neighboring tokens first."""
BUCKET_BITS = 12
PART = 1 << 15
"""Tokens that `find_cutoff` puts into buckets at a time."""
N_BUCKETS = 1 << BUCKET_BITS
"""`find_cutoff` divides tokens into this many buckets, by this many bits of their keys."""


def sample_rows(
    logits: Tensor, requests: Sequence[GenerationConfig], numbers: Sequence[float], kernels: KernelSet = PLAIN
) -> Tensor:
    """Sample one token per row of logits (N, V) on a CPU -> (N,).

    Each row is filtered by its own request's settings. `numbers` holds one uniform number in [0, 1) per row. `kernels`
    draw if they can. The result is that of `sample(filter_logits(logits, requests), numbers)` up to rounding. A row
    that contains NaN, or -inf only, gets any token.

    >>> logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()
    >>> sample_rows(logits, [GenerationConfig(do_sample=True, top_k=2)], [0.7]).tolist()  # 0.667, 0.333, 0, 0
    [1]
    """
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    if kernels.can_sample(logits):
        settings = [SamplingSettings(*(getattr(request, name) for name in STAGES)) for request in requests]
        return kernels.sample_tokens(logits, settings, numbers)
    groups: dict[tuple[float, ...], list[int]] = {}  # rows by their settings
    for row, request in enumerate(requests):
        groups.setdefault(tuple(getattr(request, name) for name in STAGES), []).append(row)
    if len(groups) == 1:
        return _sample_group(logits, requests[0], numbers)
    tokens = torch.empty(len(logits), dtype=torch.long)
    for rows in groups.values():
        tokens[rows] = _sample_group(logits[rows], requests[rows[0]], [numbers[row] for row in rows])
    return tokens


def _sample_group(logits: Tensor, request: GenerationConfig, numbers: Sequence[float]) -> Tensor:
    """Sample one token per row, with the settings of one request for all rows: logits (N, V) -> (N,)."""
    vocab_size = logits.shape[1]
    if request.temperature != 1:
        logits = apply_temperature(logits, torch.tensor(request.temperature))
    if vocab_size <= FEW:
        return sample(_filter_few(logits, request), numbers)
    tokens = _top_candidates(logits, request.top_k) if 0 < request.top_k < vocab_size else None
    if tokens is not None:
        places = sample(_filter_few(logits.gather(1, tokens), request), numbers)
        return tokens.gather(1, places[:, None])[:, 0]
    rows = zip(logits.softmax(-1).numpy(), logits.numpy(), numbers, strict=True)
    return torch.tensor([draw(filter_weights(weights, row, request), number) for weights, row, number in rows])


def _filter_few(logits: Tensor, request: GenerationConfig) -> Tensor:
    """Apply the filters of `sampling.py`, but not the temperature, to the logits (N, M) of a few candidates."""
    for name, apply in STAGES.items():
        value = getattr(request, name)
        if name != "temperature" and value != getattr(GenerationConfig, name):
            logits = apply(logits, torch.tensor([[value]]).expand(len(logits), 1))
    return logits


def _top_candidates(logits: Tensor, k: int) -> Tensor | None:
    """Return tokens (N, M) that include the k likeliest of each row and all that equal the k-th; M is at most FEW.

    They are in the order of the vocabulary, as the draw expects. The result is None if there are too many.
    """
    count = k + MARGIN
    while count <= min(FEW, logits.shape[1]):
        values, tokens = logits.topk(count)
        # Beyond the k-th there is a lower value, so that none equal to the k-th is left out; -inf is never drawn.
        if ((values[:, -1] < values[:, k - 1]) | (values[:, k - 1] == NEG_INF)).all():
            return tokens.sort().values
        count *= 4
    return None


def filter_weights(weights: Floats, logits: Floats, request: GenerationConfig) -> Floats:
    """Set the weights of the tokens that a request's filters drop to 0, in place, and return the weights.

    Args:
        weights: softmax(logits), (V,).
        logits: After the temperature, (V,).
    """
    if not np.isfinite(weights.sum()):  # the caller reports NaN
        return np.zeros_like(weights)
    if 0 < request.top_k < len(weights):
        cutoff = find_cutoff(weights, np.ones_like(weights), request.top_k, descending=True)
        weights *= weights >= cutoff.key
    if request.top_p < 1:
        cutoff = find_cutoff(weights, weights, request.top_p * float(weights.sum()), descending=True)
        weights *= weights >= cutoff.key
        weights[cutoff.beyond] = 0.0  # of equal weights, just enough stay
    if request.min_p > 0:
        weights *= weights >= weights.max() * weights.dtype.type(request.min_p)
    if request.typical_p < 1:
        distance = _distance_from_entropy(weights, logits)
        cutoff = find_cutoff(distance, weights, request.typical_p * float(weights.sum()), descending=False)
        weights *= distance <= cutoff.key
    return weights


def _distance_from_entropy(weights: Floats, logits: Floats) -> Floats:
    """Return the difference between each token's surprisal and the entropy, (V,); inf for a logit of -inf.

    The surprisal is -log softmax(z) = log Σ exp z - z, and the entropy is its mean. So the distance between the two is
    that between z and the mean of z.
    """
    finite = np.maximum(logits, np.finfo(logits.dtype).min)  # -inf times a weight of 0 is NaN
    return np.abs(logits - weights.dtype.type(np.dot(weights, finite) / weights.sum()))


class Cutoff(NamedTuple):
    """The last token that is needed to reach a limit, as `find_cutoff` returns it."""

    key: Any
    """The key of this token, a floating-point number of NumPy."""
    beyond: npt.NDArray[np.intp]
    """All tokens with an equal key that come after it, and some with keys beyond it."""


def find_cutoff(keys: Floats, weights: Floats, limit: float, *, descending: bool) -> Cutoff:
    """Return the token at which the weights of all tokens, in the order of their keys, sum to at least `limit`.

    Tokens with equal keys are in the order of the vocabulary. The bits of floating-point numbers have the order of the
    numbers, so the highest bits of a key are the number of its bucket. The sums of the buckets tell in which one the
    limit is reached. If it holds few tokens they are sorted; otherwise the next bits divide it again. Sums are computed
    in float64.

    Args:
        keys: (V,), 0 or more, float32 or float64.
        weights: (V,), 0 or more, not all 0.
        limit: If it is above the sum of all weights, it counts as that sum; below 0, as the first weight above 0.
        descending: Whether the tokens with the largest keys come first.

    >>> keys, weights = np.array([3.0, 1.0, 2.0, 3.0]), np.array([0.1, 0.2, 0.3, 0.4])
    >>> found = find_cutoff(keys, weights, 0.6, descending=False)  # 0.2 + 0.3 is too little, 0.2 + 0.3 + 0.1 enough
    >>> float(found.key), found.beyond.tolist()
    (3.0, [3])
    """
    bits: npt.NDArray[np.integer[Any]] = keys.view(np.int64) if keys.dtype == np.float64 else keys.view(np.int32)
    shift, before, tokens = 8 * bits.itemsize - 1, 0.0, None
    limit = max(limit, np.finfo(np.float64).tiny)
    while shift and (tokens is None or (len(tokens) > FEW and np.ptp(keys[tokens]) > 0)):
        shift = max(shift - BUCKET_BITS, 0)
        buckets = (bits if tokens is None else bits[tokens]) >> shift & N_BUCKETS - 1
        own_weights = weights if tokens is None else weights[tokens]
        sums = _sum_buckets(buckets, own_weights)
        ends = before + (sums[::-1] if descending else sums).cumsum()
        limit = min(limit, ends[-1])
        chosen = int(ends.searchsorted(limit))
        before = ends[chosen - 1] if chosen else before
        is_chosen = np.flatnonzero(buckets == (N_BUCKETS - 1 - chosen if descending else chosen))
        tokens = is_chosen if tokens is None else tokens[is_chosen]
    assert tokens is not None
    if len(tokens) <= FEW:  # otherwise their keys are equal
        own_keys = keys[tokens]
        tokens = tokens[(-own_keys if descending else own_keys).argsort(kind="stable")]
    ends = before + weights[tokens].cumsum(dtype=np.float64)
    last = int(ends.searchsorted(min(limit, ends[-1])))
    return Cutoff(keys[tokens[last]], tokens[last + 1 :])


def _sum_buckets(buckets: npt.NDArray[np.integer[Any]], weights: Floats) -> npt.NDArray[np.float64]:
    """Return the sum of the weights of each bucket, (N_BUCKETS,).

    `bincount` takes four times as long to convert its arguments itself. For converted arguments of a megabyte, the
    memory would come from the operating system each time, which takes as long again; so this is done in parts.
    """
    sums = np.zeros(N_BUCKETS)
    for first in range(0, len(buckets), PART):
        part = slice(first, first + PART)
        sums += np.bincount(buckets[part].astype(np.intp), weights[part].astype(np.float64), N_BUCKETS)
    return sums


def draw(weights: Floats, number: float) -> int:
    """Draw a token with a probability proportional to its weight, by a uniform number in [0, 1), as `sample` does.

    `weights` is (V,). A token of weight 0 is never drawn, unless all are 0.

    >>> draw(np.array([2.0, 0.0, 6.0]), 0.3)  # the first token ends at 0.25
    2
    """
    chunks = np.add.reduceat(weights, np.arange(0, len(weights), CHUNK))
    chunk, target = _first_beyond(chunks, number * chunks.sum(dtype=np.float64))
    first = chunk * CHUNK
    return first + _first_beyond(weights[first : first + CHUNK], target)[0]


def _first_beyond(widths: Floats, target: float) -> tuple[int, float]:
    """Return the index of the first interval that ends beyond the target, and the target's distance from its start.

    The intervals lie side by side, begin at 0 and have these widths.
    """
    ends = widths.cumsum(dtype=np.float64)
    target = min(target, np.nextafter(ends[-1], 0.0))  # rounding may give the sum of all
    found = min(int(ends.searchsorted(target, side="right")), len(ends) - 1)
    return found, target - (ends[found - 1] if found else 0.0)
