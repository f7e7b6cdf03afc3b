"""The coverage penalty: the attention of a step, and the score of a source that was not covered."""

import math
from dataclasses import replace

import torch

from glassformer.decoding import generate
from glassformer.decoding.coverage import attention_of_step, capture_source_attention, log_coverage
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.models import build_model, preset


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


def test_a_decoder_with_fewer_layers_than_its_encoder_has_a_coverage_penalty():
    torch.manual_seed(0)
    model = build_model(replace(preset("tiny-transformer-base"), n_encoder_layers=3, n_decoder_layers=1)).eval()
    config = GenerationConfig(max_new_tokens=4, num_beams=2, coverage_penalty=0.5)
    ((plain,),) = generate(model, [[5, 6, 7, 8, 9, 10, 11]], replace(config, coverage_penalty=0.0), end=3, begin=1)
    ((found,),) = generate(model, [[5, 6, 7, 8, 9, 10, 11]], config, end=3, begin=1)
    assert found.score < plain.score  # the penalty is never positive


def test_attention_is_captured_only_for_a_penalty():
    with capture_source_attention(torch.nn.Identity(), GenerationConfig(num_beams=2)) as captured:
        assert captured is None
