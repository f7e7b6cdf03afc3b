"""Other people's models, as their readers hand them over: a config, tensors by name, and what turns text into ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Tensors(Protocol):
    """Tensors by name, each read when it is asked for: a file larger than memory can stand behind them."""

    def keys(self) -> Iterator[str]:
        """The names of all of them."""

    def shape(self, name: str) -> tuple[int, ...]:
        """What one would be like, without reading it."""

    def stored_as(self, name: str) -> str:
        """The type of its numbers in the file, such as F32, BF16 or Q4_K."""

    def __getitem__(self, name: str) -> Tensor:
        """One of them."""


@dataclass(frozen=True, kw_only=True)
class ExternalModel:
    """What every reader of a foreign format gives: the same as HF's `config.json` and HF's names of tensors."""

    config: Mapping[str, Any]
    """As HF writes it, `model_type` included."""
    tensors: Tensors
    tokenizer_json: str | None = None
    """A `tokenizer.json` of the `tokenizers` library, where the format holds a vocabulary."""
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    """As HF's `tokenizer_config.json`: `chat_template`, `bos_token`, `eos_token`, `pad_token`, where they are known."""
