"""cuDNN's attention is used for long prompts only, and never against the caller's setting."""

import pytest
import torch

from glassformer import build_model, preset
from glassformer.runtime import cudnn_attention
from glassformer.runtime.cudnn_attention import LONG_PROMPT, attention_for_prompt, without_cudnn
from glassformer.runtime.step_runner import StepRunner, inference


@pytest.fixture(params=[True, False])
def is_enabled(request):
    torch.backends.cuda.enable_cudnn_sdp(request.param)
    yield request.param
    torch.backends.cuda.enable_cudnn_sdp(True)


def is_used():
    return torch.backends.cuda.cudnn_sdp_enabled()


def test_only_long_prompts_use_cudnn(is_enabled):
    with without_cudnn():
        assert not is_used()
        with without_cudnn(), attention_for_prompt(LONG_PROMPT):  # nested, as a pipeline in a server
            assert is_used() is is_enabled
        with attention_for_prompt(LONG_PROMPT - 1):
            assert not is_used()
        assert not is_used()
    assert is_used() is is_enabled


def test_the_setting_is_restored_after_an_error(is_enabled):
    with pytest.raises(RuntimeError, match="out of memory"), without_cudnn(), attention_for_prompt(LONG_PROMPT):
        raise RuntimeError("out of memory")
    assert is_used() is is_enabled


def test_prompts_are_read_accordingly(monkeypatch, is_enabled):
    monkeypatch.setattr(cudnn_attention, "LONG_PROMPT", 4)
    model = build_model(preset("tiny-gpt2"))
    seen = []
    norm = next(module for module in model.modules() if isinstance(module, torch.nn.LayerNorm))
    norm.register_forward_pre_hook(lambda *_: seen.append(is_used()))
    for length in (3, 4):
        with inference(model):
            StepRunner(model, model.new_cache(1, 8)).prefill(torch.ones(1, length, dtype=torch.long))
    assert seen == [False, is_enabled]
    assert is_used() is is_enabled
