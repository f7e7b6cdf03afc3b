"""The result of encoding one or two texts: token ids, and the characters of its text that each token covers."""

from typing import NamedTuple


class Encoded(NamedTuple):
    """One or two encoded texts, special tokens included. All fields have one entry per token."""

    ids: list[int]
    spans: list[tuple[int, int]]
    """Character span of each token in its text; (0, 0) for a special token."""
    token_types: list[int]
    """Segment number of each token, 0 or 1, for models with token type embeddings, such as BERT."""
    sources: list[int | None]
    """Which text each token belongs to, 0 or 1; None for a special token."""

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, limit: int) -> "Encoded":
        """Return this encoding, shortened to `limit` tokens by removing tokens from the ends of the texts.

        Special tokens stay. Two texts share the remaining tokens equally, unless one needs less than its half.
        """
        sizes = [self.sources.count(text) for text in (0, 1)]
        room = max(limit - self.sources.count(None), 0)
        # Each text gets half of the tokens, the first one more if they are odd. A text may use what the other leaves.
        halves = [(room + 1) // 2, room // 2]
        left = [min(sizes[text], max(halves[text], room - sizes[1 - text])) for text in (0, 1)]
        places = []
        for place, source in enumerate(self.sources):
            if source is not None:
                left[source] -= 1
            if source is None or left[source] >= 0:
                places.append(place)
        return Encoded(*([part[place] for place in places] for part in self))  # type: ignore[arg-type]
