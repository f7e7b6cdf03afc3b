"""Read safetensors files one tensor at a time. Imports torch only when a tensor is read.

The contents are untrusted: the offsets in a file are validated before a tensor is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from glassformer.checkpoint.safe_files import CorruptFolderError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BLOCK = 1 << 20
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Names of the readable number formats: safetensors -> torch."""


class SafeTensors:
    """Lazy access to the tensors of one or more safetensors files (see `Tensors`).

    The safetensors library validates the header and the offsets. Values are read with plain reads rather than mmap,
    because mapped pages would count as this process's memory in addition to the model.
    """

    def __init__(self, paths: list[Path]):
        self._places: dict[str, tuple[Path, int, int, str, tuple[int, ...]]] = {}
        for path in paths:
            try:
                with safe_open(path, framework="np") as opened:
                    names = list(opened.keys())
                with path.open("rb") as stream:
                    size = int.from_bytes(stream.read(8), "little")
                    header = json.loads(stream.read(size))
            except (SafetensorError, OSError, ValueError, RecursionError) as error:
                raise CorruptFolderError(f"{path} cannot be read: {error}") from error
            for name in names:
                if name in self._places:
                    raise CorruptFolderError(f"{path} holds {name} a second time: expected each tensor once")
                about = header[name]
                begin, end = about["data_offsets"]
                self._places[name] = path, 8 + size + begin, end - begin, about["dtype"], tuple(about["shape"])

    def keys(self) -> Iterator[str]:
        """Return an iterator over the names of all tensors."""
        return iter(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading its values."""
        return self._places[name][4]

    def __getitem__(self, name: str) -> Tensor:
        """Read one tensor into newly allocated memory."""
        import torch

        path, start, size, kind, shape = self._places[name]
        if kind not in DTYPES:
            raise ValueError(f"{path} stores {name} as {kind}: expected one of {', '.join(DTYPES)}")
        dtype: torch.dtype = getattr(torch, DTYPES[kind])
        if not size:
            return torch.empty(shape, dtype=dtype)
        bytes_ = torch.empty(size, dtype=torch.uint8)
        with path.open("rb") as stream:
            stream.seek(start)
            if stream.readinto(bytes_.numpy().data) != size:
                raise CorruptFolderError(f"{path} ends inside {name}: expected {size:,} bytes")
        return bytes_.view(dtype).view(shape)

    def stored_as(self, name: str) -> str:
        """Return the number format of a stored tensor, such as BF16."""
        return self._places[name][3]

    def have_equal_bytes(self, name: str, other: str) -> bool:
        """Return whether two stored tensors have the same number format, shape and bytes. Needs no torch."""
        (path, start, size, *kind), (other_path, other_start, other_size, *other_kind) = map(
            self._places.__getitem__, (name, other)
        )
        if kind != other_kind or size != other_size:
            return False
        with path.open("rb") as one, other_path.open("rb") as two:
            one.seek(start), two.seek(other_start)
            for left in range(size, 0, -BLOCK):
                count = min(left, BLOCK)
                if one.read(count) != two.read(count):
                    return False
        return True
