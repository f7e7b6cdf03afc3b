"""The operations of one decoding step that have fast implementations, and their plain torch versions.

`KernelSet` is the plain torch implementation, which runs everywhere. `triton_kernels.py` and `cpp_kernels.py` override
what they do faster; `registry.py` picks one of the three. Each is tested against this file.
"""

import torch
from torch import Tensor

MAX_QUERIES = 16
"""The attention kernels take at most this many queries: a tensor core multiplies at least 16 rows at once."""
MAX_CHOICES = 64
"""Up to this many best tokens, repeated selection is faster than sorting."""


class KernelSet:
    """The operations in plain torch.

    Shapes: B rows, H heads, G key-value heads, T queries, S cache positions, D head size, V vocabulary. `position` is a
    tensor (1,), so that a recorded step can read it: the number of filled positions of the cache.
    """

    name = "torch"

    def __deepcopy__(self, memo: object) -> "KernelSet":
        return self  # it holds no state of a model

    def can_attend_to_cache(self, like: Tensor) -> bool:
        """Whether `attend` exists for a model that computes with the dtype of `like`, on its device."""
        return False

    def reads_only_filled(self, keys: Tensor, like: Tensor) -> bool:
        """Whether `attend` takes such cached keys, and so never reads the unfilled part of the cache."""
        return False

    def can_attend(self, q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> bool:
        """Whether `attend` takes these tensors."""
        return False

    def attend(self, q: Tensor, k: Tensor, v: Tensor, added: Tensor, key_end: Tensor, scale: float) -> Tensor:
        """Attention of a few queries (B, H, T, D) to the first `key_end` keys and values of each row (B, G, S, D).

        `added` broadcasts to (B, H, T, S) and is added to the scores; `key_end` is (B,) or (1,). A query whose keys
        are all masked gets zeros. There is no plain version here: `nn/attention_backends.py` has it for any number of
        queries.
        """
        raise NotImplementedError(f"the {self.name} kernels have no attention: expected can_attend to be asked first")

    def write_token(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> None:
        """Write one new key and value per row, (B, G, 1, D), into the cache (B, G, S, D) at `position`."""
        keys.index_copy_(2, position, k.to(keys.dtype))
        values.index_copy_(2, position, v.to(values.dtype))

    def move_rows(
        self, keys: Tensor, values: Tensor, rows: Tensor, *, width: int | None, position: Tensor, length: int | None
    ) -> None:
        """Copy row `rows[i]` of the cache (B, G, S, D) to row i, in place, for the first `len(rows)` rows.

        With a `width` rows move only within groups of that many neighbors, as the beams of a sentence do; with None
        they may move anywhere. Only the filled positions need to move: the first `position`, or `length` where Python
        knows the number (a recorded step does not).
        """
        for store in (keys, values):
            store[: len(rows), :, :length] = store[:, :, :length].index_select(0, rows)

    def best_token(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the highest score of each row of (N, V) and its first token. NaN counts as the highest."""
        found = scores.max(-1)
        return found.values, found.indices

    def best_tokens(self, scores: Tensor, bias: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the `count` highest of log_softmax(scores) + bias in each row, and their tokens, (N, count) each.

        `scores` is (N, V), `bias` (V,). The order is that of `stable_topk`. A row with a NaN score gives NaN.
        """
        return stable_topk(scores.log_softmax(-1) + bias, count)

    def choose_token(self, scores: Tensor, bias: Tensor, tokens: Tensor, slot: Tensor, results: Tensor) -> None:
        """Write the best token of each row of scores (N, V) + bias (V,) into `tokens` (N, 1).

        Its score and its id also go to `results[slot]`, of (steps, 2, N). NaN counts as the highest score.
        """
        best, chosen = (scores + bias).max(-1)
        tokens.copy_(chosen[:, None])
        results.index_copy_(0, slot, torch.stack([best.to(results), chosen.to(results)])[None])


def stable_topk(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` highest scores of each row (N, V) and their tokens, highest first, ties by the lower token.

    `Tensor.topk` returns ties in any order. On a GPU ties are ordered only among the `count` returned: finding the
    first of more would mean waiting for the GPU, or sorting the vocabulary.
    """
    values, places = scores.topk(min(count + 1, scores.shape[1]))
    if not scores.is_cuda:
        has_ties = (values[:, 1:] == values[:, :-1]) & (values[:, 1:] > float("-inf"))
        if has_ties.any():
            values, places = scores.sort(descending=True, stable=True)
        return values[:, :count], places[:, :count]
    values, (places, order) = values[:, :count], places[:, :count].sort()
    values, order = values.gather(1, order).sort(descending=True, stable=True)
    return values, places.gather(1, order)


def find_key_end(allowed: Tensor) -> Tensor:
    """Return one past the last key that any query of a row may attend to: (B or 1, H or 1, T or 1, S) -> (B or 1,)."""
    places = torch.arange(1, allowed.shape[3] + 1, device=allowed.device)
    is_seen = allowed[:, 0, 0] if allowed.shape[1] == allowed.shape[2] == 1 else allowed.any(2).any(1)
    return (is_seen * places).amax(1)


def is_exporting() -> bool:
    """Whether a graph is being exported, where these kernels cannot be used.

    torch 2.11 also reports `is_exporting()` while it compiles.
    """
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
