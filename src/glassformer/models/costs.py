"""The number of parameters and floating-point operations of a model, computed from its config alone."""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache

from glassformer.base.checks import check_positive
from glassformer.models.config import ModelConfig
from glassformer.reference.config import Config
from glassformer.reference.initial import parameter_shapes


@lru_cache(maxsize=8)
def shapes_by_name(config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """Return the shape of each parameter of `build_model(config)` without building the model; tied ones once.

    The shapes come from the NumPy implementation (`reference/initial.py`). A model on torch's meta device would work
    too, but takes seconds if it has thousands of experts.
    """
    return parameter_shapes(Config.from_dict(asdict(config)))


def count_parameters(config: ModelConfig) -> int:
    """Return `build_model(config).n_parameters()` without building the model."""
    return sum(map(math.prod, shapes_by_name(config).values()))


def count_active_parameters(config: ModelConfig) -> int:
    """Return how many parameters compute one token: all but those of the experts that are not chosen for it."""
    shapes = shapes_by_name(config)
    experts = sum(math.prod(shape) for name, shape in shapes.items() if ".ffn.experts." in name)
    idle = experts // max(1, config.n_experts) * (config.n_experts - min(config.experts_per_token, config.n_experts))
    return sum(map(math.prod, shapes.values())) - idle


TABLES = re.compile(r"\.(tokens|positions|token_types|relative|score_bias(\.\d+)?|router|shared_gate)\.weight$")
"""Names of matrices that are not quantized: tables of vectors, and routers of experts."""


def weight_bytes_by_format(config: ModelConfig) -> dict[str, int]:
    """Return the bytes of a model's weights in memory, for each number format that it can be loaded in.

    In the quantized formats int8 and int4, all but linear layers are in float32. A tied output layer is stored twice
    there: as the embedding table in float32, and quantized. int4 has groups of 32 weights with 5 bits per weight in the
    layers, and 8.5 bits elsewhere.
    """
    shapes = shapes_by_name(config)
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    total = sum(sizes.values())
    linear = {name: sizes[name] for name in shapes if len(shapes[name]) == 2 and not TABLES.search(name)}
    tied = config.vocab_size * config.table_width if config.ties_output else 0
    inner = sum(size for name, size in linear.items() if ".layers." in name)
    outer = sum(linear.values()) - inner + tied
    n_float_bytes = 4 * (total - sum(linear.values()))
    return {
        "float32": 4 * total,
        "bfloat16": 2 * total,
        "float16": 2 * total,
        "int8": inner + outer + n_float_bytes,
        "int4": int((5 * inner + 8.5 * outer) / 8) + n_float_bytes,
    }


def forward_flops(config: ModelConfig, *, batch: int, source_length: int = 0, target_length: int = 0) -> int:
    """Return the floating-point operations of one forward pass for a batch of `batch` sequences.

    The lengths include padding. An encoder takes only a source length, a decoder only a target length. Only matrix
    products are counted, with 2 operations per multiply-add; norms, softmax and lookups are not. Causal and windowed
    attention count as full attention.
    """
    check_positive("batch", batch)
    _check_length("source_length", source_length, config.n_encoder_layers, config)
    _check_length("target_length", target_length, config.n_decoder_layers, config)
    has_both = config.kind == "encoder_decoder"
    row = _embeddings(config, source_length + target_length)
    row += config.n_encoder_layers * _layer(config, source_length, None)
    row += source_length * (config.conv_kernel or 0) * _linear(config.d_model, config.d_model)
    row += config.n_decoder_layers * _layer(config, target_length, source_length if has_both else None)
    if config.n_experts:
        row += (config.n_decoder_layers - len(config.dense_layers)) * target_length * _more_by_experts(config)
    row += _head(config, target_length if config.n_decoder_layers else source_length)
    return batch * row + config.n_encoder_layers * _relative_vectors(config)


def training_flops(config: ModelConfig, *, batch: int, source_length: int = 0, target_length: int = 0) -> int:
    """Return the floating-point operations of one forward and backward pass: 3 times `forward_flops`.

    The backward pass of a matrix product takes two products of the same size. The recomputation of gradient
    checkpointing is not counted, as usual for model FLOPs utilization.
    """
    return 3 * forward_flops(config, batch=batch, source_length=source_length, target_length=target_length)


def _check_length(name: str, length: int, n_layers: int, config: ModelConfig) -> None:
    if n_layers:
        check_positive(name, length)
    elif length:
        raise ValueError(f"{name}={length} for kind {config.kind!r}, which has no such input: expected 0")


def _linear(n_in: int, n_out: int) -> int:
    """Return the floating-point operations of a linear layer for one token."""
    return 2 * n_in * n_out


def _embeddings(config: ModelConfig, length: int) -> int:
    is_projected = config.embedding_width is not None
    return length * _linear(config.table_width, config.d_model) if is_projected else 0


def _layer(config: ModelConfig, length: int, memory_length: int | None) -> int:
    total = _attention(config, length, length)
    if memory_length is not None:
        total += _attention(config, length, memory_length)
    return total + length * (3 if config.gated else 2) * _linear(config.d_model, config.d_ff)


def _more_by_experts(config: ModelConfig) -> int:
    """Return the operations for one token that a layer with experts has in addition to a plain one of width d_ff."""
    width = config.experts_per_token * config.expert_width + (config.shared_expert_d_ff or 0) - config.d_ff
    n_scores = config.n_experts + (config.shared_expert_d_ff is not None)
    return (3 if config.gated else 2) * _linear(config.d_model, width) + _linear(config.d_model, n_scores)


def _attention(config: ModelConfig, n_queries: int, n_keys: int) -> int:
    width, kv_width = config.n_heads * config.head_size, config.kv_heads * config.head_size
    queries_and_out = 2 * n_queries * _linear(config.d_model, width)
    keys_and_values = 2 * n_keys * _linear(config.d_model, kv_width)
    relative = 0
    if config.positions == "disentangled":  # products of queries and of keys with the vectors of relative positions
        relative = (n_queries + n_keys) * _linear(width, 2 * config.relative_buckets)
    # Every query head multiplies with all keys and values, even if heads share them.
    scores_and_sum = 2 * n_queries * _linear(width, n_keys)
    return queries_and_out + keys_and_values + scores_and_sum + relative


def _relative_vectors(config: ModelConfig) -> int:
    """Return the operations of projecting the vectors of relative positions, once in a layer for all sequences."""
    if config.positions != "disentangled":
        return 0
    return 2 * config.relative_buckets * 2 * _linear(config.d_model, config.n_heads * config.head_size)


def _head(config: ModelConfig, length: int) -> int:
    width = config.d_model
    if config.head == "language_model":
        width_out = config.table_width if config.head_transform else width
        transform = _linear(width, width_out) if config.head_transform else 0
        return length * (transform + _linear(width_out, config.vocab_size))
    n_labels = 2 if config.head == "span" else config.n_labels or 0
    transform = _linear(width, config.embedding_size) if config.head_transform else 0
    if config.head in ("token_class", "span"):
        return length * (transform + _linear(width, n_labels))
    # The other heads pool first: one vector per row.
    return transform + _linear(width, n_labels)
