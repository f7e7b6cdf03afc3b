"""Split labeled sentences and phrases so that no phrase of a validation sentence leaks into the training set.

    python tools/split_phrases.py FOLDER FILE ... [--column sentence] [--share 0.1]

SST-2 labels whole sentences and the phrases inside them. If phrases are split at random, a phrase of nearly every
validation sentence is in the training set, and scores are too high. Here a sentence is a text that no other text
contains. A tenth of the sentences, chosen by a hash, are for validation. A phrase is for training only if a training
sentence contains it. FOLDER/train.tsv has the training sentences and their phrases, FOLDER/valid.tsv has the validation
sentences alone, as SST-2's own validation set does.
"""

import argparse
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from glassformer.data.readers.text_files import read_lines


class Split(NamedTuple):
    """The indices of the texts for training and of those for validation."""

    train: list[int]
    valid: list[int]


def split_phrases(texts: list[str], share: float = 0.1, min_words: int = 3) -> Split:
    """Return which texts are for training and which for validation.

    `share` is the share of the sentences for validation. A phrase that only validation sentences contain is in neither
    set. Texts of fewer than `min_words` words never count as sentences, because otherwise a rare word that no sentence
    contains would be one.
    """
    words = [tuple(text.split()) for text in texts]
    known = set(words)
    inside: dict[tuple[str, ...], set[bool]] = {}
    sentences: dict[tuple[str, ...], bool] = {}
    for sentence in sorted(known, key=lambda one: (-len(one), one)):
        if sentence in inside or len(sentence) < min_words:
            continue
        sentences[sentence] = is_valid = _hash(sentence) < share
        for part in _parts(sentence):
            if part in known:
                inside.setdefault(part, set()).add(is_valid)
    found = Split([], [])
    for position, text in enumerate(words):
        if sentences.get(text):
            found.valid.append(position)
        elif False in inside.get(text, {False}):
            found.train.append(position)
    return found


def _parts(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield all contiguous runs of the words, which are the possible phrases of a sentence."""
    for first in range(len(words)):
        for last in range(first + 1, len(words) + 1):
            yield words[first:last]


def _hash(words: Iterable[str]) -> float:
    """Return a number from 0 to 1 that depends only on the words, to choose the sentences for validation."""
    return int.from_bytes(hashlib.sha256(" ".join(words).encode()).digest()[:8]) / 2**64


def main() -> None:
    """Read the files and write train.tsv and valid.tsv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="new folder for train.tsv and valid.tsv")
    parser.add_argument("files", type=Path, nargs="+", help="TSV files with a header line, .gz too")
    parser.add_argument("--column", default="sentence", help="column of the text")
    parser.add_argument("--share", type=float, default=0.1, help="share of the sentences for validation")
    options = parser.parse_args()
    lines: list[str] = []
    texts: list[str] = []
    header = ""
    for file in options.files:
        header, *rest = [line.text for line in read_lines(file)]
        column = header.split("\t").index(options.column)
        lines += rest
        texts += [line.split("\t")[column] for line in rest]
    split = split_phrases(texts, options.share)
    options.folder.mkdir(parents=True)
    for name, positions in split._asdict().items():
        told = "\n".join([header, *(lines[position] for position in positions)]) + "\n"
        (options.folder / f"{name}.tsv").write_text(told, encoding="utf-8")
        print(f"{options.folder / name}.tsv: {len(positions):,}")
    print(f"left out, in validation sentences alone: {len(texts) - len(split.train) - len(split.valid):,}")


if __name__ == "__main__":
    main()
