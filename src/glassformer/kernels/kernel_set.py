"""The operations of one decoding step that have fast implementations, and their plain torch versions.

`KernelSet` is the plain torch implementation, which runs everywhere. `triton_kernels.py` and `cpp_kernels.py` override
the operations that they do faster; `kernel_registry.py` picks one of the three. The fast ones are tested against the
plain ones.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.kernels.stable_topk import stable_topk

MAX_QUERIES = 16
"""The attention kernels of a GPU take at most this many queries: a tensor core multiplies at least 16 rows at once."""
MAX_CHOICES = 64
"""Up to this many best tokens, repeated selection is faster than sorting."""
ACTIVATIONS = (None, "relu", "gelu", "gelu_tanh", "silu")
"""The activations of `fused_linear`; None is the identity."""


class NormWeights(NamedTuple):
    """A layer norm, or with `centers` False an RMS norm, over the last axis."""

    weight: Tensor
    bias: Tensor | None
    eps: float
    centers: bool
    """Whether the mean is subtracted, as a layer norm does."""


class TokenPlace(NamedTuple):
    """Where the next token of each batch row belongs in the cache of a layer."""

    keys: Tensor
    """(B, G, S, D)"""
    values: Tensor
    """(B, G, S, D)"""
    position: Tensor
    """(1,), or (B,) with a position for each row."""


class NewTokens(NamedTuple):
    """A new key and value for each batch row, (B, G, 1, D), and where they belong."""

    k: Tensor
    v: Tensor
    place: TokenPlace
    angles: tuple[Tensor, Tensor] | None = None
    """Cosine and sine, as `rotate` takes them, by which `k` and its row's query are rotated first."""


class StepNumbers(NamedTuple):
    """The positions and mask of a step of a cache with constant shapes, as `number_step` returns them."""

    positions: Tensor
    """(B, 1), the position of each row's new token: the number of real tokens before it."""
    added: Tensor
    """(B, 1, 1, S), added to the scores: 0 for real tokens, the new one included, and -inf elsewhere."""
    key_end: Tensor
    """(1,), one past the place of the new tokens."""


class PaddingMask(NamedTuple):
    """The additive form of a mask that only excludes padding, as `mask_padding` returns it."""

    added: Tensor
    """(B, 1, 1, S), added to the scores: 0 for real tokens and -inf elsewhere."""
    is_empty: Tensor
    """(B, 1, 1, 1), True for rows without any real token."""
    safe: Tensor
    """`added` with 0 for rows without any real token."""
    key_end: Tensor
    """(B,), one past the last real token of each row."""


class SamplingSettings(NamedTuple):
    """How a token is drawn from a row of logits. The filters are applied in this order."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0


class BeamState(NamedTuple):
    """The state of a beam search before a step: B sentences with K hypotheses each, as in `decoding/beam.py`."""

    alive: Tensor
    """(B, K), the log-probability of each hypothesis."""
    by_rank: Tensor
    """(B, K), the indices of the hypotheses from best to worst."""
    texts: Tensor
    """(B, K, capacity), the tokens of each hypothesis, `end` after them. A step changes them in place."""
    found: Tensor
    """(B, K, capacity), the finished texts, best first. A step changes them in place."""
    found_scores: Tensor
    """(B, K), the scores of the finished texts."""
    is_decided: Tensor
    """(B,), True for sentences that get no new texts."""
    is_last: Tensor
    """(B,), True for sentences that end with any token now."""
    length: int
    """The number of tokens that each hypothesis has."""


class ExtendedBeams(NamedTuple):
    """The hypotheses after a step, (B, K) each."""

    alive: Tensor
    """Log-probabilities; NaN in a sentence that has a NaN among its next tokens."""
    latest: Tensor
    """The newest tokens."""
    parents: Tensor
    """The index of the hypothesis that each one continues."""
    by_rank: Tensor
    found_scores: Tensor


class KernelSet:
    """The operations in plain torch, and the interface of the fast implementations.

    Shapes: B batch rows, H heads, G key-value heads, T queries, S cache positions, D head size, V vocabulary.
    `position` is the number of filled positions of the cache, as a tensor (1,) that a recorded step can read.
    """

    name = "torch"
    max_queries = MAX_QUERIES
    """The most queries of `attend`."""

    def __deepcopy__(self, memo: object) -> "KernelSet":
        return self  # it holds no state of a model

    def can_attend_to_cache(self, like: Tensor) -> bool:
        """Return whether this class has `attend` for models whose parameters have the dtype and device of `like`."""
        return False

    def reads_only_filled(self, keys: Tensor, like: Tensor) -> bool:
        """Return whether steps never read the unfilled part of the cache, because `attend` supports this cache.

        `keys` are the cached keys of a layer; `like` is a parameter of the model.
        """
        return False

    def can_attend(self, q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> bool:
        """Return whether `attend` supports these tensors: their dtypes, head size and number of queries."""
        return False

    def attend(self, q: Tensor, k: Tensor, v: Tensor, added: Tensor, key_end: Tensor, scale: float) -> Tensor:
        """Return the attention of a few queries (B, H, T, D) to the first `key_end` keys and values (B, G, S, D).

        `added` broadcasts to (B, H, T, S) and is added to the scores; `key_end` is (B,) or (1,). A query whose keys
        are all masked gets zeros. There is no plain version here: `nn/attention_backends.py` has it for any number of
        queries.
        """
        raise NotImplementedError(f"the {self.name} kernels have no attention: expected a call of can_attend first")

    def can_rotate_within(self, keys: Tensor, angles: tuple[Tensor, Tensor]) -> bool:
        """Return whether `write_and_attend` takes these angles, for one query per row and head and this cache."""
        return False

    def write_and_attend(self, q: Tensor, new: "NewTokens", added: Tensor, key_end: Tensor, scale: float) -> Tensor:
        """Write the new keys and values into the cache, and then `attend` to the cache."""
        k, v, place, angles = new
        if angles is not None:
            q, k = self.rotate(q, *angles), self.rotate(k, *angles)
        write = self.write_token if len(place.position) == 1 else self.write_rows
        write(k, v, *place)
        return self.attend(q, place.keys, place.values, added, key_end, scale)

    def has_row_kernels(self, *tensors: Tensor) -> bool:
        """Return whether `rms_norm`, `layer_norm`, `silu_gate` and `rotate` support these tensors.

        There are no plain versions of the four here: the modules of `nn` compute them in plain torch.
        """
        return False

    def can_fuse_linear(self, x: Tensor) -> bool:
        """Return whether `fused_linear` and the two operations after it are faster than modules for x (..., C).

        It depends on the dtype and the number of rows.
        """
        return False

    def fuses_norms(self, x: Tensor) -> bool:
        """Return whether one kernel of `fused_linear` computes the norm, too, because x (..., C) has so few rows."""
        return False

    def fused_linear(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        norm: NormWeights | None = None,
        activation: str | None = None,
        gated: bool = False,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Return act(norm(x) weightᵀ + bias) + residual: (..., in) -> (..., out). `activation` is of `ACTIVATIONS`.

        With `gated` the weight has 2 · out rows, and the result is act(first half) * second half, plus the residual.
        """
        if norm is not None:
            x = _normalize(x, norm)
        y = F.linear(x, weight, bias)
        if gated:
            gate, up = y.chunk(2, -1)
            y = _activate(gate, activation) * up
        else:
            y = _activate(y, activation)
        return y if residual is None else y + residual

    def linear_in_parts(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return partial sums of x weightᵀ, (P, ..., out) for x (..., in), for `add_and_normalize`.

        Programs that each multiply some of the inputs need not wait for each other.
        """
        return F.linear(x, weight)[None]

    def add_and_normalize(
        self, x: Tensor, parts: Tensor | None, bias: Tensor | None, norm: NormWeights | None
    ) -> tuple[Tensor, Tensor]:
        """Return x (..., C) + the sum of `parts` (P, ..., C) + bias, and the norm of this sum.

        Without a norm both results are the sum.
        """
        for added in (None if parts is None else parts.sum(0).to(x.dtype), bias):
            x = x if added is None else x + added
        return x, x if norm is None else _normalize(x, norm)

    def can_embed(self, tokens: Tensor, table: Tensor) -> bool:
        """Return whether `embed` is faster than modules for these token ids (B, T) and this table (V, C)."""
        return False

    def embed(
        self, tokens: Tensor, table: Tensor, scale: float | None, positions: Tensor, position_table: Tensor | None
    ) -> Tensor:
        """Return the rows of a table (V, C) at token ids (B, T), times `scale`, plus those of `position_table` (L, C).

        `positions` (B or 1, T) are those of the tokens. The product is rounded before the sum.
        """
        x = F.embedding(tokens, table)
        x = x if scale is None else x * scale
        return x if position_table is None else x + F.embedding(positions, position_table)

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        """Return x (..., C) divided by the root mean square of each row, times `weight` (C,)."""
        raise NotImplementedError(f"the {self.name} kernels have no norms: expected a call of has_row_kernels first")

    def layer_norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        """Return x (..., C) with mean 0 and variance 1 in each row, times `weight` (C,) plus `bias` (C,)."""
        raise NotImplementedError(f"the {self.name} kernels have no norms: expected a call of has_row_kernels first")

    def silu_gate(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return silu(gate) * up, all (..., C)."""
        raise NotImplementedError(f"the {self.name} kernels have no gate: expected a call of has_row_kernels first")

    def can_find_angles(self, positions: Tensor) -> bool:
        """Return whether `find_angles` is faster than plain torch for these position numbers (B, T)."""
        return False

    def find_angles(self, positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of positions (B, T) times frequencies (D/2,), each (B, 1, T, D/2)."""
        angles = positions[:, None, :, None].to(frequencies.dtype) * frequencies
        return angles.cos(), angles.sin()

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return x (B, H, T, D) with each pair (x[i], x[i + D/2]) rotated by its angle.

        `cos` and `sin` are (B or 1, 1, T, D/2), in float64 or the dtype of x.
        """
        raise NotImplementedError(f"the {self.name} kernels have no rotation: expected a call of has_row_kernels first")

    def write_token(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> None:
        """Write one new key and value per batch row, (B, G, 1, D), into the cache (B, G, S, D) at `position`."""
        keys.index_copy_(2, position, k.to(keys.dtype))
        values.index_copy_(2, position, v.to(values.dtype))

    def can_number_step(self, real: Tensor, dtype: torch.dtype) -> bool:
        """Return whether `number_step` and `mask_padding` support this mask, and `attend` takes this dtype."""
        return False

    def number_step(
        self, real: Tensor, position: Tensor, dtype: torch.dtype, max_len: int | None = None
    ) -> StepNumbers:
        """Mark the new tokens as real, in place, and return the numbers of the step.

        `real` (B, S) says which tokens of the cache are real; the new ones are at `position`. Positions are less than
        `max_len`. There is no plain version here: `models/inputs.py` has it for all kinds of masks.
        """
        raise NotImplementedError(f"the {self.name} kernels number no steps: expected a call of can_number_step first")

    def mask_padding(self, real: Tensor, dtype: torch.dtype) -> PaddingMask:
        """Return the additive form of a mask (B, S) that is True for real tokens.

        There is no plain version here: `nn/masks.py` has it for all kinds of masks.
        """
        raise NotImplementedError(f"the {self.name} kernels make no masks: expected a call of can_number_step first")

    def can_write_rows(self, k: Tensor, v: Tensor, keys: Tensor) -> bool:
        """Return whether `write_rows` supports these tensors."""
        return False

    def write_rows(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        """Write one new key and value per batch row, (B, G, 1, D), at the row's own place of `positions` (B,).

        The cache has at least B rows. There is no plain version here: `runtime/pool_views.py` writes for any number of
        tokens.
        """
        raise NotImplementedError(f"the {self.name} kernels do not write rows: expected a call of can_write_rows first")

    def move_rows(
        self, keys: Tensor, values: Tensor, rows: Tensor, *, width: int | None, position: Tensor, length: int | None
    ) -> None:
        """Copy row `rows[i]` of the cache (B, G, S, D) to row i, in place, for the first `len(rows)` rows.

        With a `width` rows move only within groups of that many neighbors, as the beams of a sentence do; with None
        they may move anywhere. Only the filled positions need to be copied. Their number is in the tensor `position`,
        and as an integer in `length`, which is None in a recorded step.
        """
        for store in (keys, values):
            store[: len(rows), :, :length] = store[:, :, :length].index_select(0, rows)

    def best_token(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the highest score of each row (N, V) and the first token that has it. NaN counts as the highest."""
        found = scores.max(-1)
        return found.values, found.indices

    def best_tokens(self, scores: Tensor, bias: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the `count` highest of log_softmax(scores) + bias in each row, and their tokens, (N, count) each.

        `scores` is (N, V), `bias` (V,). The order is that of `stable_topk`. A row with a NaN score gives NaN values.
        """
        return stable_topk(scores.log_softmax(-1) + bias, count)

    def can_extend_beams(self, logs: Tensor) -> bool:
        """Return whether `extend_beams` supports log-probabilities like these: their dtype and device."""
        return False

    def extend_beams(
        self, logs: Tensor, tokens: Tensor, beams: BeamState, *, end: int, divisor: float
    ) -> ExtendedBeams:
        """Extend the hypotheses of each sentence, given the n best next tokens of each and their `logs`, (B·K, n) each.

        `end` ends a text, and the score of a text that ends now is its log-probability divided by `divisor`. There is
        no plain version here: `decoding/beam.py` has it.
        """
        raise NotImplementedError(f"the {self.name} kernels extend no beams: expected a call of can_extend_beams first")

    def can_sample(self, logits: Tensor) -> bool:
        """Return whether `sample_tokens` supports these logits: their dtype and device."""
        return False

    def sample_tokens(self, logits: Tensor, settings: Sequence[SamplingSettings], numbers: Sequence[float]) -> Tensor:
        """Draw a token from each row of logits (N, V) by its settings and a uniform number in [0, 1) -> (N,).

        The number points at a token as in `decoding/sampling.py`. A row with NaN, or with -inf only, gets any token.
        There is no plain version here: `decoding/cpu_sampling.py` has it.
        """
        raise NotImplementedError(f"the {self.name} kernels do not sample: expected a call of can_sample first")

    def choose_token(
        self, scores: Tensor, bias: Tensor, tokens: Tensor, position: Tensor, first: Tensor, results: Tensor
    ) -> None:
        """Write the best token of each row of scores (N, V) + bias (V,) into `tokens` (N, 1).

        Its score and its id are also written to `results[position - first]`. `position` and `first` are tensors (1,),
        `results` is (steps, 2, N). NaN counts as the highest score.
        """
        best, chosen = (scores + bias).max(-1)
        tokens.copy_(chosen[:, None])
        results.index_copy_(0, position - first, torch.stack([best.to(results), chosen.to(results)])[None])


def _normalize(x: Tensor, norm: NormWeights) -> Tensor:
    if norm.centers:
        return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)
    return F.rms_norm(x, x.shape[-1:], norm.weight, norm.eps)


def _activate(x: Tensor, activation: str | None) -> Tensor:
    if activation is None:
        return x
    if activation == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    functions: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}
    return functions[activation](x)


def is_exporting() -> bool:
    """Return whether torch is exporting the model as a graph, in which these kernels cannot be used.

    torch 2.11 also reports `is_exporting()` while it compiles, which is excluded here.
    """
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
