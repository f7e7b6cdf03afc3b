"""A text as a model reads it, and where each token came from."""

from typing import NamedTuple


class Encoded(NamedTuple):
    """A text, or two, as a model reads it, and where each token came from."""

    ids: list[int]
    spans: list[tuple[int, int]]
    """Where each token's characters stand in its text; (0, 0) for a special token."""
    token_types: list[int]
    """The number of the segment, for models that embed it."""
    sources: list[int | None]
    """Which text a token belongs to, 0 or 1; None for a special token."""

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, limit: int) -> "Encoded":
        """At most `limit` tokens: of the longer text the last ones go, special tokens stay."""
        sizes = [self.sources.count(text) for text in (0, 1)]
        room = max(limit - self.sources.count(None), 0)
        # Half of the room each, the first text the odd one; what the other does not need is added.
        halves = [(room + 1) // 2, room // 2]
        left = [min(sizes[text], max(halves[text], room - sizes[1 - text])) for text in (0, 1)]
        places = []
        for place, source in enumerate(self.sources):
            if source is not None:
                left[source] -= 1
            if source is None or left[source] >= 0:
                places.append(place)
        return Encoded(*([part[place] for place in places] for part in self))  # type: ignore[arg-type]
