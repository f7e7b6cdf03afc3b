"""Split the context of a question into overlapping windows that fit the model, each with the question."""

from glassformer.text.encoded import Encoded


def windows(read: Encoded, limit: int | None, overlap: int) -> list[Encoded]:
    """Return windows of at most `limit` tokens, each with the question and a part of the context.

    `read` is the encoded pair of question and context. With a `limit` of None there is one window. Adjacent windows
    share `overlap` tokens of the context, or half of what a window holds of it if that is less; every span of at most
    so many tokens is whole in one window. A question that would leave the context less than half of the window is
    truncated.
    """
    if limit is None or len(read) <= limit:
        return [read]
    question = [place for place, source in enumerate(read.sources) if source == 0]
    text = [place for place, source in enumerate(read.sources) if source == 1]
    special = len(read) - len(question) - len(text)
    kept = {*question[: max(1, limit // 2 - special)]}
    room = limit - special - len(kept)
    if room < 1:
        raise ValueError(f"windows of {limit} tokens have no tokens left for the text: expected a higher limit")
    step = room - min(overlap, room // 2)
    found = []
    for first in range(0, max(len(text) - room, 0) + step, step):
        mine = kept.union(text[first : first + room])
        places = [p for p, source in enumerate(read.sources) if source is None or p in mine]
        found.append(Encoded(*([part[place] for place in places] for part in read)))  # type: ignore[arg-type]
        if first + room >= len(text):
            break
    return found
