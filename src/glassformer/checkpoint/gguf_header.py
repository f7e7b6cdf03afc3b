"""Parse the header of a GGUF file: its metadata, and where each tensor is stored.

Every length is checked against the file size, because the reader of the `gguf` package trusts the lengths and takes
seconds for a vocabulary.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from glassformer.checkpoint.safe_files import CorruptFolderError

MAGIC = b"GGUF"
VERSIONS = (2, 3)

# Limits for hostile headers. The largest real headers stay below three quarters of each.
MAX_HEADER = 1 << 26
MAX_ENTRIES = 1 << 16
MAX_ITEMS = 1 << 21

# Value type numbers. 8 is a string, 9 an array.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


@dataclass(frozen=True)
class StoredTensor:
    """Shape, number format (`kind`) and byte range (`start`, `size`) of one tensor in a GGUF file."""

    shape: tuple[int, ...]
    kind: Any
    start: int
    size: int


class GgufHeader:
    """The header of a GGUF file: metadata values by key, and the location of each tensor."""

    def __init__(self, path: Path, gguf: ModuleType):
        self.path = path
        if path.stat().st_size < 24:
            raise CorruptFolderError(f"{path} has {path.stat().st_size} bytes: expected a GGUF file")
        self.data = np.asarray(np.memmap(path, np.uint8, "r"))
        self._view, self._at, self._items = self.data.data, 0, 0
        magic = bytes(self._take(4))
        if magic != MAGIC:
            raise CorruptFolderError(f"{path} starts with {magic!r}: expected {MAGIC!r}")
        version = self._number("I")
        if version not in VERSIONS:
            raise ValueError(f"{path} is GGUF of version {version}: expected little-endian, version 2 or 3")
        n_tensors, n_values = self._count("tensors"), self._count("values")
        self.metadata: dict[str, Any] = {}
        for _ in range(n_values):
            key = self._text()
            if key in self.metadata:
                raise CorruptFolderError(f"{path} has {key[:80]!r} twice: expected one value")
            self.metadata[key] = self._value(self._number("I"))
        self.tensors = self._places(n_tensors, gguf)

    def forget_lists(self) -> None:
        """Remove the lists from the metadata: all tokens, their types and merges, which may take megabytes."""
        self.metadata = {key: value for key, value in self.metadata.items() if not isinstance(value, list)}

    def _take(self, count: int) -> memoryview:
        """Return the next `count` bytes. Raises CorruptFolderError if they exceed the file or `MAX_HEADER` bytes."""
        start, end = self._at, self._at + count
        if end > len(self._view):
            raise CorruptFolderError(f"{self.path} ends at byte {len(self._view)}: its header expects {end} or more")
        if end > MAX_HEADER:
            raise CorruptFolderError(f"{self.path} has a header of {end} bytes or more: expected at most {MAX_HEADER}")
        self._at = end
        return self._view[start:end]

    def _number(self, code: str) -> Any:
        return struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))[0]

    def _count(self, what: str) -> int:
        count = self._number("Q")
        if count > MAX_ENTRIES:
            raise CorruptFolderError(f"{self.path} has {count} {what}: expected at most {MAX_ENTRIES}")
        return count

    def _text(self) -> str:
        start, piece = self._at, bytes(self._take(self._number("Q")))
        try:
            return piece.decode()
        except UnicodeDecodeError as error:
            raise CorruptFolderError(f"{self.path} has a string at byte {start} that is not UTF-8: {error}") from error

    def _value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self._number(SCALARS[kind])
        if kind == STRING:
            return self._text()
        if kind != ARRAY:
            raise CorruptFolderError(f"{self.path} has a value of type {kind} at byte {self._at}: expected 0 to 12")
        kind, count = self._number("I"), self._number("Q")
        self._items += count
        if self._items > MAX_ITEMS:
            raise CorruptFolderError(f"{self.path} has arrays of {self._items} items: expected at most {MAX_ITEMS}")
        if kind == STRING:
            return self._texts(count)
        if kind not in SCALARS:
            raise CorruptFolderError(f"{self.path} has an array of type {kind} at byte {self._at}: expected scalars")
        code = "<" + SCALARS[kind]
        return np.frombuffer(self._take(count * struct.calcsize(code)), code).tolist()

    def _texts(self, count: int) -> list[str]:
        """Read an array of `count` strings in one loop, because `_text` per string is slow for a vocabulary."""
        view, at, texts, length_at = self._view, self._at, [], struct.Struct("<Q").unpack_from
        last = min(len(view), MAX_HEADER)
        for _ in range(count):
            if at + 8 > last or (end := at + 8 + length_at(view, at)[0]) > last:
                break
            try:
                texts.append(str(view[at + 8 : end], "utf-8"))
            except UnicodeDecodeError:
                break
            at = end
        self._at = at
        if len(texts) < count:
            self._text()  # raises the error for the next string
        return texts

    def _places(self, count: int, gguf: ModuleType) -> dict[str, StoredTensor]:
        """Read the entries of `count` tensors and check that their byte ranges lie in the file and do not overlap."""
        found: dict[str, StoredTensor] = {}
        for _ in range(count):
            name, n_dims = self._text(), self._number("I")
            if name in found or not 1 <= n_dims <= 4:
                raise CorruptFolderError(f"{self.path} has {name[:80]!r} twice or in {n_dims} dimensions: expected 1-4")
            dims, code, offset = [self._number("Q") for _ in range(n_dims)], self._number("I"), self._number("Q")
            try:
                kind = gguf.GGMLQuantizationType(code)
                block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
            except (ValueError, KeyError) as error:
                raise CorruptFolderError(f"{self.path}: {name} is stored in {code}: expected a known type") from error
            if 0 in dims or dims[0] % block:
                raise CorruptFolderError(f"{self.path}: {name} has {dims} numbers: expected rows of {block} in a block")
            found[name] = StoredTensor(tuple(reversed(dims)), kind, offset, math.prod(dims) // block * block_bytes)
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise CorruptFolderError(f"{self.path}: general.alignment={alignment}: expected a power of two")
        end = data_start = -(-self._at // alignment) * alignment
        for name, stored in sorted(found.items(), key=lambda item: item[1].start):
            start = data_start + stored.start
            if start < end or stored.start % alignment or start + stored.size > len(self._view):
                raise CorruptFolderError(
                    f"{self.path}: {name} takes {stored.size} bytes from {start}: expected a separate range between "
                    f"{end} and {len(self._view)}, the end of the file"
                )
            end, found[name] = start + stored.size, StoredTensor(stored.shape, stored.kind, start, stored.size)
        return found
