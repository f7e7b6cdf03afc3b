"""The decoder-only model, as in GPT-2, Llama and SmolLM."""

from typing import Any

from torch import Tensor

from glassformer.models.blocks_from_config import make_embeddings, make_stack
from glassformer.models.config import ModelConfig
from glassformer.models.initialization import initialize
from glassformer.models.inputs import prepare
from glassformer.models.transformer import Model
from glassformer.nn import KVCache
from glassformer.nn.attention_backends import Backend
from glassformer.nn.fused_embeddings import embed
from glassformer.nn.fused_layer import has_hooks
from glassformer.nn.masks import pick


class DecoderModel(Model):
    """A causal Transformer: each token attends to itself and to earlier tokens."""

    kind = "decoder"

    def __init__(self, config: ModelConfig, *, backend: Backend = "sdpa"):
        super().__init__(config)
        self.embeddings = make_embeddings(config, config.vocab_size)
        self.decoder = make_stack(config, config.n_decoder_layers, bidirectional=False, cross=False, backend=backend)
        self._add_head(self.embeddings)
        initialize(self)

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        *,
        token_types: Tensor | None = None,
        segments: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Return the head's output for token ids (B, T): logits (B, T, V) for a language model.

        Args:
            mask: (B, T), True or 1 for real tokens, False or 0 for padding. The default is all real.
            token_types: (B, T), for models with `token_types` in their config.
            segments: (B, T), number of the packed document that each token belongs to. Documents do not attend to each
                other.
            cache: Keys and values of earlier tokens, if `tokens` holds only the tokens after them.
        """
        hidden = self.decode(tokens, mask, token_types=token_types, segments=segments, cache=cache)
        return self.apply_head(hidden, None if mask is None else mask != 0)

    def decode(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        *,
        token_types: Tensor | None = None,
        segments: Tensor | None = None,
        cache: KVCache | None = None,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Return the last hidden states (B, T, C) of token ids (B, T), before the head.

        The arguments are those of `forward`. With a cache, `tokens` and `mask` hold only the new tokens, which follow
        those in the cache. With `wanted` (B,) only the hidden state of one token of each sequence is computed, the one
        at that place: (B, 1, C).
        """
        inputs = prepare(
            "tokens",
            tokens,
            self.embeddings,
            self.config,
            causal=True,
            real=mask,
            segments=segments,
            token_types=token_types,
            cache=cache,
            plain_positions=self.plain_positions,
        )
        if token_types is None and cache is not None:
            x = embed(self.embeddings, tokens, inputs.positions, cache.kernels)
        else:
            x = self.embeddings(tokens, inputs.positions, token_types)
        given: dict[str, Any] = {"positions": inputs.positions, "key_positions": inputs.key_positions}
        given |= {"mask": inputs.mask, "cache": cache}
        if wanted is None:
            return self.decoder(x, **given)
        if has_hooks(self.decoder):  # which would see the wanted tokens only
            return pick(self.decoder(x, **given), wanted)
        return self.decoder(x, **given, wanted=wanted)

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        """Return an empty cache for `capacity` tokens per sequence, with the model's device and dtype."""
        return self._new_cache(batch_size, capacity, 0)
