"""Shares of corpora in the training batches: `--mix news=0.7,web=0.3`."""

from collections.abc import Iterable
from pathlib import Path


class MixError(ValueError):
    """`--mix` has a wrong value."""

    exit_code = 2


def read_mix(text: str) -> dict[str, float]:
    """Return the weights in a text such as "news=0.7,web=0.3" by name; empty for an empty text.

    Weights are numbers above 0 with any sum.
    """
    found: dict[str, float] = {}
    for item in text.split(",") if text.strip() else ():
        name, equals, number = (part.strip() for part in item.partition("="))
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if not name or not equals or not 0 < weight < float("inf"):
            raise MixError(
                f"--mix {text}: {item!r} is no share: expected NAME=NUMBER with a number above 0, such as "
                "news=0.7,web=0.3"
            )
        if name in found:
            raise MixError(f"--mix {text}: {name} occurs twice: expected it once")
        found[name] = weight
    return found


def mix_name(path: Path, names: Iterable[str]) -> str:
    """Return which of the names of `--mix` a training file belongs to; "" if there are no names.

    It belongs to a name with which its own name begins, or which one of its folders has.
    """
    names = list(names)
    if not names:
        return ""
    found = [name for name in names if path.name.startswith(name) or name in path.parts[:-1]]
    if len(found) != 1:
        those = f"{' and '.join(found)}" if found else "none of them"
        raise ValueError(
            f"--mix has the names {', '.join(names)}, and {path} belongs to {those}: expected exactly one whose name "
            "begins the file's name or is one of its folders"
        )
    return found[0]
