"""Rule-based sentence splitting."""

import re

END = re.compile(r"[.!?][\"')\]]*(?=\s+[\"'(\[]*[A-Z0-9])")
ABBREVIATIONS = frozenset({"e.g.", "i.e.", "cf.", "vs.", "Dr.", "Mr.", "Mrs.", "Fig.", "Eq."})
"""Abbreviations that often precede a capital letter or a number, and so do not end a sentence."""


def split_sentences(text: str) -> list[str]:
    """Split a text at line breaks, and after . ! ? if a space and a capital letter or digit follow."""
    found = []
    for line in text.splitlines():
        begin = 0
        for match in END.finditer(line):
            if line[begin : match.end()].split()[-1].lstrip("([\"'") not in ABBREVIATIONS:
                found.append(line[begin : match.end()].strip())
                begin = match.end()
        found.append(line[begin:].strip())
    return [sentence for sentence in found if sentence]
