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
        places = list(range(len(self.ids)))
        while len(places) > limit:
            sizes = {text: sum(self.sources[place] == text for place in places) for text in (0, 1)}
            longer = max(sizes, key=lambda text: (sizes[text], text))
            if not sizes[longer]:
                break
            # As many as it takes, but not past the other text's length: then they take turns.
            spare = max(1, min(len(places) - limit, sizes[longer] - sizes[1 - longer]))
            going = {*[place for place in places if self.sources[place] == longer][-spare:]}
            places = [place for place in places if place not in going]
        return Encoded(*([part[place] for place in places] for part in self))  # type: ignore[arg-type]
