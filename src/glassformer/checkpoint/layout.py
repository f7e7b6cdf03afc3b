"""The files of a model folder, and the sizes that stored tensors allow a config to name. Needs no torch."""

import math
from collections.abc import Callable, Sequence

from glassformer.models.config import ModelConfig

CONFIG, WEIGHTS = "config.json", "model.safetensors"
READ_FILES = (
    *(CONFIG, WEIGHTS, "task.json", "origin.json", "generation_config.json", "labels.json"),
    *("tokenizer.json", "source_tokenizer.json", "target_tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "vocab.txt", "vocab.json", "merges.txt"),
    *("source.spm", "target.spm", "tokenizer.model", "spiece.model", "sentence_bert_config.json", "1_Pooling"),
)
"""Everything that is read of a model folder: none of these may be there without a checksum in the manifest."""
# What a hostile file may ask for where no tensor sets a limit; real ones stay far below.
MAX_SHARED_LAYERS = 1 << 10
MAX_SINUSOIDS = 1 << 16
MAX_PLAUSIBLE = 1 << 21
"""The largest side of a real tensor; a model of such sizes can be built without memory."""


def check_sizes(
    config: ModelConfig, shapes: Sequence[tuple[int, ...]], missing: Callable[[], Sequence[str]] = lambda: ()
) -> None:
    """Refuse sizes that tensors of these shapes cannot have, before a model is built of them.

    Each size is a side of some tensor, so none is larger than the largest tensor; and each layer has tensors.
    `missing` names the tensors that a model of this config has and the file has not. It is called only where a size is
    too large for the file and still plausible: then the largest tensor may be what is missing.
    """
    # A shared layer is stored once, and a table of waves is computed: no tensor limits how many.
    depth = MAX_SHARED_LAYERS if config.share_layers else len(shapes)
    if config.n_encoder_layers + config.n_decoder_layers > depth:
        raise ValueError(
            f"{config.n_encoder_layers} encoder and {config.n_decoder_layers} decoder layers: expected at most {depth} "
            f"of a file with {len(shapes)} tensors"
        )
    if config.positions == "sinusoidal" and (config.max_len or 0) > MAX_SINUSOIDS:
        raise ValueError(f"max_len={config.max_len}: expected at most {MAX_SINUSOIDS} with sinusoidal positions")
    most = max(map(math.prod, shapes), default=0)
    sizes = _sizes(config)
    for name, size in sizes.items():
        if size > most:
            names = list(missing()) if max(sizes.values()) <= MAX_PLAUSIBLE else []
            more = f". Missing tensors: {', '.join(names[:5])}" if names else ""
            raise ValueError(f"{name}={size}: expected at most {most}, the numbers in the largest tensor{more}")


def _sizes(config: ModelConfig) -> dict[str, int]:
    """The sizes that are sides of tensors."""
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
    if config.positions == "learned":
        sizes["max_len"] = (config.max_len or 0) + config.position_offset
    if config.positions == "relative":
        sizes["relative_buckets"] = config.relative_buckets
    return sizes
