"""Documents for decoders: plain text, JSONL, folders of sources, .gz too; and how they fall into two sides.

A text comes as it stands in its file, to the last space: what a decoder learns is what it will write.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from glassformer.data.records import BadRecordError, OnBad, kind_of, open_bytes, read_records
from glassformer.data.splits import split_examples

BLANK = "blank"
"""The separator that stands for an empty line."""


class Document(NamedTuple):
    """A text, and where it came from."""

    text: str
    where: str = ""


@dataclass
class DocumentReader:
    """Iterates over the documents of files and folders, as often as asked; blank ones are none."""

    paths: Sequence[Path]
    suffixes: Sequence[str] = (".txt",)
    """Of the files that count in a folder."""
    column: str = "text"
    separator: str = ""
    """A line between documents of one file; BLANK is an empty one."""
    on_bad: OnBad = "error"
    skipped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.files = [file for path in self.paths for file in self._files(path)]

    def __iter__(self) -> Iterator[Document]:
        self.skipped.clear()
        for path in self.files:
            kind = kind_of(path)
            yield from self._texts(path) if kind == "text" else self._records(path)

    def _files(self, path: Path) -> list[Path]:
        if path.is_file():
            return [path]
        if not path.is_dir():
            raise FileNotFoundError(f"{path}: no such file or folder")
        names = tuple(ending for suffix in self.suffixes for ending in (suffix, f"{suffix}.gz"))
        found = sorted(file for file in path.rglob("*") if file.is_file() and file.name.endswith(names))
        if not found:
            raise ValueError(f"{path} holds no file that ends in {' or '.join(self.suffixes)}: expected at least one")
        return found

    def _records(self, path: Path) -> Iterator[Document]:
        for record in read_records(path, [self.column]):
            problem = record.problem
            if not problem:
                (text,) = record.cells
                if isinstance(text, str) and text.strip():
                    yield Document(text, record.where)
                    continue
                problem = f"empty {self.column}" if isinstance(text, str) else f"no text under {self.column!r}"
            self._refuse(record.where, problem)

    def _texts(self, path: Path) -> Iterator[Document]:
        if self.separator:
            yield from self._parts(path)
            return
        with open_bytes(path) as stream:
            contents = stream.read()
        try:
            text = contents.decode("utf-8")
        except UnicodeDecodeError as error:
            line = contents.count(b"\n", 0, error.start) + 1
            self._refuse(f"{path}:{line}", "not valid UTF-8")
            return
        if text.strip():
            yield Document(text, str(path))

    def _parts(self, path: Path) -> Iterator[Document]:
        """The documents between separators, a line at a time: a file may be larger than memory."""
        wanted = "" if self.separator == BLANK else self.separator
        lines: list[str] = []
        begin = 1
        with open_bytes(path) as stream:
            for number, line in enumerate(stream, start=1):
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError:
                    self._refuse(f"{path}:{number}", "not valid UTF-8")
                    continue
                if text.strip() != wanted:
                    lines.append(text)
                    continue
                if document := "".join(lines).rstrip("\r\n"):
                    yield Document(document, f"{path}:{begin}")
                lines, begin = [], number + 1
        if document := "".join(lines).rstrip("\r\n"):
            yield Document(document, f"{path}:{begin}")

    def _refuse(self, where: str, problem: str) -> None:
        if self.on_bad == "error":
            raise BadRecordError(f"{where}: {problem} (on_bad='skip' passes over such documents)")
        self.skipped[problem] += 1


class TwoSides(NamedTuple):
    """Documents to learn from, and to validate on."""

    train: Iterable[Document]
    valid: Iterable[Document]


def split_documents(documents: Iterable[Document], share: float = 0.0) -> TwoSides:
    """By position: the last `share` of the text. Without a share by a hash of each document, one in twenty-five; where
    that leaves nothing to validate on, the last tenth of the text."""
    if not 0 <= share < 1:
        raise ValueError(f"valid_share={share}: expected a share of the text, from 0 to below 1")
    if not share:
        sides = split_examples(documents, lambda document: document.text, test=0.0)
        if all(next(iter(sides[side]), None) is not None for side in ("train", "valid")):
            return TwoSides(sides["train"], sides["valid"])
    return split_by_position(documents, share or 0.1)


def split_by_position(documents: Iterable[Document], share: float) -> TwoSides:
    """The text up to some character, and the rest; the document that stands there is cut in two."""
    whole = list(documents)
    left = int(sum(len(document.text) for document in whole) * (1 - share))
    train, valid = [], []
    for document in whole:
        before, after = document.text[: max(left, 0)], document.text[max(left, 0) :]
        left -= len(document.text)
        train += [Document(before, document.where)] if before else []
        valid += [Document(after, document.where)] if after else []
    return TwoSides(train, valid)


def is_one_text(documents: Iterable[Document]) -> bool:
    """Whether there is one document alone, whose windows need no borders."""
    return len(list(islice(documents, 2))) == 1
