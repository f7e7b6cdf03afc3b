"""The coverage penalty: the attention of a step, and the score of a source that was not covered."""

import math

import torch

from glassformer.decoding.coverage import attention_of_step, capture_source_attention, log_coverage
from glassformer.decoding.generation_config import GenerationConfig


def test_covered_tokens_cost_nothing_and_padding_is_ignored():
    coverage = torch.tensor([[[1.5, 1.0, 0.2], [0.5, 2.0, 0.2]]])
    is_real = torch.tensor([[True, True, False]])
    torch.testing.assert_close(log_coverage(coverage, is_real), torch.tensor([[0.0, math.log(0.5)]]))
    torch.testing.assert_close(log_coverage(coverage, None)[0, 0].item(), math.log(0.2))


def test_the_attention_of_the_newest_token_is_averaged_over_heads():
    weights = torch.rand(2, 4, 6, 5)  # two sentences, four heads, three hypotheses of two tokens, five source tokens
    found = attention_of_step({"decoder.layers.0.cross_attn": weights}, 3, torch.float64)
    assert found.shape == (6, 5)
    torch.testing.assert_close(found[4], weights[1, :, 3].double().mean(0))


def test_attention_is_captured_only_for_a_penalty():
    with capture_source_attention(torch.nn.Identity(), GenerationConfig(num_beams=2)) as captured:
        assert captured is None
