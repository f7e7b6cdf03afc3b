"""Which rows come together in a batch: a pure function of (seed, epoch, position).

Rows are put into cells by their lengths, rounded up to a grid. Cells are laid end to end in a snake, so that
neighbours are alike, and cut into batches whose padded size stays within the budget. Which row of a cell falls into
which batch, and in which order the batches come, is drawn anew for each epoch; how many batches there are, and their
shapes, is not. So step n is batch n mod (batches an epoch) of epoch n div (batches an epoch), and seeking costs
nothing.
"""

import numpy as np

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


def grid(lengths: Numbers, step: int) -> Numbers:
    """Lengths rounded up to a grid of `step` that grows coarser by eighths: 2, 4, ... 16, 18, 20, ... 32, 36, ... ."""
    fine = np.maximum(step, 2.0 ** np.floor(np.log2(np.maximum(lengths, 1)) - 3)).astype(np.int64)
    return -(-lengths // fine) * fine


class BatchPlan:
    """Batches of rows that have one length, or two (a source's and a target's), on the grid already."""

    def __init__(self, first: Numbers, second: Numbers | None = None, *, max_tokens: int, seed: int):
        if not len(first):
            raise ValueError("the corpus is empty: expected at least one pair")
        second = np.zeros_like(first) if second is None else second
        longest = int(np.maximum(first, second).max())
        if longest > max_tokens:
            raise ValueError(f"max_tokens={max_tokens}: expected at least {longest}, for the longest sentence alone")
        self.seed = seed
        # The snake: first lengths rise within even second lengths and fall within odd ones.
        rank = np.unique(second, return_inverse=True)[1]
        snake = np.where(rank % 2 == 0, first, -first)
        self._cells = np.unique(np.stack((second, snake), 1), axis=0, return_inverse=True)[1].reshape(-1)
        order = np.argsort(self._cells, kind="stable")
        self._shapes = first[order], second[order]  # the same for every epoch: cells are uniform
        self._cuts = self._cut(*self._shapes, max_tokens)
        self._drawn: tuple[int, list[Numbers]] | None = None

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self._cuts) - 1

    def rows(self, step: int) -> Numbers:
        """The rows of this step, whatever was asked for before."""
        epoch, position = divmod(step, len(self))
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, self._draw(epoch)
        return self._drawn[1][position]

    def padded_tokens(self) -> int:
        """Tokens of an epoch, padding included, on both sides."""
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
