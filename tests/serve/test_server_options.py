import torch

from glassformer.models import preset
from glassformer.serve.server_options import (
    CPU_CACHE_TOKENS,
    CPU_ROWS,
    GPU_ROW_TOKENS,
    GPU_ROWS,
    KEYS_VARIABLE,
    BatchOptions,
    ListenOptions,
)
from oracle import random_model


def test_keys_come_from_the_command_line_and_from_the_environment(monkeypatch):
    monkeypatch.setenv(KEYS_VARIABLE, "two, three,,one")
    assert ListenOptions(api_key=("one",)).all_keys() == ("one", "two", "three")
    monkeypatch.delenv(KEYS_VARIABLE)
    assert ListenOptions().all_keys() == ()


def test_a_server_listens_on_this_machine_only():
    assert ListenOptions().host == "127.0.0.1"
    assert ListenOptions().cors == ()
    assert not ListenOptions().log_prompts


def test_the_batch_is_larger_on_a_gpu():
    assert BatchOptions().on(torch.device("cpu")).max_rows == CPU_ROWS
    assert BatchOptions().on(torch.device("cuda")).max_rows == GPU_ROWS
    assert BatchOptions(max_rows=3).on(torch.device("cuda")).max_rows == 3


def test_the_cache_has_a_token_for_each_row_at_least():
    model = random_model(preset("tiny-gpt2"))
    assert BatchOptions().cache_tokens_for(model) == CPU_CACHE_TOKENS
    assert BatchOptions(cache_tokens=5).cache_tokens_for(model) == CPU_ROWS
    assert BatchOptions(cache_tokens=500).cache_tokens_for(model) == 500


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
    assert BatchOptions().cache_tokens_for(OnGpu()) == GPU_ROWS * GPU_ROW_TOKENS
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * 20_000 * token_bytes, 10**12))
    assert BatchOptions().cache_tokens_for(OnGpu()) == 20_000
