"""Suggestions for misspelled names: flags, recipe keys, tasks, verbs, corpora, presets."""

import difflib
from collections.abc import Iterable, Mapping

MAX_LISTED = 60
"""More names than this are not listed in an error."""


def nearest(name: object, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that is spelled most like `name`, or None. Case, hyphens and underscores do not count."""
    plain = {_plain(one): one for one in known if one}
    found = difflib.get_close_matches(_plain(str(name)[:100]), plain, n=1, cutoff=cutoff)
    return plain[found[0]] if found else None


def suggestion(name: object, known: Iterable[str], *, aliases: Mapping[str, str] | None = None) -> str:
    """The end of an error about an unknown name: "did you mean 'warmup'?", or the names that there are.

    `aliases` maps names of other libraries to ours.
    """
    names = [one for one in known if one]
    near = (aliases or {}).get(str(name)) or nearest(name, names)
    if near:
        return f"did you mean {near!r}?"
    more = ", ..." if len(names) > MAX_LISTED else ""
    return f"expected {'one of ' * (len(names) > 1)}{', '.join(names[:MAX_LISTED])}{more}"


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").strip("_")
