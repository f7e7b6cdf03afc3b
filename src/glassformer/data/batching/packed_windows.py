"""Training batches for language models: concatenated documents, cut into windows of equal length without padding.

The token stream is END d1 END d2 END for documents d1 and d2: one END before the first document, between two, and after
the last. A pretrained model may have another token `begin` before a document: begin d1 end begin d2 end. Then `begin`
is no target, because it does not follow from the document before it. A corpus of a single text has neither. The stream
is stored in files (`token_stream.py`). A window's `segments` number its documents, so that attention can be limited to
one document.

In every epoch each token except the first is a target exactly once. The windows are adjacent, starting at an offset
drawn for the epoch, and are shuffled. To cover the first and the last token, the windows at both ends of the stream
overlap their neighbors. A target in two windows counts in the one that is earlier in the stream; in the other its label
is `IGNORED`. A batch depends on the seed and its number only.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from glassformer.data.batching.data_order import Numbers
from glassformer.data.batching.labeled_batches import IGNORED
from glassformer.data.batching.permutation import RandomPermutation
from glassformer.data.batching.token_stream import TokenWindows

MAX_DRAWN = 1 << 20
"""Largest number of windows whose order is drawn as a list. The order of more windows is computed window by window, so
that it takes no memory."""


class PackedBatch(NamedTuple):
    """A batch of windows of equal length, cut from a stream of documents.

    `targets` holds the token that follows each of `tokens`, or IGNORED. `numbers` holds the number of each token's
    document within its window; it is empty if the stream is one text.
    """

    tokens: Tensor  # (B, T)
    targets: Tensor  # (B, T)
    numbers: Tensor  # (B, T), document number of each token; shape (0) if the stream is one text

    @property
    def segments(self) -> Tensor | None:
        """Return the number of each token's document within its window, (B, T); None if the stream is one text."""
        return self.numbers if self.numbers.numel() else None

    @property
    def n_target_tokens(self) -> int:
        """Return the number of targets that are not IGNORED, over which the loss is averaged."""
        return int((self.targets != IGNORED).sum())

    def is_learned_document(self) -> Tensor | None:
        """Return (B, T), False for tokens of documents without targets, such as padding; None if there are none."""
        if self.segments is None:
            return None
        counts = (self.targets != IGNORED).long()
        targets_of = torch.zeros_like(counts).scatter_add(1, self.numbers - self.numbers.amin(1, True), counts)
        return targets_of.gather(1, self.numbers - self.numbers.amin(1, True)) > 0

    def slice_rows(self, begin: int, end: int) -> "PackedBatch":
        """Return the windows from `begin` up to, but not including, `end`."""
        return PackedBatch(self.tokens[begin:end], self.targets[begin:end], self.numbers[begin:end])

    def to(self, device: torch.device | str) -> "PackedBatch":
        """Return the batch on `device`."""
        return PackedBatch(*(x.to(device, non_blocking=True) for x in self))


@dataclass
class PackedBatches:
    """The training batches of a token stream: `batches[n]` is batch number n, counted across epochs.

    All batches have the same shape.
    """

    stream: TokenWindows
    context: int
    """Number of tokens per window. A shorter stream gives one shorter window."""
    max_tokens: int = 4096
    """Maximum number of tokens per batch. A batch holds as many windows as fit, but at least one."""
    seed: int = 0

    def __post_init__(self) -> None:
        n_targets = len(self.stream) - 1  # every token except the first
        self.width = min(self.context, n_targets)
        self.rows = max(1, self.max_tokens // self.width)
        self.n_windows = -(-n_targets // self.width)
        # The overlaps of all windows sum to `over` tokens: the second window begins `shift` tokens early, and the last
        # window overlaps by the rest. No overlap may be a whole window, so `shift` has over + 1 possible values, or
        # width - over - 1 with one window more. Choose the number of windows that gives more values.
        over = self.n_windows * self.width - n_targets
        self._shifts = (0, over)
        if self.n_windows > 1 and self.width - over - 1 > over + 1:
            self.n_windows += 1
            self._shifts = (over + 1, self.width - 1)
        self._drawn: tuple[int, int, Numbers | RandomPermutation] | None = None

    def __len__(self) -> int:
        """Return the number of batches in an epoch, rounded up: the last one may contain windows of the next epoch."""
        return -(-self.n_windows // self.rows)

    def epoch_of(self, number: int) -> int:
        """Return the epoch of the first window in the batch with this number."""
        return number * self.rows // self.n_windows

    def n_rows(self, number: int) -> int:
        """Return the number of windows in the batch with this number, which is the same for all batches."""
        return self.rows

    def padding_share(self) -> float:
        """Return 0: windows have no padding."""
        return 0.0

    def __getitem__(self, number: int) -> PackedBatch:
        """Return the batch with this number. It depends on the seed and the number only."""
        first = number * self.rows
        places = [self._window(number) for number in range(first, first + self.rows)]
        windows = np.stack([self.stream.read(begin, begin + self.width + 1) for begin, _ in places]).astype(np.int64)
        tokens, targets = torch.from_numpy(windows[:, :-1].copy()), torch.from_numpy(windows[:, 1:].copy())
        for row, (_, n_shared) in enumerate(places):
            if n_shared:
                targets[row, :n_shared] = IGNORED
        if not self.stream.has_documents:
            return PackedBatch(tokens, targets, torch.empty(0, dtype=torch.long))
        if self.stream.begin != self.stream.end:
            targets[targets == self.stream.begin] = IGNORED
        return PackedBatch(tokens, targets, (tokens == self.stream.begin).cumsum(1))

    def _window(self, number: int) -> tuple[int, int]:
        """Return the index in the stream where a window starts, and its number of shared targets.

        The shared targets are its first ones, which are also in the window before it in the stream. `number` is the
        window's number, counted across epochs.
        """
        epoch, place = divmod(number, self.n_windows)
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, *self._draw(epoch)
        _, shift, order = self._drawn
        window = int(order[place])
        begin = self._begin(window, shift)
        return begin, self._begin(window - 1, shift) + self.width - begin if window else 0

    def _begin(self, window: int, shift: int) -> int:
        """Return the index in the stream where a window starts, by its place in the stream."""
        return min(max(window * self.width - shift, 0), len(self.stream) - 1 - self.width)

    def _draw(self, epoch: int) -> "tuple[int, Numbers | RandomPermutation]":
        """Return how many tokens early the second window of an epoch begins, and the order of its windows."""
        random = np.random.default_rng([self.seed, epoch])
        shift = int(random.integers(self._shifts[0], self._shifts[1] + 1))
        if self.n_windows > MAX_DRAWN:
            return shift, RandomPermutation(self.n_windows, int(random.integers(2**63)))
        return shift, random.permutation(self.n_windows)
