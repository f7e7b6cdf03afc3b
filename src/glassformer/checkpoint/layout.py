"""File names of a model folder, and a check that a config's sizes fit the stored tensors. Needs no torch."""

import math
from collections.abc import Callable, Sequence

from glassformer.models.config import ModelConfig

CONFIG, WEIGHTS = "config.json", "model.safetensors"
READ_FILES = (
    *(CONFIG, WEIGHTS, "task.json", "origin.json", "generation_config.json", "labels.json"),
    *("tokenizer.json", "source_tokenizer.json", "target_tokenizer.json", "tokenizer_config.json"),
    *("target_tokenizer_config.json", "adapter_config.json", "adapter_model.safetensors"),
    *("special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "vocab.txt", "vocab.json", "merges.txt"),
    *("source.spm", "target.spm", "tokenizer.model", "spiece.model", "sentence_bert_config.json", "modules.json"),
    *("config_sentence_transformers.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"),
)
"""Everything that is read from a model folder. A folder with a manifest must list each of these names that exists."""
# Limits for hostile files where no tensor bounds the size. Real models stay far below them.
MAX_SHARED_LAYERS = 1 << 10
MAX_SINUSOIDS = 1 << 16
MAX_PLAUSIBLE = 1 << 21
"""The largest size that a real model may have. `check_sizes` looks for missing tensors only up to this size."""


def check_sizes(
    config: ModelConfig, shapes: Sequence[tuple[int, ...]], missing: Callable[[], Sequence[str]] = lambda: ()
) -> None:
    """Raise ValueError if `config` has a size that is too large for a model file with tensors of these shapes.

    Call it before the model is built, so that a hostile config cannot ask for a huge model. There may be no more layers
    than tensors (shared layers have a fixed limit). Sizes that are dimensions of tensors, such as `vocab_size`, may not
    exceed the number of elements in the largest tensor.

    A size may also exceed it because the largest tensor is missing. If all sizes are plausible (`MAX_PLAUSIBLE`), the
    error therefore lists the names that `missing` returns: the tensors that the config needs and the file lacks.
    """
    # Shared layers are stored once and sinusoids are computed, so the tensors do not bound their number.
    depth = MAX_SHARED_LAYERS if config.share_layers else len(shapes)
    if config.n_encoder_layers + config.n_decoder_layers > depth:
        raise ValueError(
            f"{config.n_encoder_layers} encoder and {config.n_decoder_layers} decoder layers: expected at most {depth} "
            f"for a file with {len(shapes)} tensors"
        )
    n_networks = config.n_experts * (1 if config.share_layers else config.n_decoder_layers - len(config.dense_layers))
    if n_networks > len(shapes):
        raise ValueError(
            f"n_experts={config.n_experts}: expected at most {len(shapes)} experts in all layers, for a file with "
            f"{len(shapes)} tensors"
        )
    if config.positions == "sinusoidal" and (config.max_len or 0) > MAX_SINUSOIDS:
        raise ValueError(f"max_len={config.max_len}: expected at most {MAX_SINUSOIDS} with sinusoidal positions")
    most = max(map(math.prod, shapes), default=0)
    sizes = _sizes(config)
    for name, size in sizes.items():
        if size > most:
            names = list(missing()) if max(sizes.values()) <= MAX_PLAUSIBLE else []
            more = f". Missing tensors: {', '.join(names[:5])}" if names else ""
            raise ValueError(
                f"{name}={size}: expected at most {most}, the number of elements in the largest tensor{more}"
            )


def _sizes(config: ModelConfig) -> dict[str, int]:
    """Return the sizes of `config` that are tensor dimensions. The keys are the names that an error message shows."""
    sizes = {
        "vocab_size": config.vocab_size,
        "source_vocab_size": config.source_vocab,
        "d_model": config.d_model,
        "d_ff": config.d_ff,
        "n_heads * head_dim": config.n_heads * config.head_size,
        "embedding_width": config.table_width,
        "token_types": config.token_types,
        "n_labels": config.n_labels or 0,
    }
    if config.n_experts:
        sizes |= {"n_experts": config.n_experts, "expert_d_ff": config.expert_width}
        sizes["shared_expert_d_ff"] = config.shared_expert_d_ff or 0
        if not config.dense_layers:  # no tensor has this size
            del sizes["d_ff"]
    if config.positions == "learned":
        sizes["max_len"] = (config.max_len or 0) + config.position_offset
    if config.has_relative_bias:
        sizes["relative_buckets"] = config.relative_buckets
    if config.conv_kernel is not None:
        sizes["conv_kernel"] = config.conv_kernel
    if config.positions == "disentangled":
        sizes["2 * relative_buckets"] = 2 * config.relative_buckets
    return sizes
