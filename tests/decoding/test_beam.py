"""Beam search against the NumPy oracle and against exhaustive search, and its rule for ties."""

import doctest
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.search_cases import (
    BEGIN,
    END,
    TRANSLATORS,
    WRITERS,
    next_log_probs,
    prompt_options,
    random_inputs,
    without_end,
)
from glassformer import reference
from glassformer.decoding import GenerationConfig, beam, generate, score_pairs
from glassformer.decoding.beam import BeamSearch
from glassformer.decoding.generate import GeneratedText
from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.kernels.kernel_registry import cpp_kernels
from glassformer.kernels.kernel_set import KernelSet
from glassformer.kernels.stable_topk import stable_topk
from glassformer.models import preset
from glassformer.nn import capture_attention
from oracle import random_model
from recording import assert_same


def test_the_example_in_the_docstring_is_correct():
    found = doctest.testmod(beam, extraglobs={"math": math})
    assert found.attempted >= 7
    assert found.failed == 0


@pytest.mark.parametrize("name", [*TRANSLATORS[:3], *WRITERS])
@pytest.mark.parametrize(("width", "length_penalty"), [(2, 0.0), (3, 1.0), (4, 0.6), (5, -0.5)])
def test_batched_beams_equal_the_oracles(name, width, length_penalty):
    model = random_model(preset(name, vocab_size=9))
    inputs = random_inputs(4, vocab_size=9)
    config = GenerationConfig(
        max_new_tokens=7, num_beams=width, num_return_sequences=width, length_penalty=length_penalty
    )
    found = generate(model, inputs, config, end=END, **prompt_options(model))
    for tokens, hypotheses in zip(inputs, found, strict=True):
        options = {"width": width, "length_penalty": length_penalty}
        expected = reference.beam_search(*next_log_probs(model, tokens), END, 7, **options)
        expected = [GeneratedText(without_end(h.tokens), score=h.score) for h in expected]
        assert_same([expected], [hypotheses], tolerance=1e-8)


@pytest.mark.parametrize("name", ["tiny-marian", "tiny-llama"])
def test_a_beam_that_keeps_everything_equals_exhaustive_search(name):
    """Compare with all texts of up to 4 tokens over a vocabulary of 4: 1 + 3 + 9 + 27 that end and 81 that are cut."""
    model = random_model(preset(name, vocab_size=4))
    tokens = [2, 3, 2]
    next_logs, start = next_log_probs(model, tokens)
    sentences, alive = [], [([], 0.0)]
    for length in range(1, 5):
        logs = next_logs(torch.tensor([start + text for text, _ in alive]).numpy())
        grown = [
            ([*text, token], total + row[token])
            for (text, total), row in zip(alive, logs, strict=True)
            for token in range(4)
        ]
        ended = [(text, total) for text, total in grown if text[-1] == END or length == 4]
        sentences += [(total / len(text), text) for text, total in ended]
        alive = [(text, total) for text, total in grown if text[-1] != END]
    best = sorted(sentences, reverse=True)[:5]
    config = GenerationConfig(max_new_tokens=4, num_beams=81, num_return_sequences=5)
    (found,) = generate(model, [tokens], config, end=END, **prompt_options(model))
    assert_same([[GeneratedText(without_end(text), score=score) for score, text in best]], [found], tolerance=1e-8)


def test_the_diversity_penalty_changes_the_choice_but_not_the_score():
    config = GenerationConfig(max_new_tokens=3, num_beams=2, num_beam_groups=2, diversity_penalty=2.5)
    search = BeamSearch(None, torch.tensor([[0]]), None, config, end=4, limits=torch.tensor([3]), capacity=3)
    logs = torch.tensor([[0.05, 0.80, 0.12, 0.02, 0.01]]).log()
    step = search.advance(logs.expand(2, -1), 0)
    assert step.tokens.tolist() == [[1, 2]]  # the penalty of 2.5 makes the second group take another token
    torch.testing.assert_close(step.scores, logs[:, [1, 2]])  # but the scores are without it


def test_a_group_breaks_ties_by_the_lower_token():
    config = GenerationConfig(max_new_tokens=3, num_beams=4, num_beam_groups=2, diversity_penalty=0.5)
    search = BeamSearch(None, torch.tensor([[0]]), None, config, end=6, limits=torch.tensor([3]), capacity=3)
    step = search.advance(torch.zeros(4, 7), 0)
    assert step.tokens.tolist() == [[0, 1, 2, 3]], "the penalty makes the second group avoid tokens 0 and 1"


def test_a_large_diversity_penalty_gives_every_group_another_first_token():
    torch.manual_seed(1)
    model = random_model(preset("tiny-marian"))
    config = GenerationConfig(
        max_new_tokens=6, num_beams=3, num_beam_groups=3, diversity_penalty=100.0, num_return_sequences=3
    )
    (found,) = generate(model, [[5, 6, 7]], config, begin=BEGIN, end=END)
    firsts = [(written.tokens or [END])[0] for written in found]
    assert len(set(firsts)) == 3


TIED_VOCABULARY = 7


def tied_language(seed):
    """Return a function that gives log-probabilities of three exact values only, so that totals are often equal."""

    def next_log_probs(prefixes):
        rows = [random.Random(f"{seed} {prefix}") for prefix in prefixes.tolist()]
        return np.array([[-rng.randint(1, 3) / 2 for _ in range(TIED_VOCABULARY)] for rng in rows])

    return next_log_probs


@pytest.mark.parametrize("make_kernels", [KernelSet, cpp_kernels])
@given(
    seed=st.integers(0, 2**32),
    width=st.integers(1, 5),
    max_new=st.integers(1, 6),
    length_penalty=st.sampled_from([0.0, 1.0]),
)
def test_ties_are_broken_as_in_the_oracle(seed, width, max_new, length_penalty, make_kernels):
    """Of hypotheses with equal totals the search keeps the ones that the oracle keeps."""
    language = tied_language(seed)
    config = GenerationConfig(
        max_new_tokens=max_new, num_beams=width, num_return_sequences=width, length_penalty=length_penalty
    )
    search = BeamSearch(None, torch.tensor([[0]]), None, config, END, limits=torch.tensor([max_new]), capacity=max_new)
    try:
        search.kernels = make_kernels()
    except KernelBuildError as error:
        pytest.skip(str(error))
    for length in range(max_new):
        logs = torch.tensor(language(search.tokens[0, :, :length].numpy()), dtype=torch.float32)
        search._extend_by(*stable_topk(logs, min(2 * width, TIED_VOCABULARY)))
        if search.are_decided().all():
            break
    expected = reference.beam_search(language, [], END, max_new, width=width, length_penalty=length_penalty)
    (found,) = search.results(1)
    assert [h.tokens for h in found] == [without_end(h.tokens) for h in expected]
    assert [h.score for h in found] == pytest.approx([h.score for h in expected], rel=1e-6)


def test_the_coverage_penalty_lowers_scores_by_the_missing_attention():
    torch.manual_seed(2)
    model = random_model(preset("tiny-marian"))
    sources = [[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15]]  # more source tokens than steps, so some get little attention
    config = GenerationConfig(max_new_tokens=3, num_beams=4, num_return_sequences=3, coverage_penalty=0.3)
    for source, found in zip(sources, generate(model, sources, config, begin=BEGIN, end=END), strict=True):
        for written in found:
            # Recompute the log-probability and the attention in one forward pass over the whole text.
            scores = score_pairs(model, [source], [written.tokens], begin=BEGIN, end=END)[0]
            length = len(written.tokens) if len(written.tokens) == 3 else len(written.tokens) + 1
            with capture_attention(model, layers=[-1], kinds=["cross_attn"]) as captured:
                model(torch.tensor([source]), torch.tensor([[BEGIN, *written.tokens][:length]]))
            looked = next(iter(captured.values()))[0].mean(0).sum(0)  # (S,)
            penalty = looked.clamp_max(1.0).log().sum().item()
            assert penalty < -1e-3
            assert written.score == pytest.approx(sum(scores[:length]) / length + 0.3 * penalty, abs=1e-5)
