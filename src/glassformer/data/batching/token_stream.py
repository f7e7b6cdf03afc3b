"""Tokenized documents as one stream of tokens in memory-mapped files. Importing this module does not import torch.

The stream is END d1 END d2 END for documents d1 and d2, or begin d1 end begin d2 end with other tokens of a pretrained
model. A corpus of a single text has neither.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from glassformer.data.batching.token_files import Ids, map_ids, new_token_folder
from glassformer.progress import track
from glassformer.text.tokenizer import END

Text = TypeVar("Text")
CHUNK = 256
"""Number of documents tokenized at a time."""


class TokenWindows(Protocol):
    """Protocol of a stream of tokens from which windows are read, in one file or in shards."""

    has_documents: bool
    begin: int
    end: int

    def __len__(self) -> int: ...

    def read(self, begin: int, end: int) -> Ids:
        """Return the ids from `begin` up to, but not including, `end`."""


class TokenStream:
    """A tokenized corpus in a folder that `write_stream` wrote: its ids, memory-mapped, and some counts."""

    def __init__(self, folder: Path):
        about = json.loads((folder / "stream.json").read_text(encoding="utf-8"))
        self.has_documents = bool(about["has_documents"])
        """Whether END, or another pair of tokens, separates documents."""
        self.begin, self.end = about.get("begin", END), about.get("end", END)
        """Ids of the tokens before and after each document."""
        self.n_bytes, self.n_documents, self.n_unknown = about["n_bytes"], about["n_documents"], about["n_unknown"]
        self.ids: Ids = map_ids(folder / "tokens.bin")

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, begin: int, end: int) -> Ids:
        """Return the ids from `begin` up to, but not including, `end`."""
        return self.ids[begin:end]


def write_stream(
    folder: Path,
    documents: Iterable[Text],
    encode_batch: Callable[[list[Text]], list[list[int]]],
    *,
    has_documents: bool,
    begin: int = END,
    end: int = END,
    unknown: int | None = None,
    size: Callable[[Text], int] = lambda text: len(str(text).encode()),
    ends: bool = True,
    starts: Callable[[Text], bool] = lambda text: True,
) -> TokenStream:
    """Tokenize documents, write them to `folder`, and return the stream.

    With `has_documents`, `begin` is written before each document and `end` after it. If both are the same token, it is
    written once between two documents and, with `ends`, after the last one. `unknown` is the id of <unk>, whose
    occurrences are counted. `size` returns the size of a document in bytes, and `starts` whether it starts here; if
    not, it is a piece that continues the one before.
    """
    n_bytes = n_documents = n_unknown = n_tokens = 0
    with new_token_folder(folder) as work, (work / "tokens.bin").open("wb") as file:

        def write(ids: list[int]) -> None:
            nonlocal n_tokens, n_unknown
            n_tokens += len(ids)
            n_unknown += 0 if unknown is None else ids.count(unknown)
            file.write(np.asarray(ids, dtype=np.int32).tobytes())

        for chunk in _chunks(track(documents, "tokenizing")):
            are_starts = [starts(text) for text in chunk]
            n_documents += sum(are_starts)
            n_bytes += sum(map(size, chunk))
            for ids, is_start in zip(encode_batch(chunk), are_starts, strict=True):
                write([begin, *ids, *([end] if end != begin else [])] if has_documents and is_start else ids)
        if has_documents and n_documents and ends and end == begin:
            write([end])
        if ends and n_tokens < 2:
            raise ValueError(
                f"the text has {n_tokens} tokens: expected at least two, because one must follow the other"
            )
        about = {"has_documents": has_documents, "n_bytes": n_bytes, "n_documents": n_documents, "n_unknown": n_unknown}
        about |= {"begin": begin, "end": end}
        (work / "stream.json").write_text(json.dumps(about), encoding="utf-8")
    return TokenStream(folder)


def _chunks(texts: Iterable[Text]) -> Iterator[list[Text]]:
    iterator = iter(texts)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk
