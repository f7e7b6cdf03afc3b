"""Build the blocks of a model from its config: the only place where config fields become constructor arguments."""

from functools import partial
from typing import Any

from torch import nn

from glassformer.models.config import ModelConfig
from glassformer.models.heads import DenseTransform, EmbeddingHead, LanguageModelHead, SequenceClassHead, TokenClassHead
from glassformer.nn import (
    Alibi,
    Embeddings,
    FeedForward,
    Layer,
    LearnedPositions,
    MultiHeadAttention,
    RelativeBias,
    Rotary,
    SinusoidalPositions,
    Stack,
    Sublayer,
    make_norm,
)
from glassformer.nn.attention_backends import Backend
from glassformer.nn.convolved_layer import Convolution, ConvolvedLayer
from glassformer.nn.disentangled_positions import DisentangledPositions
from glassformer.nn.expert_feedforward import ExpertFeedForward
from glassformer.nn.layer_inputs import LayerKinds


def make_embeddings(config: ModelConfig, vocab_size: int) -> Embeddings:
    """Return the embedding module for `vocab_size` tokens, with sinusoidal or learned positions if there are any."""
    width, max_len = config.table_width, config.max_len
    positions: nn.Module | None = None
    if config.positions == "sinusoidal" and max_len is not None:
        positions = SinusoidalPositions(
            max_len,
            width,
            halves=config.sinusoid_halves,
            full_range=config.sinusoid_full_range,
            offset=config.position_offset,
        )
    elif config.positions == "learned" and max_len is not None:
        positions = LearnedPositions(max_len, width, offset=config.position_offset)
    return Embeddings(
        vocab_size,
        width,
        positions=positions,
        n_token_types=config.token_types,
        scale=config.scale_embeddings,
        multiplier=config.embedding_multiplier,
        norm=_norm(config, width) if config.embedding_norm else None,
        projection=nn.Linear(width, config.d_model) if config.embedding_width is not None else None,
        dropout=config.embedding_dropout,
    )


def make_stack(config: ModelConfig, depth: int, *, bidirectional: bool, cross: bool, backend: Backend) -> Stack:
    """Return a stack of `depth` layers, each with cross-attention if `cross`.

    `bidirectional` is True for an encoder and False for a decoder. It affects only T5's relative bias: what makes a
    decoder causal is the mask that is passed to `Stack.forward`.
    """
    n_layers = 1 if config.share_layers else depth
    score_bias: RelativeBias | Alibi | nn.ModuleList | None = None
    if config.has_relative_bias:
        relative_bias = partial(
            RelativeBias,
            config.n_heads,
            n_buckets=config.relative_buckets,
            max_distance=config.relative_max_distance,
            bidirectional=bidirectional,
        )
        is_shared = config.share_relative_bias
        score_bias = relative_bias() if is_shared else nn.ModuleList(relative_bias() for _ in range(n_layers))
    elif config.positions == "alibi":
        score_bias = Alibi(config.n_heads)
    return Stack(
        [make_layer(config, cross=cross, backend=backend, index=index) for index in range(n_layers)],
        depth=depth,
        norm=_norm(config, config.d_model) if config.has_final_norm else None,
        rotary=make_rotary(config),
        local_rotary=make_local_rotary(config),
        kinds=LayerKinds.of(config.global_layers, config.unrotated_layers),
        score_bias=score_bias,
        relative=make_relative(config),
        layer_drop=config.layer_drop,
    )


def make_rotary(config: ModelConfig) -> Rotary | None:
    """Return the rotary positions of a stack, or None if the config has other positions."""
    if config.positions != "rotary":
        return None
    return Rotary(config.rope_size, theta=config.rope_theta, scaling=config.rotary_scaling)


def make_local_rotary(config: ModelConfig) -> Rotary | None:
    """Return the rotary positions of layers with a window, or None if they are those of the other layers."""
    return None if config.local_rope_theta is None else Rotary(config.rope_size, theta=config.local_rope_theta)


def make_relative(config: ModelConfig) -> DisentangledPositions | None:
    """Return the table of relative positions of a stack with disentangled attention; None for other positions."""
    if config.positions != "disentangled":
        return None
    return DisentangledPositions(
        config.relative_buckets,
        config.relative_max_distance,
        config.d_model,
        norm=_norm(config, config.d_model) if config.relative_norm else None,
        is_log=config.relative_log,
        dropout=config.dropout,
    )


def make_layer(config: ModelConfig, *, cross: bool, backend: Backend, index: int = 0) -> Layer:
    """Return one Transformer layer of the config's sizes, with cross-attention if `cross`.

    `index` is the place of the layer in its stack, from 0.
    """
    attention = partial(
        MultiHeadAttention,
        config.d_model,
        config.n_heads,
        n_kv_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        qkv_bias=config.qkv_bias,
        key_bias=config.key_bias,
        relative_proj=config.positions == "disentangled" and not config.share_relative_proj,
        out_bias=config.out_bias,
        qk_norm=config.norm if config.qk_norm else None,
        norm_eps=config.norm_eps,
        norm_bias=config.norm_bias,
        norm_weight=config.norm_weight,
        qk_norm_over=config.qk_norm_over,
        clip_qkv=config.clip_qkv,
        scale=config.scale / (index + 1) if config.scale_by_depth else config.scale,
        softcap=config.attention_softcap,
        dropout=config.attention_dropout,
        backend=backend,
    )
    ffn = make_feed_forward(config, index)

    def sublayer() -> Sublayer:
        return Sublayer(
            _norm(config, config.d_model),
            placement=config.norm_placement,
            post_norm=_norm(config, config.d_model) if config.norm_placement == "sandwich" else None,
            dropout=config.dropout,
            multiplier=config.residual_multiplier,
        )

    cross_attn = attention() if cross else None
    if config.conv_kernel is not None and index == 0:
        convolution = Convolution(
            config.d_model,
            config.conv_kernel,
            activation=config.conv_activation,
            norm=_norm(config, config.d_model),
            dropout=config.dropout,
        )
        more = {"sublayer": sublayer, "parallel": config.parallel_ffn}
        layer: Layer = ConvolvedLayer(attention(), ffn, convolution=convolution, **more)
    else:
        layer = Layer(attention(), ffn, cross_attn=cross_attn, sublayer=sublayer, parallel=config.parallel_ffn)
    if index == 0 and not config.first_norm:
        layer.self_attn_sublayer.norm = nn.Identity()
    return layer


def make_feed_forward(config: ModelConfig, index: int) -> FeedForward | ExpertFeedForward:
    """Return the feed-forward network of layer number `index`, with experts if the layer has them."""
    form: dict[str, Any] = {
        "activation": config.activation,
        "gated": config.gated,
        "bias": config.ffn_bias,
        "dropout": config.activation_dropout,
    }
    if not config.n_experts or index in config.dense_layers:
        return FeedForward(config.d_model, config.d_ff, **form)
    return ExpertFeedForward(
        config.d_model,
        config.expert_width,
        config.n_experts,
        per_token=config.experts_per_token,
        shared_d_ff=config.shared_expert_d_ff,
        normalize=config.normalize_expert_weights,
        **form,
    )


def make_head(config: ModelConfig) -> nn.Module | None:
    """Return the head module that `config.head` names; None for "none"."""
    width = config.d_model
    if config.head == "language_model":
        scale = config.output_factor
        width_out = config.table_width if config.head_transform else width
        transform = _transform(config, width_out)
        return LanguageModelHead(
            width_out,
            config.vocab_size,
            bias=config.output_bias,
            scale=scale,
            transform=transform,
            softcap=config.output_softcap,
        )
    transform = _transform(config, config.embedding_size)
    if config.head == "sequence_class":
        return SequenceClassHead(
            width, config.n_labels or 0, pooling=config.pool_by, transform=transform, dropout=config.dropout
        )
    if config.head == "embedding":
        return EmbeddingHead(pooling=config.pool_by, transform=transform, unit_length=config.unit_length)
    if config.head in ("token_class", "span"):
        n_labels = 2 if config.head == "span" else config.n_labels or 0
        return TokenClassHead(width, n_labels, dropout=config.dropout, transform=transform)
    return None


def _transform(config: ModelConfig, width: int) -> DenseTransform | None:
    """Return the dense layer of a head, with outputs of this width; None if the head has none."""
    if not config.head_transform:
        return None
    return DenseTransform(
        config.d_model,
        width,
        activation=config.head_activation or (config.activation if config.head == "language_model" else "tanh"),
        norm=_norm(config, width) if config.has_head_norm else None,
        bias=config.head_bias,
    )


def _norm(config: ModelConfig, width: int) -> nn.Module:
    return make_norm(config.norm, width, config.norm_eps, bias=config.norm_bias, weight=config.norm_weight)
