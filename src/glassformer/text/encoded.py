"""The result of encoding: ids, and where each token came from."""

from typing import NamedTuple


class Encoded(NamedTuple):
    """One or two encoded texts, with the source of each token."""

    ids: list[int]
    spans: list[tuple[int, int]]
    """Character span of each token in its text; (0, 0) for a special token."""
    token_types: list[int]
    """Segment number of each token, for models with token types."""
    sources: list[int | None]
    """Index of each token's text, 0 or 1; None for a special token."""

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, limit: int) -> "Encoded":
        """Truncate to `limit` tokens, from the end of the longer text. Special tokens stay."""
        sizes = [self.sources.count(text) for text in (0, 1)]
        room = max(limit - self.sources.count(None), 0)
        # Each text gets half of the room, the first the odd token; unused room goes to the other.
        halves = [(room + 1) // 2, room // 2]
        left = [min(sizes[text], max(halves[text], room - sizes[1 - text])) for text in (0, 1)]
        places = []
        for place, source in enumerate(self.sources):
            if source is not None:
                left[source] -= 1
            if source is None or left[source] >= 0:
                places.append(place)
        return Encoded(*([part[place] for place in places] for part in self))  # type: ignore[arg-type]
