"""The encoder-only model: BERT, MiniLM, ALBERT. It reads a whole text at once, in both directions."""

import torch
from torch import Tensor

from glassformer.models.blocks_from_config import make_embeddings, make_stack
from glassformer.models.config import ModelConfig
from glassformer.models.initialization import initialise
from glassformer.models.inputs import prepare
from glassformer.models.transformer import Model
from glassformer.nn.attend import Backend


class EncoderModel(Model):
    """Tokens in, a vector for each token out, or whatever the head makes of these."""

    kind = "encoder"

    def __init__(self, config: ModelConfig, *, backend: Backend = "sdpa"):
        super().__init__(config)
        self.embeddings = make_embeddings(config, config.vocab_size)
        self.encoder = make_stack(config, config.n_encoder_layers, bidirectional=True, cross=False, backend=backend)
        self._add_head(self.embeddings)
        initialise(self)

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        *,
        token_types: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """tokens (B, T), mask (B, T) with True or 1 for real tokens -> the head's answer."""
        hidden = self.encode(tokens, mask, token_types=token_types, segments=segments)
        return self.answer(hidden, None if mask is None else mask != 0)

    def encode(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        *,
        token_types: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """The hidden states under the head: (B, T) -> (B, T, C).

        `segments` (B, T) numbers the documents that are packed into one row; they do not see each other.
        """
        inputs = prepare(
            "tokens",
            tokens,
            self.embeddings,
            self.config,
            causal=False,
            real=mask,
            segments=segments,
            token_types=token_types,
            plain_positions=self.plain_positions,
        )
        x = self.embeddings(tokens, inputs.positions, token_types)
        return self.encoder(x, positions=inputs.positions, mask=inputs.mask)

    def under(self, config: ModelConfig) -> "EncoderModel":
        """A copy of the body under the head that `config` names, which is fresh."""
        other, own = EncoderModel(config), dict(self.named_parameters())
        with torch.no_grad():
            for name, parameter in other.named_parameters():
                if not name.startswith("head."):
                    parameter.copy_(own[name])
        return other
