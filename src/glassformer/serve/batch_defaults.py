"""The size of a model's running batch and cache where the options leave it open: it depends on the device."""

from dataclasses import replace

import torch

from glassformer.runtime.step_runner import TextModel
from glassformer.serve.server_options import CPU_ROWS, BatchOptions

GPU_ROWS = 128
"""The default of `BatchOptions.max_rows` on a GPU."""
CPU_CACHE_TOKENS = 16384
"""The default of `BatchOptions.cache_tokens` on a CPU, and its least on a GPU."""
GPU_ROW_TOKENS, GPU_MEMORY_SHARE = 4096, 1 / 3
"""On a GPU, the default cache has this many tokens for each row, within this share of the free memory."""


def with_rows(batch: BatchOptions, device: torch.device) -> BatchOptions:
    """Return the options with the default of `max_rows` for models on this device."""
    return batch if batch.max_rows else replace(batch, max_rows=GPU_ROWS if device.type == "cuda" else CPU_ROWS)


def cache_tokens_for(batch: BatchOptions, model: TextModel) -> int:
    """Return the size of the cache of a model in tokens, at least one for each row."""
    parameter, config = next(model.parameters()), model.config
    rows = with_rows(batch, parameter.device).max_rows
    if batch.cache_tokens:
        return max(rows, batch.cache_tokens)
    if parameter.device.type != "cuda":
        return max(rows, CPU_CACHE_TOKENS)
    token_bytes = 2 * config.n_decoder_layers * config.kv_heads * config.head_size * parameter.element_size()
    free, _ = torch.cuda.mem_get_info(parameter.device)
    wanted = rows * min(GPU_ROW_TOKENS, config.max_len or GPU_ROW_TOKENS)
    return max(rows, CPU_CACHE_TOKENS, min(wanted, int(GPU_MEMORY_SHARE * free / token_bytes)))
