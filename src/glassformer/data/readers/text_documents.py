"""Read documents for language models from text files, tables, JSONL files or folders, plain or gzip; and split them.

Texts are read exactly, white space included, because a language model learns to reproduce it.
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
    BadUtf8Error,
    Line,
    Span,
    bad_record,
    check_file,
    read_lines,
    read_text,
)

BLANK = "blank"
"""Value of `DocumentReader.separator` that means an empty line."""


class Document(NamedTuple):
    """A text, and the file or `file:line` where it was read."""

    text: str
    where: str = ""


class DocumentPiece(NamedTuple):
    """A document, or a piece of one that is too long to be read at once."""

    text: str
    where: str = ""
    starts: bool = True
    """Whether a document starts here. If not, the text continues that of the piece before."""
    is_whole: bool = True
    """Whether the piece is a whole document."""


@dataclass
class DocumentReader:
    """Yields the documents in some files and folders each time it is iterated over.

    A bad document raises an error if `on_bad` is "error". If it is "skip", the document is left out, and `skipped`
    counts the bad documents of the last pass by problem. Blank documents of text files are ignored and do not count as
    bad.
    """

    paths: Sequence[Path]
    suffixes: Sequence[str] = (".txt",)
    """Suffixes of the files to read in a folder."""
    column: str = "text"
    """Name of the text column in tables and JSONL."""
    separator: str = ""
    """The line that separates the documents of a text file. BLANK is an empty line; "" makes a file one document."""
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

    def read_part(self, path: Path, span: Span | None = None, *, max_piece: int) -> Iterator[DocumentPiece]:
        """Yield the documents of a file, or of a span of it. A longer document has pieces of `max_piece` characters.

        Only a text file without separator is read in pieces, which end at line ends.
        """
        if kind_of(path) == "text" and not self.separator:
            yield from self._pieces(path, span, max_piece)
            return
        documents = self._parts(path, span) if kind_of(path) == "text" else self._records(path, span)
        yield from (DocumentPiece(*document) for document in documents)

    def _pieces(self, path: Path, span: Span | None, max_piece: int) -> Iterator[DocumentPiece]:
        is_start, is_end, size = span is None or not span.begin, False, 0
        lines: list[Line] = []
        for line in chain(self._lines(path, span), [None]):
            if line is not None and line.problem:
                self._refuse(line.where, line.problem)
                continue
            if line is not None:
                lines.append(line)
                size += len(line.text)
            is_end = line is None
            if lines and (is_end or size >= max_piece):
                is_whole = is_start and is_end and span is None
                text = "".join(one.text for one in lines)
                if not is_whole or text.strip():
                    yield DocumentPiece(text, lines[0].where, is_start, is_whole)
                lines, size, is_start = [], 0, False

    def _records(self, path: Path, span: Span | None = None) -> Iterator[Document]:
        for record in read_records(path, [self.column], span):
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
            self._refuse(error.where, error.problem, error.expected)
            return
        if text.strip():
            yield Document(text, str(path))

    def _parts(self, path: Path, span: Span | None = None) -> Iterator[Document]:
        """Yield the documents between separator lines. The file is streamed, so that it may be larger than memory.

        A line that is not UTF-8 makes its whole document bad.
        """
        wanted = "" if self.separator == BLANK else self.separator.strip()
        lines: list[Line] = []
        for line in chain(self._lines(path, span), [None]):
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

    def _lines(self, path: Path, span: Span | None) -> Iterator[Line]:
        """Yield the lines of a file with their ends; none of a file in another format, which is a bad document."""
        try:
            yield from read_lines(path, keep_ends=True, span=span, is_document=True)
        except BadUtf8Error as error:
            self._refuse(error.where, error.problem, error.expected)

    def _refuse(self, where: str, problem: str, expected: str = "") -> None:
        if self.on_bad == "error":
            raise bad_record(where, f"{problem}{expected}", "documents")
        self.skipped[problem] += 1


class SplitDocuments(NamedTuple):
    """Documents for training and for validation."""

    train: Iterable[Document]
    valid: Iterable[Document]


def split_documents(documents: Iterable[Document], share: float = 0.0) -> SplitDocuments:
    """Split documents into training and validation documents.

    With a positive `share`, the last `share` of all characters is for validation. With 0, a hash of the text selects
    about one in 25 documents for validation; if it selects all or none, the last tenth of all characters is taken.
    """
    if not 0 <= share < 1:
        raise ValueError(f"valid_share={share}: expected a share of the text, from 0 to below 1")
    if not share:
        sides = split_examples(documents, lambda document: document.text, test=0.0)
        if all(next(iter(sides[side]), None) is not None for side in ("train", "valid")):
            return SplitDocuments(sides["train"], sides["valid"])
    return split_by_position(documents, share or 0.1)


def split_by_position(documents: Iterable[Document], share: float) -> SplitDocuments:
    """Split documents so that the last `share` of their characters is for validation.

    The document at the border is cut in two.
    """
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
    """Return whether there is exactly one document, so that a token stream needs no END between documents."""
    return len(list(islice(documents, 2))) == 1
