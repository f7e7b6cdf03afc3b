"""Sampling filters against HF's, the random draw, and the examples in the docstrings."""

import doctest

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from decoding.search_cases import random_case
from glassformer.decoding import GenerationConfig, sampling
from glassformer.decoding.cpu_sampling import filter_weights
from glassformer.decoding.sampling import NEG_INF, filter_logits, sample

LOGITS = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()


def test_the_examples_in_the_docstrings_are_correct():
    found = doctest.testmod(sampling, extraglobs={"logits": LOGITS})
    assert found.attempted >= 9
    assert found.failed == 0


def test_every_sampling_setting_of_the_config_has_a_function():
    for name in sampling.STAGES:
        assert hasattr(GenerationConfig, name)
    assert set(sampling.STAGES) == {"temperature", "top_k", "top_p", "min_p", "typical_p"}


WARPERS = [
    ({"temperature": 0.6}, hf.TemperatureLogitsWarper(0.6)),
    ({"top_k": 4}, hf.TopKLogitsWarper(4)),
    ({"top_k": 50}, hf.TopKLogitsWarper(50)),
    ({"top_p": 0.7}, hf.TopPLogitsWarper(0.7)),
    ({"top_p": 0.05}, hf.TopPLogitsWarper(0.05)),
    ({"min_p": 0.2}, hf.MinPLogitsWarper(0.2)),
    ({"typical_p": 0.5}, hf.TypicalLogitsWarper(0.5)),
    ({"typical_p": 0.95}, hf.TypicalLogitsWarper(0.95)),
]


@given(seed=st.integers(0, 10**6), which=st.lists(st.sampled_from(range(len(WARPERS))), min_size=3, max_size=3))
def test_each_row_is_filtered_as_by_hfs_warper(seed, which):
    scores, tokens = random_case(seed)
    requests = [GenerationConfig(do_sample=True, **WARPERS[index][0]) for index in which]
    found = filter_logits(scores, requests)
    for row, index in enumerate(which):
        expected = WARPERS[index][1](tokens[row : row + 1], scores[row : row + 1].clone())
        torch.testing.assert_close(found[row : row + 1], expected)


def test_all_filters_together_equal_hfs():
    scores, tokens = random_case(3, rows=50)
    config = GenerationConfig(do_sample=True, temperature=0.8, top_k=8, top_p=0.9, min_p=0.05, typical_p=0.9)
    expected = scores
    for warper in (
        hf.TemperatureLogitsWarper(0.8),
        hf.TopKLogitsWarper(8),
        hf.TopPLogitsWarper(0.9),
        hf.MinPLogitsWarper(0.05),
        hf.TypicalLogitsWarper(0.9),
    ):
        expected = warper(tokens, expected)
    torch.testing.assert_close(filter_logits(scores, [config] * 50), expected)


def test_the_best_token_is_left_if_top_p_is_0():
    request = GenerationConfig(do_sample=True, top_p=0.0)
    assert (filter_logits(LOGITS, [request]) > NEG_INF).tolist() == [[True, False, False, False]]


def test_samples_follow_the_probabilities():
    scores = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0]).log().repeat(20_000, 1)
    numbers = torch.rand(20_000, generator=torch.Generator().manual_seed(0)).tolist()
    drawn = sample(scores, numbers).bincount(minlength=5) / 20_000
    torch.testing.assert_close(drawn, torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0]), atol=0.015, rtol=0.0)
    assert drawn[4] == 0
    assert sample(scores[:2], [0.0, 1.0 - 2**-53]).tolist() == [0, 3]


def filter_weights_of(logits, request):
    """Return the weights of `cpu_sampling.filter_weights` for each row of logits (N, V)."""
    rows = zip(logits.softmax(-1).numpy(), logits.numpy(), strict=True)
    return torch.stack([torch.from_numpy(filter_weights(weights, row, request)) for weights, row in rows])


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
@pytest.mark.parametrize(
    "options",
    [{"top_p": 0.1}, {"top_p": 0.999}, {"typical_p": 0.3}, {"typical_p": 0.99}, {"top_k": 40}, {"top_k": 4000}],
)
def test_a_large_vocabulary_is_filtered_as_if_it_were_sorted(spread, options):
    """By `sampling.py`, which sorts it, and by `cpu_sampling.py`, which does not."""
    torch.manual_seed(1)
    logits = spread * torch.randn(3, 5000, dtype=torch.float64)
    logits[1, 77] += 20.0  # a row where one token is enough
    request = GenerationConfig(do_sample=True, **options)
    found = filter_logits(logits, [request] * 3)
    weights = filter_weights_of(logits, request)
    warpers = {"top_p": hf.TopPLogitsWarper, "typical_p": hf.TypicalLogitsWarper, "top_k": hf.TopKLogitsWarper}
    ((name, value),) = options.items()
    expected = warpers[name](value)(None, logits.clone())
    if spread:
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(weights / weights.sum(-1, keepdim=True), expected.softmax(-1))
    else:  # all tokens are equal: any of them may be kept, but as many
        for is_kept in (found[0] > NEG_INF, weights[0] > 0):
            assert abs(is_kept.sum() - (expected[0] > NEG_INF).sum()) <= 1


def test_every_draw_is_the_inverse_of_the_distribution_function():
    """Against the exact distribution, in float64, on both sides of every boundary between two tokens."""
    probs = torch.tensor([0.0, 0.125, 0.25, 0.0, 0.5, 0.125, 0.0], dtype=torch.float64)
    numbers = [0.0, 0.1249, 0.1251, 0.3749, 0.3751, 0.8749, 0.8751, 1.0 - 2**-53]
    assert sample(probs.log().repeat(8, 1), numbers).tolist() == [1, 1, 2, 2, 4, 4, 5, 5]


@pytest.mark.parametrize("number", [0.0, 0.5, 1.0 - 2**-53])
def test_a_filtered_token_is_never_sampled(number):
    scores = torch.tensor([[NEG_INF, 1e-4, NEG_INF], [NEG_INF, NEG_INF, -50.0]])
    assert sample(scores, [number, number]).tolist() == [1, 2]
