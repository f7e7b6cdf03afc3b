"""The encoder-decoder model, as in Vaswani et al. (2017), T5, BART and Marian."""

import torch
from torch import Tensor

from glassformer.kernels.kernel_set import KernelSet
from glassformer.models.blocks_from_config import make_embeddings, make_stack
from glassformer.models.config import ModelConfig
from glassformer.models.initialization import initialize
from glassformer.models.inputs import Inputs, prepare
from glassformer.models.transformer import Model, check_memory
from glassformer.nn import KVCache, Mask, as_mask
from glassformer.nn.attention_backends import Backend
from glassformer.nn.fused_embeddings import embed
from glassformer.nn.tensor_checks import check_shape


class EncoderDecoderModel(Model):
    """An encoder, and a causal decoder that attends to the encoder's output by cross-attention."""

    kind = "encoder_decoder"

    def __init__(self, config: ModelConfig, *, backend: Backend = "sdpa"):
        super().__init__(config)
        self.source_embeddings = make_embeddings(config, config.source_vocab)
        self.target_embeddings = make_embeddings(config, config.vocab_size)
        if config.ties_embeddings:
            self.target_embeddings.tokens = self.source_embeddings.tokens
            self.target_embeddings.projection = self.source_embeddings.projection
        self.encoder = make_stack(config, config.n_encoder_layers, bidirectional=True, cross=False, backend=backend)
        self.decoder = make_stack(config, config.n_decoder_layers, bidirectional=False, cross=True, backend=backend)
        self._add_head(self.target_embeddings)
        initialize(self)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the head's output for source ids (B, S) and target ids (B, T), such as logits (B, T, V).

        The masks have the shapes of their tokens: True or 1 for real tokens, False or 0 for padding.
        """
        source_inputs = self._prepare_source(source, source_mask)
        target_inputs = self._prepare_target(target, target_mask)
        if len(source) != len(target):
            raise ValueError(f"target has {len(target)} rows: expected {len(source)}, as source")
        memory = self._encode(source, source_inputs)
        hidden = self._decode(target, target_inputs, memory, Mask(real=source_inputs.mask.real))
        return self.apply_head(hidden, target_inputs.mask.real)

    def encode(self, source: Tensor, source_mask: Tensor | None = None, *, kernels: KernelSet | None = None) -> Tensor:
        """Return the encoder's output (B, S, C), which the decoder attends to, for source ids (B, S).

        `kernels` may compute the attention; None is plain torch.
        """
        return self._encode(source, self._prepare_source(source, source_mask), kernels)

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        *,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Return the decoder's hidden states (B, T, C) for target ids (B, T), before the head.

        `memory` is the encoder's output (B, S, C). With a cache, `target` and `target_mask` hold only the new tokens,
        which follow those in the cache. The first call stores the keys and values of `memory`; later calls read them
        from the cache.
        """
        check_memory(memory, target, self.config.d_model, cache)
        if source_mask is not None:
            source_mask = as_mask("source_mask", source_mask)
            check_shape("source_mask", source_mask, (memory.shape[0], memory.shape[1]))
        inputs = self._prepare_target(target, target_mask, cache)
        return self._decode(target, inputs, memory, Mask(real=source_mask), cache)

    def store_memory(self, memory: Tensor, cache: KVCache) -> None:
        """Store the keys and values of the encoder's output (B, S, C) in an empty cache.

        The first call of `decode` does it otherwise.
        """
        self.decoder.store_memory(memory, cache)

    def _prepare_source(self, source: Tensor, mask: Tensor | None) -> Inputs:
        return prepare(
            "source",
            source,
            self.source_embeddings,
            self.config,
            causal=False,
            real=mask,
            plain_positions=self.plain_positions,
        )

    def _prepare_target(self, target: Tensor, mask: Tensor | None, cache: KVCache | None = None) -> Inputs:
        return prepare(
            "target",
            target,
            self.target_embeddings,
            self.config,
            causal=True,
            real=mask,
            cache=cache,
            plain_positions=self.plain_positions,
        )

    def _encode(self, source: Tensor, inputs: Inputs, kernels: KernelSet | None = None) -> Tensor:
        x = embed(self.source_embeddings, source, inputs.positions, kernels)
        return self.encoder(x, positions=inputs.positions, mask=inputs.mask, kernels=kernels)

    def _decode(
        self, target: Tensor, inputs: Inputs, memory: Tensor, memory_mask: Mask, cache: KVCache | None = None
    ) -> Tensor:
        kernels = None if cache is None else cache.kernels
        return self.decoder(
            embed(self.target_embeddings, target, inputs.positions, kernels),
            positions=inputs.positions,
            key_positions=inputs.key_positions,
            mask=inputs.mask,
            memory=memory,
            memory_mask=memory_mask,
            cache=cache,
        )

    def new_cache(
        self,
        batch_size: int,
        capacity: int,
        memory_length: int,
        memory_rows: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> KVCache:
        """Return an empty cache for `capacity` target tokens per sequence and `memory_length` source tokens.

        `memory_rows` is the number of encoder outputs. If it is below `batch_size`, neighboring sequences share one,
        such as the beams of one sentence. `dtype` is that of keys and values, by default the model's.
        """
        return self._new_cache(batch_size, capacity, memory_length, memory_rows, dtype)
