"""The option `--part I/N` of verbs that array jobs of a cluster divide among them."""

import re

from glassformer.cli.flag_parser import UsageError


def read_part(text: str) -> tuple[int, int]:
    """Return the numbers of a part such as "2/8": its place, counted from 1, and the number of parts. "" is 1/1."""
    if not text:
        return 1, 1
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--part {text}: expected I/N with I from 1 to N, such as 2/8")
    return int(match[1]), int(match[2])
