"""The size of the running batch and of the cache where a user names none."""

import torch

from glassformer.models import preset
from glassformer.serve.batch_defaults import (
    CPU_CACHE_TOKENS,
    GPU_ROW_TOKENS,
    GPU_ROWS,
    cache_tokens_for,
    with_rows,
)
from glassformer.serve.server_options import CPU_ROWS, BatchOptions
from oracle import random_model


def test_the_batch_is_larger_on_a_gpu():
    assert with_rows(BatchOptions(), torch.device("cpu")).max_rows == CPU_ROWS
    assert with_rows(BatchOptions(), torch.device("cuda")).max_rows == GPU_ROWS
    assert with_rows(BatchOptions(max_rows=3), torch.device("cuda")).max_rows == 3


def test_the_cache_has_a_token_for_each_row_at_least():
    model = random_model(preset("tiny-gpt2"))
    assert cache_tokens_for(BatchOptions(), model) == CPU_CACHE_TOKENS
    assert cache_tokens_for(BatchOptions(cache_tokens=5), model) == CPU_ROWS
    assert cache_tokens_for(BatchOptions(cache_tokens=500), model) == 500


class OnGpu:
    """A model whose parameters say that they are on a GPU."""

    config = preset("tiny-llama", max_len=2 * GPU_ROW_TOKENS)

    def parameters(self):
        parameter = torch.zeros(1)
        parameter = type("Parameter", (), {"device": torch.device("cuda"), "element_size": parameter.element_size})()
        return iter([parameter])


def test_the_cache_on_a_gpu_has_room_for_long_texts_within_a_share_of_the_free_memory(monkeypatch):
    config = OnGpu.config
    token_bytes = 2 * 4 * config.n_decoder_layers * config.kv_heads * config.head_size
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**12, 10**12))
    assert cache_tokens_for(BatchOptions(), OnGpu()) == GPU_ROWS * GPU_ROW_TOKENS
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * 20_000 * token_bytes, 10**12))
    assert cache_tokens_for(BatchOptions(), OnGpu()) == 20_000
