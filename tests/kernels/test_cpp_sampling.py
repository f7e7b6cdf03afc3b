"""The C++ sampling kernel draws from the exact distribution, and models use it."""

from functools import partial

import numpy as np
import pytest
import torch

from glassformer.decoding import Engine, GenerationConfig, generate
from glassformer.decoding.cpu_sampling import sample_rows
from glassformer.decoding.sampling import NEG_INF, STAGES, filter_logits, sample
from glassformer.kernels.cpp_kernels import CppKernels
from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.kernels.kernel_registry import cpp_kernels
from glassformer.kernels.kernel_set import KernelSet, SamplingSettings
from glassformer.runtime.choose_runner import use_compiled_kernels
from recording import DECODERS, END, make

# Sums of a few equal probabilities do not come close to these, so that rounding cannot change what is kept.
SHARES = [0.0, 0.1371, 0.5003, 0.9071, 0.99990001]
CHOICES = {
    "temperature": [0.3, 0.8, 1.7],
    "top_k": [1, 2, 5, 17, 400],
    "top_p": SHARES,
    "min_p": [0.0371, 0.6, 1.0],
    "typical_p": SHARES,
}


@pytest.fixture(scope="module", autouse=True)
def kernels():
    try:
        return cpp_kernels()
    except KernelBuildError as error:
        pytest.skip(str(error))


def settings_of(request):
    return SamplingSettings(*(getattr(request, name) for name in STAGES))


def random_request(chance):
    """Return a request with about half of the settings."""
    options = {name: chance.choice(values).item() for name, values in CHOICES.items() if chance.random() < 0.5}
    return GenerationConfig(do_sample=True, **options)


def random_logits(chance):
    """Return logits (V,), many of them equal or -inf."""
    logits = 3 * chance.standard_normal(chance.integers(1, 60) if chance.random() < 0.8 else 1300)
    is_tied = chance.random(logits.shape) < chance.random()
    logits[is_tied] = chance.choice([NEG_INF, -3.0, -1.0, 0.0, 0.25, 2.0], is_tied.sum())
    logits[-1] = 0.25  # so that not all are -inf
    return torch.from_numpy(logits).float()


def assert_exact(kernels, logits, request):
    """Assert that the kernel keeps the tokens of the definition in float64, with their probabilities."""
    expected = filter_logits(logits.double()[None], [request]).softmax(-1)[0]
    weights = kernels.sampling_weights(logits, settings_of(request)).double()
    assert torch.equal(weights > 1e-30, expected > 1e-30 * expected.max()), request
    torch.testing.assert_close(weights / weights.sum(), expected, atol=1e-7, rtol=2e-5)


def test_the_kept_tokens_and_their_probabilities_are_exact(kernels):
    for seed in range(120):
        chance = np.random.default_rng(seed)
        assert_exact(kernels, random_logits(chance), random_request(chance))


@pytest.mark.parametrize("spread", [0.5, 3.0])
@pytest.mark.parametrize("digits", ["float32", "bfloat16"])
def test_the_kept_tokens_of_a_large_vocabulary_are_exact(kernels, spread, digits):
    """Logits that were bfloat16 have many equals. The limits are in the middle between two possible sums.

    Sums of float32 weights are exact to about 1e-7, so the limit must not be closer than that to a sum.
    """
    logits = spread * torch.randn(20_000, generator=torch.Generator().manual_seed(1))
    logits = logits.to(getattr(torch, digits)).float()
    probs = logits.double().softmax(-1)
    distance = (-probs.log() + (probs * probs.log()).sum()).abs()
    for name, order in (("top_p", (-probs).argsort(stable=True)), ("typical_p", distance.argsort(stable=True))):
        sums = probs[order].cumsum(0)
        for rank in (0, 30, 700, 4_000, 19_000):
            assert_exact(kernels, logits, GenerationConfig(do_sample=True, top_k=rank + 1))
            if probs[order[rank + 1]] > 1e-6:
                limit = float(sums[rank : rank + 2].mean())
                assert_exact(kernels, logits, GenerationConfig(do_sample=True, **{name: limit}))


def test_each_tokens_share_of_a_grid_of_numbers_is_its_probability(kernels):
    n = 4_000
    numbers = ((np.arange(n) + 0.5) / n).tolist()
    for seed in range(6):
        chance = np.random.default_rng(seed)
        logits, request = random_logits(chance)[-60:], random_request(chance)
        expected = filter_logits(logits.double()[None], [request]).softmax(-1)[0]
        drawn = kernels.sample_tokens(logits.expand(n, -1), [settings_of(request)] * n, numbers)
        assert (drawn.diff() >= 0).all()  # in the order of the vocabulary
        counts = drawn.bincount(minlength=len(logits))
        assert (counts - n * expected).abs().max() <= 1.01
        assert counts[expected == 0].sum() == 0


def test_the_least_and_the_greatest_number_give_the_first_and_the_last_kept_token(kernels):
    for seed in range(60):
        chance = np.random.default_rng(seed)
        logits, request = random_logits(chance), random_request(chance)
        weights = kernels.sampling_weights(logits, settings_of(request)).double()
        numbers = [0.0, 1 - 2**-53]
        found = kernels.sample_tokens(logits.expand(2, -1), [settings_of(request)] * 2, numbers).tolist()
        assert found[0] == int(weights.nonzero()[0])
        assert weights[found[1]] > 0
        assert weights[found[1] + 1 :].sum() < 1e-6 * weights.sum()  # up to rounding


def test_rows_with_their_own_settings_get_the_tokens_of_the_plain_functions(kernels):
    chance = np.random.default_rng(3)
    logits = torch.from_numpy(3 * chance.standard_normal((200, 1100))).float()
    requests, numbers = [random_request(chance) for _ in logits], chance.random(len(logits)).tolist()
    found = sample_rows(logits, requests, numbers, kernels)
    assert found.tolist() == sample(filter_logits(logits.double(), requests), numbers).tolist()
    assert found.tolist() == sample_rows(logits, requests, numbers).tolist()
    assert sample_rows(logits.half(), requests, numbers, kernels).shape == (200,)


@pytest.mark.parametrize("name", CHOICES)
def test_rows_without_a_valid_token_do_not_disturb_the_others(kernels, name):
    logits = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0))
    logits[1, 3], logits[2], logits[4, 998] = float("nan"), NEG_INF, float("inf")
    request, numbers = GenerationConfig(do_sample=True, **{name: CHOICES[name][1]}), [0.4] * 5
    found = sample_rows(logits, [request] * 5, numbers, kernels).tolist()
    assert all(0 <= token < 1000 for token in found)
    assert [found[0], found[3]] == sample_rows(logits[[0, 3]], [request] * 2, numbers[:2]).tolist()


def test_extreme_logits_and_temperatures(kernels):
    logits = torch.tensor([[3e38, -3e38, 0.0, 3e38], [1e-40, 2e-40, 0.0, -1e-40], [5.0, 5.0 - 2e-6, -200.0, 5.0]])
    for options in ({"temperature": 1e-30}, {"top_p": 0.6}, {"top_k": 2}, {"typical_p": 0.4}, {"temperature": 1e30}):
        request = GenerationConfig(do_sample=True, **options)
        found = sample_rows(logits, [request] * 3, [0.999] * 3, kernels)
        assert ((found >= 0) & (found < 4)).all()
    many = torch.cat([torch.full((1, 3000), 1e-38), torch.zeros(1, 3000)], 1)  # their difference is a tiny range
    assert int(sample_rows(many, [GenerationConfig(do_sample=True, top_k=3000)], [0.9999], kernels)) < 3000


def test_wrong_arguments_raise(kernels):
    with pytest.raises(RuntimeError, match="1 rows"):
        kernels.sample_tokens(torch.zeros(1, 4), [SamplingSettings()] * 2, [0.5])
    with pytest.raises(RuntimeError, match="one row"):
        kernels.sampling_weights(torch.zeros(2, 4), SamplingSettings())
    assert not kernels.can_sample(torch.zeros(1, 4).double())
    with pytest.raises(NotImplementedError, match="torch kernels do not sample"):
        KernelSet().sample_tokens(torch.zeros(1, 4), [SamplingSettings()], [0.5])


def test_models_with_the_kernels_draw_the_tokens_of_plain_torch(monkeypatch):
    model = make(DECODERS["rotary, grouped"]).float()
    config = GenerationConfig(do_sample=True, temperature=0.8, top_p=0.9, max_new_tokens=20, num_return_sequences=3)
    write = partial(generate, model, [[3, 4, 5], [6]], config, end=END)
    plain = [[one.tokens for one in texts] for texts in write()]
    use_compiled_kernels(model)
    calls = []
    original = CppKernels.sample_tokens
    monkeypatch.setattr(CppKernels, "sample_tokens", lambda *given: calls.append(1) or original(*given))
    assert [[one.tokens for one in texts] for texts in write()] == plain
    assert calls
    calls.clear()
    engine = Engine(model, end=END)
    requests = [engine.submit(tokens, config) for tokens in ([3, 4, 5], [6])]
    engine.run()
    assert [[one.tokens for one in request.texts] for request in requests] == plain
    assert calls
