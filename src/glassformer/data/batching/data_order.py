"""The data order of training: which rows form batch number n, as a pure function of the seed and n.

A row is the index of a tokenized example, such as a text or a sentence pair.

In a run with A = `accumulate` batches per update, update u takes the batches u * A to u * A + A - 1, unless the batch
grows (`update_batches.py`). Updates are counted from 0, and skipped updates count too (`training/trainer.py`). Language
models read windows instead of rows; `packed_windows.py` decides their order.

Rows are grouped into cells by their lengths, rounded up to a grid. The cells are ordered so that neighbors have similar
lengths, and cut into batches whose padded size stays within the budget. Every epoch shuffles the rows within each cell
and the order of the batches. The number of batches and their shapes stay the same, so batch n is batch n mod (batches
per epoch) of epoch n div (batches per epoch), and seeking to a batch costs nothing.
"""

import numpy as np

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


def grid(lengths: Numbers, step: int) -> Numbers:
    """Round lengths up to multiples of `step`, and long ones up to coarser multiples.

    For a step of 2 the results are 2, 4, ... 16, 18, 20, ... 32, 36, ...
    """
    fine = np.maximum(step, 2.0 ** np.floor(np.log2(np.maximum(lengths, 1)) - 3)).astype(np.int64)
    return -(-lengths // fine) * fine


class BatchPlan:
    """Assigns rows (tokenized examples) to batches of at most `max_tokens` padded tokens, and orders the batches.

    `first` holds the length of each row, already rounded by `grid`. For sentence pairs it holds the source lengths and
    `second` the target lengths; the longer side counts for `max_tokens`.
    """

    def __init__(self, first: Numbers, second: Numbers | None = None, *, max_tokens: int, seed: int):
        if not len(first):
            raise ValueError("the corpus is empty: expected at least one example")
        second = np.zeros_like(first) if second is None else second
        longest = int(np.maximum(first, second).max())
        if longest > max_tokens:
            raise ValueError(
                f"max_tokens={max_tokens}: expected at least {longest}, the length of the longest sentence"
            )
        self.seed = seed
        # Snake order: source lengths rise within every other target length and fall within the rest.
        rank = np.unique(second, return_inverse=True)[1]
        snake = np.where(rank % 2 == 0, first, -first)
        self._cells = np.unique(np.stack((second, snake), 1), axis=0, return_inverse=True)[1].reshape(-1)
        order = np.argsort(self._cells, kind="stable")
        self._shapes = (
            first[order],
            second[order],
        )  # equal for every epoch, because all rows of a cell have the same length
        self._cuts = self._cut(*self._shapes, max_tokens)
        self._drawn: tuple[int, list[Numbers]] | None = None

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self._cuts) - 1

    def rows_of_batch(self, number: int) -> Numbers:
        """Return the indices of the examples in the batch with this number.

        They depend on the seed and the number only. Numbers continue across epochs.
        """
        epoch, position = divmod(number, len(self))
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, self._draw(epoch)
        return self._drawn[1][position]

    def padded_tokens(self) -> int:
        """Return the number of tokens in an epoch, padding included; for sentence pairs, of both source and target."""
        spans = zip(self._cuts, self._cuts[1:], strict=False)
        return sum((end - begin) * int(shapes[begin:end].max()) for begin, end in spans for shapes in self._shapes)

    def _cut(self, first: Numbers, second: Numbers, max_tokens: int) -> list[int]:
        cuts, widest = [0], 0
        for place, width in enumerate(np.maximum(first, second).tolist()):
            widest = max(widest, width)
            if (place - cuts[-1] + 1) * widest > max_tokens:
                cuts.append(place)
                widest = width
        return [*cuts, len(first)]

    def _draw(self, epoch: int) -> list[Numbers]:
        random = np.random.default_rng([self.seed, epoch])
        order = np.lexsort((random.random(len(self._cells)), self._cells))
        parts = [order[begin:end] for begin, end in zip(self._cuts, self._cuts[1:], strict=False)]
        return [parts[place] for place in random.permutation(len(parts))]
