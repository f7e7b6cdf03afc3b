"""Read sentences with tagged entities: CoNLL columns, or JSONL with character spans; plain or gzip.

A bad line raises an error that names `file:line`; with `on_bad="skip"` its sentence is skipped and counted.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from glassformer.base.plurals import counted
from glassformer.data.readers.records import (
    BadRecordError,
    Examples,
    OnBad,
    Record,
    RecordReader,
    kind_of,
)
from glassformer.data.readers.text_files import Line, check_file, read_lines
from glassformer.text.tags import BadTagError, Entity, MixedTagsError, Scheme, detect_scheme, entities_of
from glassformer.text.word_split import cut_words

DOCUMENT = "-DOCSTART-"
"""The word of CoNLL's document separator lines."""
SPANS, ENTITIES = "spans", "entities"
"""Default key of the spans in JSONL, and the key that `run --json` writes, which is read if the default is missing."""
_BLANKS = re.compile(r"[ \t]+")  # only these: a word may contain a no-break space
_FORMS = '[begin, end, label] or {"start": begin, "end": end, "label": label}'


class TaggedSentence(NamedTuple):
    """A sentence as words, with its entities in order."""

    words: tuple[str, ...]
    entities: tuple[Entity, ...]
    where: str = ""
    """`file:line` of the sentence."""


@dataclass(frozen=True, kw_only=True)
class TaggedReader:
    """Reads tagged sentences from files. The fields describe the files' format.

    `scheme` is the tagging scheme of CoNLL files; "auto" detects it. `text_column` and `spans_column` are JSONL keys. A
    bad sentence raises an error if `on_bad` is "error", and is left out if it is "skip".
    """

    word_column: int = 1
    """Column of the words in CoNLL files, counted from 1, or from the last column as -1, -2, ..."""
    tag_column: int = -1
    """Column of the tags, counted in the same way."""
    scheme: Scheme | Literal["auto"] = "auto"
    text_column: str = "text"
    spans_column: str = SPANS
    on_bad: OnBad = "error"

    def __post_init__(self) -> None:
        for name in ("word_column", "tag_column"):
            if getattr(self, name) == 0:
                raise ValueError(f"{name}=0: expected 1 or more, or -1 or less to count from the last")

    def read(self, paths: Sequence[Path]) -> Examples[TaggedSentence]:
        """Return the sentences of all files, in order, with the number of skipped ones by problem."""
        found = Examples[TaggedSentence]()
        for path in paths:
            check_file(path)
            kind = kind_of(path)
            if kind == "table":
                raise ValueError(f"{path} is a table: expected CoNLL's columns, such as .conll or .txt, or .jsonl")
            if kind == "jsonl":
                columns = [self.text_column, self.spans_column] + [ENTITIES] * (self.spans_column == SPANS)
                records = RecordReader([path], columns, self._of_record, self.on_bad)
                found.extend(records)
                found.skipped += records.skipped
            else:
                self._read_columns(path, found)
        return found

    def _of_record(self, record: Record) -> TaggedSentence:
        text, *found = record.cells
        spans = next((cell for cell in found if cell is not None), None)
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"no text under {self.text_column!r}")
        if not isinstance(spans, list):
            raise ValueError(f"no spans under {self.spans_column!r}: expected a list of {_FORMS}")
        places = cut_words(text)
        entities = _entities_of_spans(text, spans, places)
        return TaggedSentence(tuple(text[begin:end] for begin, end in places), entities, record.where)

    def _read_columns(self, path: Path, found: Examples[TaggedSentence]) -> None:
        """Append the sentences of a CoNLL file to `found`. The whole file is read first, to detect its scheme."""
        sentences: list[list[_Line]] = []
        for lines in _blocks(path):
            try:
                sentences.append([self._line(line, len(_columns(lines[0]))) for line in lines])
            except BadRecordError as error:
                self._skip(error, found)
        scheme = self._scheme(sentences) if self.scheme == "auto" else self.scheme
        for sentence in sentences:
            words, tags, places = zip(*sentence, strict=True)
            try:
                found.append(TaggedSentence(words, tuple(entities_of(tags, scheme)), places[0]))
            except BadTagError as error:
                self._skip(BadRecordError(f"{places[error.place]}: {error}"), found)

    def _line(self, line: Line, expected: int) -> "_Line":
        """Return the word and the tag of a line. `expected` is the number of columns in the sentence's first line."""
        columns, where = _columns(line), line.where
        found = f"{where}: {counted(len(columns), 'columns')}"
        if line.problem:
            raise BadRecordError(f"{where}: {line.problem}")
        indices = [
            column - 1 if column > 0 else len(columns) + column for column in (self.word_column, self.tag_column)
        ]
        if not all(0 <= index < len(columns) for index in indices) or indices[0] == indices[1]:
            raise BadRecordError(
                f"{found}: expected a word in column {self.word_column} and a tag in column {self.tag_column}; "
                "--word-column and --tag-column choose others (word_column in Python)"
            )
        if len(columns) != expected:
            raise BadRecordError(f"{found}: expected {expected}, as in the first line of its sentence")
        return _Line(columns[indices[0]], columns[indices[1]], where)

    def _scheme(self, sentences: list[list["_Line"]]) -> Scheme:
        try:
            return detect_scheme([[line.tag for line in sentence] for sentence in sentences])
        except MixedTagsError as error:
            one, two = (sentences[number][place].where for number, place in (error.as_iob1, error.as_iob2))
            raise BadRecordError(
                f"{one}: an entity begins with I- (IOB1), but at {two} with B- where none is before it (IOB2): "
                "expected one scheme; scheme='iob1' reads both as conlleval does"
            ) from error

    def _skip(self, error: BadRecordError, found: Examples[TaggedSentence]) -> None:
        if self.on_bad == "error":
            raise BadRecordError(f"{error} (on_bad='skip', or --on-bad skip, skips such sentences)") from error
        problem = re.sub(r"^.*?:\d+: ", "", str(error))
        found.skipped[problem] += 1


class _Line(NamedTuple):
    word: str
    tag: str
    where: str


def _columns(line: Line) -> list[str]:
    return [cell for cell in _BLANKS.split(line.text) if cell]


def _blocks(path: Path) -> Iterator[list[Line]]:
    """Yield the lines of each sentence of a CoNLL file. A blank line or a document separator ends a sentence."""
    block: list[Line] = []
    for line in read_lines(path):
        columns = _columns(line)
        if line.problem or (columns and DOCUMENT not in columns):
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block


def _entities_of_spans(text: str, spans: list[Any], places: list[tuple[int, int]]) -> tuple[Entity, ...]:
    """Convert character spans to entities: each span is [begin, end, label], or an object as `run --json` writes it.

    `places` are the (start, end) character positions of the words. Raises ValueError for a span that is malformed, does
    not start and end with a word, or overlaps another.
    """
    begins = {begin: word for word, (begin, _) in enumerate(places)}
    ends = {end: word + 1 for word, (_, end) in enumerate(places)}
    entities: list[Entity] = []
    for given in spans:
        quoted = given.get("text") if isinstance(given, dict) else None
        span = [given.get(name) for name in ("start", "end", "label")] if isinstance(given, dict) else given
        if not isinstance(span, list) or len(span) != 3 or [type(part) for part in span] != [int, int, str]:
            raise ValueError(f"{str(given)[:60]} is no span: expected {_FORMS}, two numbers and a text")
        begin, end, label = span
        if not label.strip():
            raise ValueError(f"the span {span} has no label")
        if not 0 <= begin < end <= len(text):
            raise ValueError(f"the span {span} is empty or leaves the text of {len(text)} characters")
        if quoted not in (None, text[begin:end]):
            raise ValueError(f"the span {span} is of {text[begin:end]!r}, but its text is {str(quoted)[:60]!r}")
        if begin not in begins or end not in ends:
            raise ValueError(
                f"the span {span}, {text[begin:end]!r}, does not fit the words, which are cut as "
                f"{_around(text, begin, end, places)}: move it, or give the words in columns"
            )
        entities.append(Entity(begins[begin], ends[end], label.strip()))
    entities.sort()
    for left, right in pairwise(entities):
        if right.begin < left.end:
            raise ValueError(f"two spans overlap, {left.label} and {right.label}: expected each word in one at most")
    return tuple(entities)


def _around(text: str, begin: int, end: int, places: list[tuple[int, int]]) -> str:
    """Return the words that the span from `begin` to `end` overlaps, quoted, for an error message."""
    return " ".join(repr(text[left:right]) for left, right in places if left < end and begin < right) or "none"
