"""Stored tensors under HF's current names. Checkpoints that were converted from TensorFlow use older names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from glassformer.checkpoint.external_model import Tensors
from glassformer.checkpoint.safe_files import CorruptFolderError

if TYPE_CHECKING:
    from torch import Tensor

OLD_ENDINGS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Old ends of tensor names, as in the original BERT, and the current ones. HF renames them in the same way."""


class RenamedTensors:
    """Lazy access to tensors under other names (see `Tensors`). `stored_names` maps each name to the stored one."""

    def __init__(self, tensors: Tensors, stored_names: Mapping[str, str]):
        self._tensors = tensors
        self._stored_names = stored_names

    def keys(self) -> Iterator[str]:
        """Return an iterator over the current names of all tensors."""
        return iter(self._stored_names)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading its values."""
        return self._tensors.shape(self._stored_names[name])

    def stored_as(self, name: str) -> str:
        """Return the number format of a stored tensor, such as BF16."""
        return self._tensors.stored_as(self._stored_names[name])

    def __getitem__(self, name: str) -> Tensor:
        """Read the values of one tensor and return it."""
        return self._tensors[self._stored_names[name]]


def with_current_names(tensors: Tensors) -> Tensors:
    """Return the tensors under HF's current names. If no name is old, the result is `tensors` itself.

    Raises CorruptFolderError if a tensor is stored under both its old and its current name.
    """
    stored = list(tensors.keys())
    if not any(name.endswith(tuple(OLD_ENDINGS)) for name in stored):
        return tensors
    names: dict[str, str] = {}
    for name in stored:
        current = name
        for old, new in OLD_ENDINGS.items():
            current = name.removesuffix(old) + new if name.endswith(old) else current
        if current in names:
            raise CorruptFolderError(f"{current} is stored twice, as {names[current]} and as {name}: expected it once")
        names[current] = name
    return RenamedTensors(tensors, names)
