"""A text to its sentences, by the plainest rule there is."""

import re

END = re.compile(r"[.!?][\"')\]]*(?=\s+[\"'(\[]*[A-Z0-9])")
ABBREVIATIONS = frozenset({"e.g.", "i.e.", "cf.", "vs.", "Dr.", "Mr.", "Mrs.", "Fig.", "Eq."})
"""Those that most often stand before a capital letter or a number."""


def split_sentences(text: str) -> list[str]:
    """The sentences of a text: each ends at a line break, or at . ! ? before a space and a capital or a number."""
    found = []
    for line in text.splitlines():
        begin = 0
        for match in END.finditer(line):
            if line[begin : match.end()].split()[-1].lstrip("([\"'") not in ABBREVIATIONS:
                found.append(line[begin : match.end()].strip())
                begin = match.end()
        found.append(line[begin:].strip())
    return [sentence for sentence in found if sentence]
