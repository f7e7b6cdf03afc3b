"""The common form of a model read from another library's format: config, tensors and tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Tensors(Protocol):
    """A lazy mapping from tensor names to tensors, so that a file may be larger than memory."""

    def keys(self) -> Iterator[str]:
        """Return the names of all tensors."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading its values."""

    def stored_as(self, name: str) -> str:
        """Return the number format of a stored tensor, such as F32, BF16 or Q4_K."""

    def __getitem__(self, name: str) -> Tensor:
        """Read one tensor."""


@dataclass(frozen=True, kw_only=True)
class ExternalModel:
    """A model as every reader returns it: HF's `config.json` values and HF's tensor names, whatever the format."""

    config: Mapping[str, Any]
    """The values of HF's `config.json`, including `model_type`."""
    tensors: Tensors
    tokenizer_json: str | None = None
    """The contents of a `tokenizer.json` (`tokenizers` library), if the format stores a vocabulary."""
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    """The known keys of HF's `tokenizer_config.json`: `chat_template`, `bos_token`, `eos_token`, `pad_token`."""
