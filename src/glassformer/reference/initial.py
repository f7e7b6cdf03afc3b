"""Names, shapes and initial values of all parameters of a model."""

import math

import numpy as np

from glassformer.reference.config import Config
from glassformer.reference.parameters import Array

Shapes = dict[str, tuple[int, ...]]


def initial_parameters(config: Config, rng: np.random.Generator) -> dict[str, Array]:
    """Return initial parameters by name: Xavier-uniform matrices, norm weights of 1 and biases of 0."""
    found = {name: _start(name, shape, rng) for name, shape in parameter_shapes(config).items()}
    if config.norm == "offset_rms":  # the parameter is the difference from 1
        found |= {name: np.zeros_like(value) for name, value in found.items() if name.endswith("norm.weight")}
    return found


def _start(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if len(shape) > 1:
        bound = math.sqrt(6 / sum(shape))
        return rng.uniform(-bound, bound, shape)
    return np.zeros(shape) if name.endswith("bias") else np.ones(shape)


def parameter_shapes(config: Config) -> Shapes:
    """Return the shape of every parameter by its name in the torch model. Tied parameters are listed once."""
    shapes: Shapes = {}
    if config.n_encoder_layers and config.n_decoder_layers:
        is_shared = config.tie in ("embeddings", "all")
        _embeddings(shapes, "source_embeddings", config, config.source_vocab_size or config.vocab_size, True)
        _embeddings(shapes, "target_embeddings", config, config.vocab_size, not is_shared)
    else:
        _embeddings(shapes, "embeddings", config, config.vocab_size, True)
    if config.n_encoder_layers:
        _stack(shapes, "encoder", config, config.n_encoder_layers, cross=False)
    if config.n_decoder_layers:
        _stack(shapes, "decoder", config, config.n_decoder_layers, cross=config.n_encoder_layers > 0)
    _head(shapes, config)
    return shapes


def _linear(shapes: Shapes, name: str, n_in: int, n_out: int, bias: bool = True) -> None:
    shapes[f"{name}.weight"] = (n_out, n_in)
    if bias:
        shapes[f"{name}.bias"] = (n_out,)


def _norm(shapes: Shapes, name: str, config: Config, width: int) -> None:
    if config.norm_weight:
        shapes[f"{name}.weight"] = (width,)
    if config.norm not in ("rms", "offset_rms") and config.norm_bias:
        shapes[f"{name}.bias"] = (width,)


def _embeddings(shapes: Shapes, name: str, config: Config, vocab_size: int, owns_table: bool) -> None:
    width = config.table_width
    if owns_table:
        shapes[f"{name}.tokens.weight"] = (vocab_size, width)
    if config.positions == "learned":
        assert config.max_len is not None
        shapes[f"{name}.positions.weight"] = (config.max_len + config.position_offset, width)
    if config.token_types:
        shapes[f"{name}.token_types.weight"] = (config.token_types, width)
    if config.embedding_norm:
        _norm(shapes, f"{name}.norm", config, width)
    if owns_table and config.embedding_width is not None:
        _linear(shapes, f"{name}.projection", width, config.d_model)


def _stack(shapes: Shapes, name: str, config: Config, depth: int, *, cross: bool) -> None:
    for index in range(1 if config.share_layers else depth):
        layer = f"{name}.layers.{index}"
        for attention in ("self_attn", "cross_attn") if cross else ("self_attn",):
            _attention(shapes, f"{layer}.{attention}", config)
            if index or config.first_norm:
                _sublayer(shapes, f"{layer}.{attention}_sublayer", config)
        if config.n_experts and index not in config.dense_layers:
            _experts(shapes, f"{layer}.ffn", config)
        else:
            _feed_forward(shapes, f"{layer}.ffn", config, config.d_ff)
        if config.parallel_ffn != "one_norm":
            _sublayer(shapes, f"{layer}.ffn_sublayer", config)
    if config.has_final_norm:
        _norm(shapes, f"{name}.norm", config, config.d_model)
    if config.positions == "disentangled":
        shapes[f"{name}.relative.weight"] = (2 * config.relative_buckets, config.d_model)
        if config.relative_norm:
            _norm(shapes, f"{name}.relative.norm", config, config.d_model)
    if config.conv_kernel is not None:
        shapes[f"{name}.layers.0.convolution.conv.weight"] = (config.d_model, config.d_model, config.conv_kernel)
        shapes[f"{name}.layers.0.convolution.conv.bias"] = (config.d_model,)
        _norm(shapes, f"{name}.layers.0.convolution.norm", config, config.d_model)
    if config.has_relative_bias:
        n_tables = 1 if config.share_layers else depth
        for part in [""] if config.share_relative_bias else [f".{index}" for index in range(n_tables)]:
            shapes[f"{name}.score_bias{part}.weight"] = (config.relative_buckets, config.n_heads)


def _feed_forward(shapes: Shapes, name: str, config: Config, width: int) -> None:
    for projection in ("up_proj", "gate_proj") if config.gated else ("up_proj",):
        _linear(shapes, f"{name}.{projection}", config.d_model, width, config.ffn_bias)
    _linear(shapes, f"{name}.down_proj", width, config.d_model, config.ffn_bias)


def _experts(shapes: Shapes, name: str, config: Config) -> None:
    _linear(shapes, f"{name}.router", config.d_model, config.n_experts, bias=False)
    for index in range(config.n_experts):
        _feed_forward(shapes, f"{name}.experts.{index}", config, config.expert_d_ff or config.d_ff)
    if config.shared_expert_d_ff is not None:
        _feed_forward(shapes, f"{name}.shared_expert", config, config.shared_expert_d_ff)
        _linear(shapes, f"{name}.shared_gate", config.d_model, 1, bias=False)


def _sublayer(shapes: Shapes, name: str, config: Config) -> None:
    _norm(shapes, f"{name}.norm", config, config.d_model)
    if config.norm_placement == "sandwich":
        _norm(shapes, f"{name}.post_norm", config, config.d_model)


def _attention(shapes: Shapes, name: str, config: Config) -> None:
    for projection, heads in (("q_proj", config.n_heads), ("k_proj", config.kv_heads), ("v_proj", config.kv_heads)):
        bias = config.qkv_bias and (config.key_bias or projection != "k_proj")
        _linear(shapes, f"{name}.{projection}", config.d_model, heads * config.head_size, bias)
    _linear(shapes, f"{name}.out_proj", config.n_heads * config.head_size, config.d_model, config.out_bias)
    if config.positions == "disentangled" and not config.share_relative_proj:
        for projection, bias in (("relative_q_proj", True), ("relative_k_proj", config.key_bias)):
            width = config.n_heads * config.head_size
            _linear(shapes, f"{name}.{projection}", config.d_model, width, config.qkv_bias and bias)
    if config.qk_norm:
        for norm, n_heads in (("q_norm", config.n_heads), ("k_norm", config.kv_heads)):
            width = config.head_size * (n_heads if config.qk_norm_over == "all_heads" else 1)
            _norm(shapes, f"{name}.{norm}", config, width)


def _head(shapes: Shapes, config: Config) -> None:
    width = config.d_model
    if config.head == "language_model":
        if config.head_transform:
            width = config.table_width
            _transform(shapes, config, width)
        if config.tie not in ("output", "all"):
            shapes["head.out_proj.weight"] = (config.vocab_size, width)
        if config.output_bias:
            shapes["head.out_proj.bias"] = (config.vocab_size,)
        return
    if config.head_transform:
        _transform(shapes, config, config.head_width or width)
    if config.head in ("sequence_class", "token_class", "span"):
        _linear(shapes, "head.out_proj", width, 2 if config.head == "span" else config.n_labels or 0)


def _transform(shapes: Shapes, config: Config, width: int) -> None:
    _linear(shapes, "head.transform.dense", config.d_model, width, config.head_bias)
    if config.has_head_norm:
        _norm(shapes, "head.transform.norm", config, width)
