"""Viterbi search for the best valid sequence of BIOES tags."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from glassformer.text.tags import OUTSIDE

Scores = NDArray[np.float32]


class TagPaths:
    """The BIOES tags for some entity labels, and which tag may follow which.

    `labels` are the entity labels, such as "PER". `tags` lists O first, then four tags per label.
    """

    def __init__(self, labels: Sequence[str]):
        self.tags = [OUTSIDE, *(f"{prefix}-{label}" for label in labels for prefix in "BIES")]
        self.follows = np.array([[_may_follow(left, right) for right in self.tags] for left in self.tags])
        """(K, K): whether the tag of the column may follow the tag of the row."""

    def best(self, scores: Sequence[Scores]) -> list[list[str]]:
        """Return, for each sentence, the valid tag sequence with the highest total score.

        `scores` has one array (T, K) per sentence of T words: the scores of the K tags. O is assumed before the first
        and after the last word, so that entities start and end inside the sentence. Ties go to the earlier tag in
        `tags`.
        """
        if not scores:
            return []
        lengths = [len(one) for one in scores]
        padded = np.full((len(scores), max(lengths) + 1, len(self.tags)), -np.inf, dtype=np.float32)
        padded[:, :, 0] = 0.0  # after the last word
        for row, one in enumerate(scores):
            padded[row, : len(one)] = one
        forbidden = np.where(self.follows, np.float32(0), np.float32(-np.inf))
        path = padded[:, 0] + forbidden[0]  # (N, K): score of the best path that ends in each tag
        came = np.zeros(padded.shape, dtype=np.int16)
        for place in range(1, padded.shape[1]):
            through = path[:, :, None] + forbidden  # (N, K, K)
            came[:, place] = through.argmax(1)
            path = through.max(1) + padded[:, place]
        chosen = np.zeros(padded.shape[:2], dtype=np.int16)
        rows = np.arange(len(scores))
        for place in range(padded.shape[1] - 1, 0, -1):  # the last is O
            chosen[:, place - 1] = came[rows, place, chosen[:, place]]
        return [
            [self.tags[tag] for tag in line[:length]] for line, length in zip(chosen.tolist(), lengths, strict=True)
        ]


def _may_follow(left: str, right: str) -> bool:
    if left[0] in "BI":
        return right[0] in "IE" and left[2:] == right[2:]
    return right[0] not in "IE"
