"""Rules and filters against HF's own processors, row by row with settings that differ."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from glassformer.decoding import GenerationConfig
from glassformer.decoding.rules import NEG_INF, History, Rules
from glassformer.decoding.sampling import filter_logits, sample

V, END = 12, 0


def random_case(seed, rows=3, length=9):
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(rows, V, generator=generator)
    tokens = torch.randint(1, 5, (rows, length), generator=generator)
    return scores, tokens


def ruled(scores, tokens, requests, n_written=4):
    history = History(tokens, torch.ones_like(tokens, dtype=torch.bool), [n_written] * len(tokens))
    return Rules(requests, end=END, vocab_size=V).apply(scores.clone(), history)


PAIRS = [
    ({"repetition_penalty": 1.7}, hf.RepetitionPenaltyLogitsProcessor(1.7)),
    ({"repetition_penalty": 0.6}, hf.RepetitionPenaltyLogitsProcessor(0.6)),
    ({"no_repeat_ngram_size": 1}, hf.NoRepeatNGramLogitsProcessor(1)),
    ({"no_repeat_ngram_size": 2}, hf.NoRepeatNGramLogitsProcessor(2)),
    ({"no_repeat_ngram_size": 3}, hf.NoRepeatNGramLogitsProcessor(3)),
    ({"bad_words_ids": ((3,), (1, 2), (4, 4, 1))}, hf.NoBadWordsLogitsProcessor([[3], [1, 2], [4, 4, 1]], END)),
    ({"suppress_tokens": (2, 7)}, hf.SuppressTokensLogitsProcessor([2, 7])),
    ({"min_new_tokens": 5}, hf.MinNewTokensLengthLogitsProcessor(5, 5, torch.tensor(END))),
    ({"min_new_tokens": 4}, hf.MinNewTokensLengthLogitsProcessor(5, 4, torch.tensor(END))),
    ({"logit_bias": {3: 1.5, 7: -2.0}}, hf.SequenceBiasLogitsProcessor([[[3], 1.5], [[7], -2.0]])),
]
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


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), which=st.lists(st.sampled_from(range(len(PAIRS))), min_size=3, max_size=3))
def test_each_row_follows_its_own_rules_as_hf_would(seed, which):
    scores, tokens = random_case(seed)
    found = ruled(scores, tokens, [GenerationConfig(**PAIRS[index][0]) for index in which])
    for row, index in enumerate(which):
        expected = PAIRS[index][1](tokens[row : row + 1], scores[row : row + 1].clone())
        torch.testing.assert_close(found[row : row + 1], expected)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), which=st.lists(st.sampled_from(range(len(WARPERS))), min_size=3, max_size=3))
def test_each_row_draws_from_what_hf_would(seed, which):
    scores, tokens = random_case(seed)
    requests = [GenerationConfig(do_sample=True, **WARPERS[index][0]) for index in which]
    found = filter_logits(scores, requests)
    for row, index in enumerate(which):
        expected = WARPERS[index][1](tokens[row : row + 1], scores[row : row + 1].clone())
        torch.testing.assert_close(found[row : row + 1], expected)


def test_all_filters_together_are_hfs_in_hfs_order():
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


def test_padding_counts_as_nothing():
    scores, tokens = random_case(5, rows=1)
    request = GenerationConfig(repetition_penalty=2.0, no_repeat_ngram_size=2, presence_penalty=0.3)
    alone = ruled(scores, tokens, [request])
    padded = torch.cat((torch.tensor([[1, 2, 3]]), tokens), 1)
    real = torch.ones_like(padded, dtype=torch.bool)
    real[:, :3] = False
    rules = Rules([request], end=END, vocab_size=V)
    torch.testing.assert_close(rules.apply(scores.clone(), History(padded, real, [4])), alone)


def test_presence_counts_only_what_was_written():
    tokens = torch.tensor([[5, 6, 7, 7]])
    found = ruled(torch.zeros(1, V), tokens, [GenerationConfig(presence_penalty=0.5)], n_written=2)
    assert found[0, 7] == -0.5
    assert found[0, 5] == found[0, 6] == 0.0


def test_a_prefix_leaves_one_choice_until_it_is_written():
    scores, tokens = random_case(6, rows=1)
    request = GenerationConfig(prefix=(7, 8, 9))
    for n_written, wanted in ((0, 7), (2, 9)):
        found = ruled(scores, tokens, [request], n_written=n_written)
        assert found[0, wanted] == scores[0, wanted]
        assert (found[0] == NEG_INF).sum() == V - 1
    assert torch.equal(ruled(scores, tokens, [request], n_written=3), scores)


def test_draws_follow_the_chances():
    scores = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0]).log().repeat(20_000, 1)
    numbers = torch.rand(20_000, generator=torch.Generator().manual_seed(0)).tolist()
    drawn = sample(scores, numbers).bincount(minlength=5) / 20_000
    torch.testing.assert_close(drawn, torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0]), atol=0.015, rtol=0.0)
    assert drawn[4] == 0
    assert sample(scores[:2], [0.0, 1.0 - 2**-53]).tolist() == [3, 0]


@pytest.mark.parametrize("number", [0.0, 0.5, 1.0 - 2**-53])
def test_what_is_forbidden_is_never_drawn(number):
    scores = torch.tensor([[NEG_INF, 1e-4, NEG_INF], [NEG_INF, NEG_INF, -50.0]])
    assert sample(scores, [number, number]).tolist() == [1, 2]


def test_ends_are_forbidden_to_the_rows_that_are_too_short():
    requests = [GenerationConfig(min_new_tokens=3, eos_token_id=(5,)), GenerationConfig(min_new_tokens=1)]
    for end, wanted in ((2, {(0, 2), (0, 5)}), (-1, {(0, 5)})):
        rules = Rules(requests, end=end, vocab_size=V)
        found = rules.apply(torch.zeros(2, V), History(torch.empty(2, 0).long(), torch.empty(2, 0).bool(), [2, 1]))
        assert {*map(tuple, (found == NEG_INF).nonzero().tolist())} == wanted
    rules = Rules(requests[:1] * 2, end=2, vocab_size=V)
    found = rules.apply(torch.zeros(2, V), History(torch.empty(2, 0).long(), torch.empty(2, 0).bool(), [0, 0]))
    assert {*map(tuple, (found == NEG_INF).nonzero().tolist())} == {(0, 2), (0, 5), (1, 2), (1, 5)}
