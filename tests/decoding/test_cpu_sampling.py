"""Sampling without sorting the vocabulary gives the tokens and probabilities of the plain functions."""

import doctest
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.decoding import GenerationConfig, cpu_sampling
from glassformer.decoding.cpu_sampling import draw, filter_weights, find_cutoff, sample_rows
from glassformer.decoding.sampling import NEG_INF, filter_logits, sample

SMALL = {"FEW": 4, "MARGIN": 1, "CHUNK": 3, "PART": 5, "BUCKET_BITS": 6, "N_BUCKETS": 64}
USUAL = {name: getattr(cpu_sampling, name) for name in SMALL}


@pytest.fixture(autouse=True, scope="module")
def small_limits():
    """Make the limits so small that a few tokens take every path."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(cpu_sampling, name, value)
        yield


def test_the_examples_in_the_docstrings_are_correct():
    found = doctest.testmod(cpu_sampling)
    assert found.attempted >= 6
    assert found.failed == 0


# Sums of a few equal probabilities do not come close to these, so that rounding cannot change what is kept.
SHARES = [0.0, 0.1371, 0.5003, 0.9071, 0.99990001, 1.0]
CHOICES = {
    "temperature": [0.3, 1.7],
    "top_k": [0, 1, 2, 5, 17, 40],
    "top_p": SHARES,
    "min_p": [0.0, 0.0371, 0.6, 1.0],
    "typical_p": SHARES,
}
SEEDS = st.integers(0, 2**32 - 1)


def random_request(chance):
    """Return a request with about half of the settings."""
    options = {name: chance.choice(values).item() for name, values in CHOICES.items() if chance.random() < 0.5}
    return GenerationConfig(do_sample=True, **options)


def random_logits(chance, rows):
    """Return logits (rows, V) in float64, many of them equal or -inf."""
    logits = 4 * chance.standard_normal((rows, chance.integers(5, 31)))
    is_tied = chance.random(logits.shape) < chance.random()
    logits[is_tied] = chance.choice([NEG_INF, -3.0, -1.0, 0.0, 0.25, 2.0], is_tied.sum())
    logits[:, -1] = 0.25  # so that no row is -inf only
    return torch.from_numpy(logits)


@given(seed=SEEDS)
def test_rows_with_their_own_settings_get_the_tokens_of_the_plain_functions(seed):
    chance = np.random.default_rng(seed)
    logits, requests, numbers = random_logits(chance, 4), [random_request(chance) for _ in range(4)], chance.random(4)
    requests[3] = requests[0]  # two rows are filtered together
    expected = sample(filter_logits(logits, requests), numbers.tolist())
    assert sample_rows(logits, requests, numbers.tolist()).tolist() == expected.tolist()


@given(seed=SEEDS)
def test_filtered_weights_are_the_exact_distribution(seed):
    chance = np.random.default_rng(seed)
    logits, request = random_logits(chance, 1), replace(random_request(chance), temperature=1.0)
    expected = filter_logits(logits, [request]).softmax(-1)[0]
    weights = torch.from_numpy(filter_weights(logits.softmax(-1)[0].numpy(), logits[0].numpy(), request))
    torch.testing.assert_close(weights / weights.sum(), expected, atol=1e-12, rtol=1e-9)


@given(
    seed=SEEDS,
    share=st.sampled_from([-1.0, 0.0, 0.3011, 0.7, 0.9999, 2.0]),
    descending=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_the_cutoff_is_that_of_a_sort(seed, share, descending, dtype):
    chance = np.random.default_rng(seed)
    keys = np.exp(chance.uniform(-60, 6) * chance.random(chance.integers(1, 40))).astype(dtype)
    is_tied = chance.random(keys.shape) < chance.random()
    keys[is_tied] = chance.choice([0.0, 0.5, 1.0, 1e-30], is_tied.sum())
    weights = chance.random(len(keys)).astype(dtype) + dtype(0.01)
    order = np.argsort(-keys if descending else keys, kind="stable")
    ends = weights[order].astype(np.float64).cumsum()
    limit = share * ends[-1]
    last = min(int(np.searchsorted(ends, limit)), len(keys) - 1)
    found = find_cutoff(keys, weights, limit, descending=descending)
    assert found.key == keys[order[last]]
    after = order[last + 1 :].tolist()
    assert found.beyond.tolist() == after[: len(found.beyond)]
    assert {token for token in after if keys[token] == found.key} <= set(found.beyond.tolist())


def test_draws_are_exact_on_both_sides_of_every_boundary():
    probs = np.array([0.0, 0.125, 0.25, 0.0, 0.0, 0.0, 0.5, 0.125, 0.0])
    numbers = [0.0, 0.1249, 0.1251, 0.3749, 0.3751, 0.8749, 0.8751, 1.0 - 2**-53]
    for dtype, factor in itertools.product((np.float32, np.float64), (1.0, 8.0)):
        weights = (factor * probs).astype(dtype)
        assert [draw(weights, number) for number in numbers] == [1, 1, 2, 2, 6, 6, 7, 7]


def test_draws_follow_the_weights():
    weights = np.array([0.1, 0.0, 0.2, 0.3, 0.4], np.float32)
    drawn = np.bincount([draw(weights, number) for number in np.random.default_rng(0).random(4_000)], minlength=5)
    np.testing.assert_allclose(drawn / 4_000, weights, atol=0.03)
    assert drawn[1] == 0


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 2}, {"top_k": 9}, {"top_p": 0.5}, {"min_p": 0.1}, {"typical_p": 0.5}]
)
def test_rows_without_a_valid_token_do_not_disturb_the_others(options):
    """Their callers report them; a NaN counts as the highest score."""
    logits = torch.randn(4, 12, generator=torch.Generator().manual_seed(0))
    logits[1, 3], logits[2] = float("nan"), NEG_INF
    request, numbers = GenerationConfig(do_sample=True, **options), [0.4] * 4
    found = sample_rows(logits, [request] * 4, numbers).tolist()
    assert all(0 <= token < 12 for token in found)
    assert [found[0], found[3]] == sample_rows(logits[[0, 3]], [request] * 2, numbers[:2]).tolist()


def test_half_precision_logits_are_sampled_in_single_precision():
    logits, request = torch.randn(2, 12).bfloat16(), GenerationConfig(do_sample=True, top_p=0.7)
    found = sample_rows(logits, [request] * 2, [0.1, 0.8])
    assert found.tolist() == sample_rows(logits.float(), [request] * 2, [0.1, 0.8]).tolist()


@pytest.mark.parametrize("options", [{"top_p": 0.9}, {"typical_p": 0.9}, {"top_k": 4000}, {"top_k": 40}])
def test_a_large_vocabulary_in_single_precision_is_filtered_up_to_rounding(options, monkeypatch):
    """Tokens next to the limit may be kept or dropped. Their probability is below the tolerance."""
    for name, value in USUAL.items():
        monkeypatch.setattr(cpu_sampling, name, value)
    logits = torch.randn(1, 20_000, generator=torch.Generator().manual_seed(2))
    request = GenerationConfig(do_sample=True, **options)
    expected = filter_logits(logits.double(), [request]).softmax(-1)
    weights = filter_weights(logits.softmax(-1)[0].numpy(), logits[0].numpy(), request).astype(np.float64)
    assert np.abs(weights / weights.sum() - expected[0].numpy()).sum() < 1e-3
    numbers = [0.05, 0.35, 0.65, 0.95]
    found = sample_rows(logits.expand(4, -1).contiguous(), [request] * 4, numbers)
    ends = expected[0].cumsum(0)
    for token, number in zip(found.tolist(), numbers, strict=True):
        assert ends[token] - expected[0, token] - 1e-3 < number < ends[token] + 1e-3
