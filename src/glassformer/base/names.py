"""Suggestions for misspelled names: flags, recipe keys, tasks, commands, corpora, presets, files."""

import difflib
import os
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

MAX_LISTED = 60
"""Largest number of names that an error lists."""
MAX_COMPARED = 1000
"""Largest number of files that a misspelled path is compared with."""


def nearest(name: object, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name that is most similar to `name`, or None if no similarity reaches `cutoff` (0 to 1).

    Case is ignored, and so is the difference between hyphens and underscores.
    """
    plain = {_plain(one): one for one in known if one}
    found = difflib.get_close_matches(_plain(str(name)[:100]), plain, n=1, cutoff=cutoff)
    return plain[found[0]] if found else None


def suggestion(name: object, known: Iterable[str], *, aliases: Mapping[str, str] | None = None) -> str:
    """Return the end of an error about an unknown name: "did you mean 'warmup'?", or a list of the known names.

    `aliases` maps names that other libraries use to the known names.
    """
    names = [one for one in known if one]
    near = (aliases or {}).get(str(name)) or nearest(name, names)
    if near:
        return f"did you mean {near!r}?"
    more = ", ..." if len(names) > MAX_LISTED else ""
    return f"expected {'one of ' * (len(names) > 1)}{', '.join(names[:MAX_LISTED])}{more}"


def path_suggestion(path: Path) -> str:
    """Return the end of an error about a missing path.

    It suggests a similar name in the same folder, or says where the path was looked for.
    """
    folder = path.absolute().parent
    try:
        names = [entry.name for entry in islice(os.scandir(folder), MAX_COMPARED)]
    except OSError:
        return f"the folder {folder} cannot be opened: check the name"
    near = nearest(path.name, names)
    return f"did you mean {path.with_name(near)}?" if near else f"check the name; it is looked for in {folder}"


def no_such_model(path: Path) -> str:
    """Return the message for a missing model folder, or a missing model file (.gguf, .bin), with a suggestion."""
    kind = "file" if path.suffix.lower() in (".gguf", ".bin") else "model folder"
    return f"{path}: no such {kind}: {path_suggestion(path)}"


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").strip("_")
