"""The base class of the three kinds of model: config, head, cache and gradient checkpointing."""

from typing import Self

import torch
from torch import Tensor, nn

from glassformer.models.blocks_from_config import make_head
from glassformer.models.config import Kind, ModelConfig
from glassformer.models.heads import LanguageModelHead
from glassformer.nn import Embeddings, KVCache, Stack


class Model(nn.Module):
    """Base class of `EncoderModel`, `DecoderModel` and `EncoderDecoderModel`: holds the config and the head."""

    kind: Kind
    plain_positions = False
    """Whether padding tokens count as positions. Otherwise positions number the real tokens only."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        if config.kind != self.kind:
            raise ValueError(
                f"{type(self).__name__} was given n_encoder_layers={config.n_encoder_layers}, "
                f"n_decoder_layers={config.n_decoder_layers}, which makes kind {config.kind!r}: expected {self.kind!r}"
            )
        self.config = config

    def n_parameters(self) -> int:
        """Return the number of learned parameters. Shared parameters count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def set_gradient_checkpointing(self, on: bool = True) -> None:
        """Turn gradient checkpointing on or off, which saves memory in training.

        When it is on, each layer stores only its input and is recomputed in the backward pass. The results do not
        change, including those of dropout.
        """
        for module in self.modules():
            if isinstance(module, Stack):
                module.gradient_checkpointing = on

    def apply_head(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the head's output for hidden states (B, T, C), or the hidden states if there is no head.

        `mask` is (B, T), True for real tokens; None means all are real.
        """
        return hidden if self.head is None else self.head(hidden, mask)

    def copy_with_head(self, config: ModelConfig) -> Self:
        """Return a new model of this `config`, which must equal this model's config except for the head.

        The new model's head is randomly initialized; all its other parameters are copied from this model.
        """
        other, own = type(self)(config), dict(self.named_parameters())
        with torch.no_grad():
            for name, parameter in other.named_parameters():
                if not name.startswith("head."):
                    parameter.copy_(own[name])
        return other

    def _add_head(self, embeddings: Embeddings) -> None:
        self.head = make_head(self.config)
        if self.config.ties_output and isinstance(self.head, LanguageModelHead):
            self.head.out_proj.weight = embeddings.tokens.weight

    def _new_cache(
        self,
        batch_size: int,
        capacity: int,
        memory_length: int,
        memory_rows: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> KVCache:
        parameter = next(self.parameters())
        return KVCache(
            n_layers=self.config.n_decoder_layers,
            batch_size=batch_size,
            capacity=capacity,
            n_kv_heads=self.config.kv_heads,
            head_dim=self.config.head_size,
            memory_length=memory_length,
            memory_rows=memory_rows,
            dtype=dtype or parameter.dtype,
            device=parameter.device,
        )


def check_memory(memory: Tensor, target: Tensor, d_model: int, cache: KVCache | None = None) -> None:
    """Raise TypeError or ValueError unless `memory` is an encoder output (B, S, d_model) for the target ids (B, T).

    With a cache, the batch size and length of `memory` must be the `memory_rows` and `memory_length` of the cache.
    """
    if not isinstance(memory, Tensor):
        raise TypeError(f"memory is a {type(memory).__name__}: expected the encoder's output")
    if not torch.is_floating_point(memory):
        raise TypeError(f"memory has dtype {memory.dtype}: expected the encoder's floating-point output")
    rows = len(target) if cache is None else cache.memory_rows
    if memory.dim() != 3 or memory.shape[0] != rows or memory.shape[2] != d_model:
        raise ValueError(
            f"memory has shape {tuple(memory.shape)}: expected ({rows}, source length, {d_model}), "
            "one row per target row"
        )
    if cache is not None:
        cache.check_memory(memory.shape[1])
