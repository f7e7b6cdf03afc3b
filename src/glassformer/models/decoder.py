"""The decoder-only model: GPT-2, Llama, SmolLM. It reads from left to right and says what comes next."""

from torch import Tensor

from glassformer.models.blocks_from_config import make_embeddings, make_stack
from glassformer.models.config import ModelConfig
from glassformer.models.initialization import initialise
from glassformer.models.inputs import prepare
from glassformer.models.transformer import Model
from glassformer.nn import KVCache
from glassformer.nn.attend import Backend


class DecoderModel(Model):
    """Tokens in, logits of each next token out (or what another head says). No token sees a later one."""

    kind = "decoder"

    def __init__(self, config: ModelConfig, *, backend: Backend = "sdpa"):
        super().__init__(config)
        self.embeddings = make_embeddings(config, config.vocab_size)
        self.decoder = make_stack(config, config.n_decoder_layers, bidirectional=False, cross=False, backend=backend)
        self._add_head(self.embeddings)
        initialise(self)

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        *,
        token_types: Tensor | None = None,
        segments: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """tokens (B, T), mask (B, T) with True or 1 for real tokens -> the head's answer: logits (B, T, V), say."""
        hidden = self.decode(tokens, mask, token_types=token_types, segments=segments, cache=cache)
        return self.answer(hidden, None if mask is None else mask != 0)

    def decode(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        *,
        token_types: Tensor | None = None,
        segments: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """The hidden states under the head: (B, T) -> (B, T, C).

        With a cache, `tokens` are those that follow what the cache holds, and `mask` speaks of them alone.
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
        x = self.embeddings(tokens, inputs.positions, token_types)
        return self.decoder(
            x, positions=inputs.positions, key_positions=inputs.key_positions, mask=inputs.mask, cache=cache
        )

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        """Room for `capacity` tokens in each of `batch_size` rows, on the model's device and in its dtype."""
        return self._new_cache(batch_size, capacity, 0)
