"""A long text in several readings: windows that overlap, each behind the same question."""

from glassformer.text.encoded import Encoded


def windows(read: Encoded, limit: int | None, overlap: int) -> list[Encoded]:
    """A question and a text as readings of at most `limit` tokens that cover the whole text between them.

    Neighbours share `overlap` tokens of the text, or a half of what a window has room for where that is less: so a
    span of that many stands whole in one of them. A question that would leave the text less than half of the room is
    cut at its end.
    """
    if limit is None or len(read) <= limit:
        return [read]
    question = [place for place, source in enumerate(read.sources) if source == 0]
    text = [place for place, source in enumerate(read.sources) if source == 1]
    special = len(read) - len(question) - len(text)
    kept = {*question[: max(1, limit // 2 - special)]}
    room = limit - special - len(kept)
    if room < 1:
        raise ValueError(f"windows of {limit} tokens leave a text no room: expected a longer limit")
    step = room - min(overlap, room // 2)
    found = []
    for first in range(0, max(len(text) - room, 0) + step, step):
        mine = kept.union(text[first : first + room])
        places = [p for p, source in enumerate(read.sources) if source is None or p in mine]
        found.append(Encoded(*([part[place] for place in places] for part in read)))  # type: ignore[arg-type]
        if first + room >= len(text):
            break
    return found
