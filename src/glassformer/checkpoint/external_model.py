"""The common form of a model read from another library's format: config, tensors and tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Tensors(Protocol):
    """A lazy mapping from tensor names to tensors. Each access reads one tensor, so a file may be larger than RAM."""

    def keys(self) -> Iterator[str]:
        """Return an iterator over the names of all tensors."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading its values."""

    def stored_as(self, name: str) -> str:
        """Return the number format of a stored tensor, such as F32, BF16 or Q4_K."""

    def __getitem__(self, name: str) -> Tensor:
        """Read the values of one tensor and return it."""


@dataclass(frozen=True, kw_only=True)
class ExternalModel:
    """An opened model in another library's format. Its config and tensor names are HF's, whatever the format."""

    config: Mapping[str, Any]
    """The values of HF's `config.json`, including `model_type`."""
    tensors: Tensors
    base: Path | None = None
    """The folder of the base model, if the model is an adapter. Its tokenizer is used if the adapter has none."""
    tokenizer_json: str | None = None
    """The tokenizer of a GGUF or llama2.c model, as the contents of a `tokenizer.json`; None for an HF folder."""
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    """Values of HF's `tokenizer_config.json` for `tokenizer_json`, such as `bos_token` and `chat_template`."""
