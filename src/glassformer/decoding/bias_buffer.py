"""The bias of the rules in a fixed buffer, which recorded steps add to their logits."""

from collections.abc import Hashable

import torch
from torch import Tensor

from glassformer.decoding.rules import Rules


class BiasBuffer:
    """The bias of `Rules.bias_after` in a buffer that stays at its address. It is computed only if it changes.

    Usually all batches of a run have the same rules. Python takes longer to make their bias than a GPU to make a step.
    """

    def __init__(self, vocab_size: int, device: torch.device):
        self.numbers: Tensor = torch.zeros(vocab_size, device=device)
        """(V,)"""
        self._key: Hashable = None

    def set(self, rules: Rules, n_written: int) -> None:
        """Let `numbers` be the bias that `rules` add to the logits of every row after `n_written` new tokens."""
        key = rules.bias_key(n_written)
        if key != self._key:
            self._key = None  # what follows may fail
            self.numbers.copy_(rules.bias_after(n_written))
            self._key = key
