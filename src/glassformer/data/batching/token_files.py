"""Memory-mapped files of tokenized sentence pairs, so that a corpus may be larger than memory.

`source.bin` and `target.bin` hold the concatenated ids, `source.offsets` and `target.offsets` the start of each
sentence. The files are streamed into a temporary folder, which is renamed when it is complete.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from glassformer.base.write_errors import naming_write_errors
from glassformer.progress import track

Ids = np.ndarray[tuple[int], np.dtype[np.int32]]
EncodeBatch = Callable[[list[str]], list[list[int]]]
SIDES = ("source", "target")
Kept = Literal["none", "first", "last"]
UNITS = "units"
"""Folder of tokenized data in many files. Their sizes are listed in a file beside it, whose hash stands for all."""
CHUNK = 4096
"""Number of sentences that are tokenized at a time: enough to use all cores, few enough to need little memory."""


class TextPair(Protocol):
    """Protocol of an object with a source text and a target text."""

    @property
    def source(self) -> str:
        """Return the source text."""

    @property
    def target(self) -> str:
        """Return the target text."""


class TokenFiles:
    """The tokenized sentence pairs in a folder that `write_token_files` wrote.

    The argument `side` of the methods is "source" or "target".
    """

    def __init__(self, folder: Path):
        self.offsets = {side: np.memmap(folder / f"{side}.offsets", dtype=np.int64, mode="r") for side in SIDES}
        self._ids = {side: map_ids(folder / f"{side}.bin") for side in SIDES}
        self.n_long: int = json.loads((folder / "counts.json").read_text(encoding="utf-8"))["n_long"]
        """The number of pairs whose source or target was longer than `max_len`."""

    def __len__(self) -> int:
        return len(self.offsets["source"]) - 1

    def lengths(self, side: str) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        """Return the number of tokens of every source sentence, or of every target sentence."""
        return np.diff(self.offsets[side])

    def ids(self, side: str, index: int) -> Ids:
        """Return the token ids of the source or target of pair `index`, without BEGIN and END."""
        begin, end = self.offsets[side][index : index + 2]
        return self._ids[side][begin:end]


def write_token_files(
    folder: Path,
    pairs: Iterable[TextPair],
    encode_source: EncodeBatch,
    encode_target: EncodeBatch,
    *,
    max_len: int,
    kept: Kept = "none",
) -> TokenFiles:
    """Tokenize `pairs`, write them to `folder`, and return them as `TokenFiles`.

    `kept` decides about a pair whose source or target has more than `max_len` tokens. "none" drops the pair. "first"
    and "last" keep the first or the last `max_len` tokens of the source, and both keep the first `max_len` of the
    target.
    """
    offsets: dict[str, list[int]] = {side: [0] for side in SIDES}
    n_long = 0
    with (
        new_token_folder(folder) as work,
        (work / "source.bin").open("wb") as source_file,
        (work / "target.bin").open("wb") as target_file,
    ):
        files = {"source": source_file, "target": target_file}
        for chunk in _chunks(track(pairs, "tokenizing")):
            encoded = zip(
                encode_source([p.source for p in chunk]), encode_target([p.target for p in chunk]), strict=True
            )
            for source, target in encoded:
                if max(len(source), len(target)) > max_len:
                    n_long += 1
                    if kept == "none":
                        continue
                    source = source[-max_len:] if kept == "last" else source[:max_len]
                for side, ids in (("source", source), ("target", target[:max_len])):
                    files[side].write(np.asarray(ids, dtype=np.int32).tobytes())
                    offsets[side].append(offsets[side][-1] + len(ids))
        for side in SIDES:
            (work / f"{side}.offsets").write_bytes(np.asarray(offsets[side], dtype=np.int64).tobytes())
        (work / "counts.json").write_text(json.dumps({"n_long": n_long}), encoding="utf-8")
    return TokenFiles(folder)


@contextmanager
def new_token_folder(folder: Path) -> Iterator[Path]:
    """Context manager: yield a temporary folder to write into, and rename it to `folder` at the end of the block.

    An existing `folder` is replaced. On failure the temporary folder is removed. Write errors name the file and the
    next step.
    """
    work = folder.with_name(f".{folder.name}.part")
    with naming_write_errors(folder, work):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            yield work
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)
        work.rename(folder)


def _chunks(pairs: Iterable[TextPair]) -> Iterator[list[TextPair]]:
    iterator = iter(pairs)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def map_ids(path: Path) -> Ids:
    """Return the ids in a file, memory-mapped. An empty file cannot be mapped: it gives an empty array."""
    return np.memmap(path, dtype=np.int32, mode="r") if path.stat().st_size else np.zeros(0, dtype=np.int32)
