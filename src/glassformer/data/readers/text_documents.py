"""Read documents for language models: plain text, JSONL, or source folders, optionally with .gz; and split them.

Texts are read exactly, whitespace included, because a decoder writes what it learns.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from glassformer.data.readers.records import OnBad, kind_of, read_records
from glassformer.data.readers.splits import split_examples
from glassformer.data.readers.text_files import (
    NOT_UTF8,
    BadUtf8Error,
    Line,
    bad_record,
    check_file,
    read_lines,
    read_text,
)

BLANK = "blank"
"""The separator option's value for an empty line."""


class Document(NamedTuple):
    """A text and where it was read."""

    text: str
    where: str = ""


@dataclass
class DocumentReader:
    """Iterates over the documents of files and folders, repeatedly. Blank documents are skipped."""

    paths: Sequence[Path]
    suffixes: Sequence[str] = (".txt",)
    """Suffixes of the files to read in a folder."""
    column: str = "text"
    separator: str = ""
    """The line that separates the documents of a file; BLANK is an empty line."""
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
            check_file(path)
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
        try:
            text = read_text(path)
        except BadUtf8Error as error:
            self._refuse(error.where, NOT_UTF8)
            return
        if text.strip():
            yield Document(text, str(path))

    def _parts(self, path: Path) -> Iterator[Document]:
        """Yield the documents between separators, streaming, so that a file may be larger than memory.

        A line that is not UTF-8 makes its whole document bad.
        """
        wanted = "" if self.separator == BLANK else self.separator.strip()
        lines: list[Line] = []
        for line in chain(read_lines(path, keep_ends=True), [None]):
            if line is not None and (line.problem or line.text.strip() != wanted):
                lines.append(line)
                continue
            bad = next((one for one in lines if one.problem), None)
            document = "".join(one.text for one in lines).rstrip("\r\n")
            if bad is not None:
                self._refuse(bad.where, bad.problem)
            elif document.strip():
                yield Document(document, lines[0].where)
            lines = []

    def _refuse(self, where: str, problem: str) -> None:
        if self.on_bad == "error":
            raise bad_record(where, problem, "documents")
        self.skipped[problem] += 1


class SplitDocuments(NamedTuple):
    """Documents for training and for validation."""

    train: Iterable[Document]
    valid: Iterable[Document]


def split_documents(documents: Iterable[Document], share: float = 0.0) -> SplitDocuments:
    """Split documents into training and validation.

    With a `share`, the last part of the text is for validation. Otherwise one in 25 documents is, by hash; if that
    gives none, the last tenth of the text.
    """
    if not 0 <= share < 1:
        raise ValueError(f"valid_share={share}: expected a share of the text, from 0 to below 1")
    if not share:
        sides = split_examples(documents, lambda document: document.text, test=0.0)
        if all(next(iter(sides[side]), None) is not None for side in ("train", "valid")):
            return SplitDocuments(sides["train"], sides["valid"])
    return split_by_position(documents, share or 0.1)


def split_by_position(documents: Iterable[Document], share: float) -> SplitDocuments:
    """Split the text at a position. The document at the border is cut in two."""
    whole = list(documents)
    left = int(sum(len(document.text) for document in whole) * (1 - share))
    train, valid = [], []
    for document in whole:
        before, after = document.text[: max(left, 0)], document.text[max(left, 0) :]
        left -= len(document.text)
        train += [Document(before, document.where)] if before else []
        valid += [Document(after, document.where)] if after else []
    return SplitDocuments(train, valid)


def is_one_text(documents: Iterable[Document]) -> bool:
    """Return whether there is exactly one document, whose windows need no separators."""
    return len(list(islice(documents, 2))) == 1
