"""Greedy and beam search of the reference, compared with an exhaustive search."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from glassformer import reference
from glassformer.reference.attention import log_softmax

END = 0


def random_language(seed, vocab_size=3):
    """Return a model with random log-probabilities that depend on the whole prefix."""
    rng = np.random.default_rng(seed)
    known = {}

    def next_log_probs(prefixes):
        rows = [known.setdefault(tuple(p), rng.standard_normal(vocab_size) * 1.5) for p in prefixes.tolist()]
        return log_softmax(np.array(rows))

    return next_log_probs


def exhaustive(next_log_probs, max_new, length_penalty, vocab_size=3):
    """Return every sentence that ends with END or at the limit, with its score, best first."""
    found = []
    for length in range(1, max_new + 1):
        for tokens in itertools.product(range(vocab_size), repeat=length):
            ends_well = END not in tokens[:-1] and (tokens[-1] == END or length == max_new)
            if ends_well:
                prefixes = [[9, *tokens[:i]] for i in range(length)]
                total = sum(next_log_probs(np.array([p]))[0, t] for p, t in zip(prefixes, tokens, strict=True))
                found.append((total / length**length_penalty, list(tokens)))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_beam_as_wide_as_the_tree_finds_the_best_sentence(seed, length_penalty):
    language = random_language(seed)
    best = exhaustive(language, 4, length_penalty)
    found = reference.beam_search(language, [9], END, 4, width=40, length_penalty=length_penalty)
    assert found[0].tokens == best[0][1]
    assert found[0].score == pytest.approx(best[0][0])
    # The beam is as wide as the tree, so the whole ranking agrees.
    assert [h.tokens for h in found] == [tokens for _, tokens in best[: len(found)]]


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_of_one_is_greedy(seed):
    language = random_language(seed)
    assert (
        reference.beam_search(language, [9], END, 6, width=1, length_penalty=0.0)[0].tokens
        == reference.greedy(language, [9], END, 6).tokens
    )


@pytest.mark.parametrize("seed", range(20))
def test_early_stopping_does_not_change_the_result(seed, monkeypatch):
    language = random_language(seed)
    stopped = reference.beam_search(language, [9], END, 7, width=3, length_penalty=0.8)
    monkeypatch.setattr("glassformer.reference.decoding._is_decided", lambda *_: False)
    assert reference.beam_search(language, [9], END, 7, width=3, length_penalty=0.8) == stopped


def test_models_give_the_log_probabilities_after_each_prefix():
    config = reference.Config(
        vocab_size=5, n_encoder_layers=1, n_decoder_layers=1, d_model=8, n_heads=2, d_ff=6, head="language_model"
    )
    decoder_config = replace(config, n_encoder_layers=0)
    rng = np.random.default_rng(0)
    both, decoder = (reference.build_model(c, reference.initial_parameters(c, rng)) for c in (config, decoder_config))
    prefixes, source = np.array([[1, 2], [3, 4]]), np.array([2, 3, 4])
    written = reference.continues(decoder)(prefixes)
    np.testing.assert_allclose(np.exp(written).sum(-1), 1)
    np.testing.assert_allclose(written, log_softmax(decoder.forward(prefixes)[:, -1]))
    translated = reference.translates(both, source)(prefixes)
    np.testing.assert_allclose(translated[1], log_softmax(both.forward(source[None], prefixes[1:])[0, -1]))
