"""The encoder-only model, as in BERT, MiniLM and ALBERT."""

from torch import Tensor

from glassformer.models.blocks_from_config import make_embeddings, make_stack
from glassformer.models.config import ModelConfig
from glassformer.models.initialization import initialize
from glassformer.models.inputs import prepare
from glassformer.models.transformer import Model
from glassformer.nn.attention_backends import Backend


class EncoderModel(Model):
    """A bidirectional Transformer: each token attends to earlier and later tokens."""

    kind = "encoder"

    def __init__(self, config: ModelConfig, *, backend: Backend = "sdpa"):
        super().__init__(config)
        self.embeddings = make_embeddings(config, config.vocab_size)
        self.encoder = make_stack(config, config.n_encoder_layers, bidirectional=True, cross=False, backend=backend)
        self._add_head(self.embeddings)
        initialize(self)

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        *,
        token_types: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Return the head's output for token ids (B, T), or the last hidden states (B, T, C) if there is no head.

        Args:
            mask: (B, T), True or 1 for real tokens, False or 0 for padding. The default is all real.
            token_types: (B, T), for models with `token_types` in their config.
            segments: (B, T), number of the packed document that each token belongs to. Documents do not attend to each
                other.
        """
        hidden = self.encode(tokens, mask, token_types=token_types, segments=segments)
        return self.apply_head(hidden, None if mask is None else mask != 0)

    def encode(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        *,
        token_types: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Return the last hidden states (B, T, C) of token ids (B, T), before the head.

        The arguments are those of `forward`.
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
