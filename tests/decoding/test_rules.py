"""Logit rules against HF's processors, with different settings in each row."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from decoding.search_cases import END, V, random_case
from glassformer.decoding import GenerationConfig
from glassformer.decoding.rules import History, Rules
from glassformer.decoding.sampling import NEG_INF


def apply_rules(scores, tokens, requests, n_written=4):
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


@given(seed=st.integers(0, 10**6), which=st.lists(st.sampled_from(range(len(PAIRS))), min_size=3, max_size=3))
def test_each_row_is_changed_as_by_hfs_processor(seed, which):
    scores, tokens = random_case(seed)
    found = apply_rules(scores, tokens, [GenerationConfig(**PAIRS[index][0]) for index in which])
    for row, index in enumerate(which):
        expected = PAIRS[index][1](tokens[row : row + 1], scores[row : row + 1].clone())
        torch.testing.assert_close(found[row : row + 1], expected)


def test_padding_does_not_affect_the_rules():
    scores, tokens = random_case(5, rows=1)
    request = GenerationConfig(repetition_penalty=2.0, no_repeat_ngram_size=2, presence_penalty=0.3)
    alone = apply_rules(scores, tokens, [request])
    padded = torch.cat((torch.tensor([[1, 2, 3]]), tokens), 1)
    real = torch.ones_like(padded, dtype=torch.bool)
    real[:, :3] = False
    rules = Rules([request], end=END, vocab_size=V)
    torch.testing.assert_close(rules.apply(scores.clone(), History(padded, real, [4])), alone)


def test_the_presence_penalty_ignores_the_prompt():
    tokens = torch.tensor([[5, 6, 7, 7]])
    found = apply_rules(torch.zeros(1, V), tokens, [GenerationConfig(presence_penalty=0.5)], n_written=2)
    assert found[0, 7] == -0.5
    assert found[0, 5] == found[0, 6] == 0.0


def test_the_frequency_penalty_counts_each_time_that_a_token_was_written():
    tokens = torch.tensor([[5, 6, 7, 7, 6]])
    found = apply_rules(torch.zeros(1, V), tokens, [GenerationConfig(frequency_penalty=0.5)], n_written=3)
    assert found[0, 7] == -1.0
    assert found[0, 6] == -0.5
    assert found[0, 5] == 0.0


def test_a_prefix_allows_only_its_next_token():
    scores, tokens = random_case(6, rows=1)
    request = GenerationConfig(prefix=(7, 8, 9))
    for n_written, wanted in ((0, 7), (2, 9)):
        found = apply_rules(scores, tokens, [request], n_written=n_written)
        assert found[0, wanted] == 0  # as HF's forced_bos_token_id
        assert (found[0] == NEG_INF).sum() == V - 1
    broken = torch.full_like(scores, torch.nan)
    assert apply_rules(broken, tokens, [request], n_written=0)[0, 7].isnan()
    assert torch.equal(apply_rules(scores, tokens, [request], n_written=3), scores)


def test_the_last_token_may_be_forced():
    scores, tokens = random_case(7, rows=2)
    requests = [GenerationConfig(forced_eos_token_id=0, max_new_tokens=4), GenerationConfig(max_new_tokens=4)]
    found = apply_rules(scores, tokens, requests, n_written=3)
    assert found[0, 0] == 0  # as HF's forced_eos_token_id
    assert (found[0] == NEG_INF).sum() == V - 1
    assert torch.equal(found[1], scores[1])
    assert torch.equal(apply_rules(scores, tokens, requests, n_written=2), scores)
    both = GenerationConfig(prefix=(7,), forced_eos_token_id=5, max_new_tokens=1)
    assert apply_rules(scores[:1], tokens[:1], [both], n_written=0)[0, 5] == 0


def test_rows_below_their_minimum_length_cannot_end():
    requests = [GenerationConfig(min_new_tokens=3, eos_token_id=(5,)), GenerationConfig(min_new_tokens=1)]
    for end, wanted in ((2, {(0, 2), (0, 5)}), (-1, {(0, 5)})):
        rules = Rules(requests, end=end, vocab_size=V)
        found = rules.apply(torch.zeros(2, V), History(torch.empty(2, 0).long(), torch.empty(2, 0).bool(), [2, 1]))
        assert {*map(tuple, (found == NEG_INF).nonzero().tolist())} == wanted
    rules = Rules(requests[:1] * 2, end=2, vocab_size=V)
    found = rules.apply(torch.zeros(2, V), History(torch.empty(2, 0).long(), torch.empty(2, 0).bool(), [0, 0]))
    assert {*map(tuple, (found == NEG_INF).nonzero().tolist())} == {(0, 2), (0, 5), (1, 2), (1, 5)}


def test_requests_with_the_same_rules_share_one_bias():
    config = GenerationConfig(suppress_tokens=(2, 7), min_new_tokens=5)
    other = GenerationConfig(suppress_tokens=(7, 2), min_new_tokens=5, max_new_tokens=9, do_sample=True, seed=3)
    rules = Rules([config, other], end=END, vocab_size=V)
    assert rules.are_a_bias
    assert [token for token in range(V) if rules.bias_after(4)[token] == NEG_INF] == sorted({END, 2, 7})
    assert [token for token in range(V) if rules.bias_after(5)[token] == NEG_INF] == [2, 7]
    assert not Rules([config, GenerationConfig(suppress_tokens=(2, 7))], end=END, vocab_size=V).are_a_bias
