"""The encoder-decoder model: the paper's Transformer, T5, BART, Marian. It reads one text and writes another."""

from torch import Tensor

from glassformer.models.base import Model, check_memory
from glassformer.models.build import make_embeddings, make_stack
from glassformer.models.config import ModelConfig
from glassformer.models.init import initialise
from glassformer.models.inputs import prepare
from glassformer.nn import KVCache, Mask, as_mask
from glassformer.nn.attend import Backend
from glassformer.nn.checks import check_shape


class EncoderDecoderModel(Model):
    """Source and target tokens in, logits of each next target token out (or what another head says)."""

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
        initialise(self)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """source (B, S), target (B, T), masks of their shapes with True or 1 for real tokens -> the head's answer."""
        memory = self.encode(source, source_mask)
        hidden = self.decode(target, memory, source_mask, target_mask)
        return self.answer(hidden, None if target_mask is None else target_mask.bool())

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """The memory that the decoder looks at: (B, S) -> (B, S, C)."""
        inputs = prepare("source", source, self.source_embeddings, self.config, causal=False, padding=source_mask)
        x = self.source_embeddings(source, inputs.positions)
        return self.encoder(x, positions=inputs.positions, mask=inputs.mask)

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        *,
        cache: KVCache | None = None,
    ) -> Tensor:
        """The decoder's hidden states under the head: target (B, T), memory (B, S, C) -> (B, T, C).

        With a cache, `target` holds the tokens that follow what the cache holds, and `target_mask` speaks of them
        alone.
        """
        inputs = prepare(
            "target", target, self.target_embeddings, self.config, causal=True, padding=target_mask, cache=cache
        )
        check_memory(memory, target.shape[0], self.config.d_model)
        if source_mask is not None:
            check_shape("source mask", source_mask, (memory.shape[0], memory.shape[1]))
            source_mask = as_mask("source mask", source_mask)
        x = self.target_embeddings(target, inputs.positions)
        return self.decoder(
            x,
            positions=inputs.positions,
            mask=inputs.mask,
            memory=memory,
            memory_mask=Mask(padding=source_mask),
            cache=cache,
        )

    def new_cache(self, batch_size: int, capacity: int, memory_length: int) -> KVCache:
        """Room for `capacity` target tokens, and for the keys and values of a memory of `memory_length` tokens."""
        return self._new_cache(batch_size, capacity, memory_length)
