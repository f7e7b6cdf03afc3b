"""A stream of tokens in shards, read window by window. Memory does not grow with the corpus, and opening takes no time.

A shard is a folder that `write_stream` wrote. Each begins with the END before its first document. The END after the
last document of the corpus is in no file; it is added here.
"""

import json
import os
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import numpy as np

from glassformer.data.batching.pair_shards import read_ids
from glassformer.data.batching.token_files import Ids
from glassformer.text.tokenizer import END

MAX_OPEN = 64
"""Number of shards whose files stay open."""


class StreamShards:
    """The concatenated streams of some shards; the protocol `TokenWindows`.

    The shards must all have documents, or all be parts of one text.
    """

    def __init__(self, shards: Sequence[Path]):
        about = [json.loads((shard / "stream.json").read_text(encoding="utf-8")) for shard in shards]
        self.has_documents = bool(about[0]["has_documents"])
        """Whether END separates documents."""
        self.begin = self.end = END
        self.n_bytes, self.n_documents, self.n_unknown = (
            sum(one[name] for one in about) for name in ("n_bytes", "n_documents", "n_unknown")
        )
        self._files = [shard / "tokens.bin" for shard in shards]
        self._starts = list(accumulate((file.stat().st_size // 4 for file in self._files), initial=0))
        self._opened = lru_cache(maxsize=MAX_OPEN)(_OpenFile)

    def __len__(self) -> int:
        return self._starts[-1] + self.has_documents

    def read(self, begin: int, end: int) -> Ids:
        """Return the ids from `begin` up to, but not including, `end`."""
        parts, place = [], begin
        while place < min(end, self._starts[-1]):
            shard = bisect_right(self._starts, place) - 1
            stop = min(end, self._starts[shard + 1])
            parts.append(self._opened(self._files[shard]).read(place - self._starts[shard], stop - self._starts[shard]))
            place = stop
        if place < end:
            parts.append(np.array([END], dtype=np.int32))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class _OpenFile:
    def __init__(self, path: Path):
        self._path, self._descriptor = path, os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        os.close(self._descriptor)

    def read(self, begin: int, end: int) -> Ids:
        return read_ids(self._descriptor, begin, end, self._path)
