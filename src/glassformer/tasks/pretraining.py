"""What the tasks share that learn from texts alone: the texts, and lines with blanks to fill in."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from glassformer.data.docstrings import docstrings
from glassformer.data.plain_texts import PlainText, TextReader
from glassformer.data.records import OnBad
from glassformer.data.splits import split_examples
from glassformer.data.text_rows import TextRows, write_text_rows
from glassformer.data.token_files import EncodeBatch
from glassformer.tasks.task import Splits
from glassformer.text import TokenizerConfig
from glassformer.text.encoded import Encoded
from glassformer.training.run_folder import RunFolder

MAX_VALID = 2000
"""Texts that each validation looks at."""
BLANK = "___"
"""What is to be filled in, where a line is typed."""
STAND_IN = "x"
"""What a blank is while a line is cut into tokens: a word by itself, whatever stands beside it."""


@dataclass(frozen=True, kw_only=True)
class TextData:
    """Where texts come from."""

    data: tuple[Path, ...] = ()
    """Text files, a text a line; or .jsonl, .tsv, .csv with a column of texts; .gz too."""
    valid: tuple[Path, ...] = ()
    """For validation. Without it, a twenty-fifth of the data, chosen by a hash of the texts."""
    text_column: str = "text"
    on_bad: OnBad = "error"
    """What to do with a bad record: stop and name its file and line, or count and skip it."""
    corpus: str = ""
    """docstrings: those of Python's standard library, which is always there; instead of files."""

    def splits(self) -> Splits[PlainText]:
        """The texts of each side, read anew in each pass; there is a test where the corpus is a named one."""
        if self.corpus:
            if self.corpus != "docstrings":
                raise ValueError(f"unknown corpus {self.corpus!r}: expected docstrings")
            # By what is summarised, as summaries are learned from them: what is kept for testing there is unseen here.
            split = split_examples(docstrings(), lambda one: one.source)
            return Splits(*([PlainText(f"{one.summary} {one.source}") for one in side] for side in split.values()))
        if self.valid:
            return Splits(self._read(self.data), self._read(self.valid))
        sides = split_examples(self._read(self.data), lambda example: example.text, test=0.0)
        return Splits(sides["train"], sides["valid"])

    def examples(self) -> list[PlainText]:
        """Everything that was named; of a corpus what is kept for testing."""
        return list(self.splits().test if self.corpus else self._read(self.data))

    def _read(self, paths: tuple[Path, ...]) -> TextReader:
        if not paths:
            raise ValueError("no data: expected files with a text a line, or a corpus")
        return TextReader(paths, self.text_column, self.on_bad)


def texts_of(examples: Iterable[PlainText]) -> Iterable[str]:
    """Their texts, as they are asked for."""
    return (example.text for example in examples)


def token_rows(run: RunFolder, examples: Iterable[PlainText], encode: EncodeBatch, longest: int) -> TextRows:
    """The texts as rows of tokens on disk; those of an earlier start of the run, where there are."""
    folder = run.tokens / "rows"
    if run.has_tokens(folder.name):
        return TextRows(folder)
    return write_text_rows(folder, texts_of(examples), encode, longest=longest)


def without_blanks(line: str) -> tuple[str, list[tuple[int, int]]]:
    """The line with a word in each of its blanks, and where these stand, each with the spaces before it."""
    parts = line.split(BLANK)
    places, length = [], 0
    for part in parts[:-1]:
        end = length + len(part) + len(STAND_IN)
        places.append((length + len(part.rstrip()), end))
        length = end
    return STAND_IN.join(parts), places


def put_marks(encoded: Encoded, places: Sequence[tuple[int, int]], marks: Sequence[int]) -> list[int]:
    """The tokens of such a line, with the mark of each blank in place of the word that stood for it."""
    found: list[int] = []
    last = None
    for token, (begin, end), source in zip(encoded.ids, encoded.spans, encoded.sources, strict=True):
        # A space that a tokenizer puts before every text has no characters of its own.
        is_first = begin == end == 0
        hits = (n for n, (a, b) in enumerate(places) if begin < b and (end > a or (is_first and a == 0)))
        hit = next(hits, None) if source is not None else None
        if hit is None:
            found.append(token)
        elif hit != last:
            found.append(marks[hit])
        last = hit
    return found


def fill_in(line: str, words: Iterable[str]) -> str:
    """The line with these in its blanks; a blank that nothing is left for stays."""
    parts, waiting = line.split(BLANK), iter(words)
    return "".join(part + next(waiting, BLANK) for part in parts[:-1]) + parts[-1]


def check_tokenizer(config: TokenizerConfig) -> None:
    """Raise where texts are to be cut in more than one way: what is hidden varies here, not the cuts."""
    if config.bpe_dropout:
        raise ValueError(f"bpe_dropout={config.bpe_dropout}: expected 0, for texts are cut in one way alone here")


def check_noise(share: float, mean_span: float = 1.0) -> None:
    """Raise unless some tokens are hidden, and some are not."""
    if not 0 < share < 1:
        raise ValueError(f"share={share}: expected more than 0 and less than 1")
    if not mean_span >= 1:
        raise ValueError(f"mean_span={mean_span}: expected at least 1")
