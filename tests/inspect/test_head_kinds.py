"""Heads with a known pattern get its name and score; rollout follows the paper's formula."""

import pytest
import torch

from glassformer.inspect.head_kinds import decoder_rollout, head_kind, pooling_factor, rollout

N = 6
IDS = [5, 6, 7, 5, 8, 9]


def shifted(by):
    return torch.eye(N).roll(by, 1)


@pytest.mark.parametrize(
    ("weights", "kind"),
    [
        (torch.eye(N), "diagonal"),
        (torch.cat((torch.eye(N)[:1], torch.eye(N)[:-1])), "previous token"),
        (torch.cat((torch.eye(N)[1:], torch.eye(N)[-1:])), "next token"),
        (torch.eye(N)[[0] * N], "first token"),
        (torch.full((N, N), 1 / N), "diffuse"),
        (0.3 * torch.eye(N) + 0.7 * torch.eye(N)[[4, 4, 5, 5, 1, 1]], "mixed"),
    ],
)
def test_a_clear_pattern_is_named(weights, kind):
    found = head_kind(weights, is_causal=False, query_ids=IDS, key_ids=IDS)
    assert found["kind"] == kind
    if kind not in ("mixed",):
        assert found["score"] == pytest.approx(1.0)


def test_a_head_that_looks_at_the_same_word_is_named():
    ids = [5, 6, 5, 6, 5, 6]
    weights = torch.eye(N).roll(2, 1)
    assert head_kind(weights, is_causal=False, query_ids=ids, key_ids=ids) == {"kind": "same word", "score": 1.0}


def test_causal_rows_are_compared_with_the_keys_that_they_may_see():
    uniform = torch.ones(N, N).tril() / torch.arange(1, N + 1)[:, None]
    assert head_kind(uniform, is_causal=True, query_ids=IDS, key_ids=IDS) == {"kind": "diffuse", "score": 1.0}


def test_cross_attention_along_the_sentence_is_diagonal():
    weights = torch.eye(2 * N)[::2]
    found = head_kind(weights, is_causal=False, query_ids=IDS, key_ids=range(20, 20 + 2 * N), is_cross=True)
    assert found == {"kind": "diagonal", "score": 1.0}


def test_one_token_alone_has_no_kind():
    assert head_kind(torch.ones(1, 1), is_causal=True, query_ids=[5], key_ids=[5]) == {"kind": "mixed", "score": 0.0}


def test_rollout_multiplies_the_layers():
    layers = [torch.rand(2, 4, 4).softmax(-1) for _ in range(3)]
    expected = torch.eye(4, dtype=torch.float64)
    for layer in layers:
        expected = (0.5 * layer.double().mean(0) + 0.5 * torch.eye(4)) @ expected
    torch.testing.assert_close(rollout(layers), expected)


def test_shares_of_source_and_target_add_up_to_one():
    layers = [(torch.rand(2, 4, 4).softmax(-1), torch.rand(2, 4, 3).softmax(-1)) for _ in range(3)]
    target, source = decoder_rollout(layers, rollout([torch.rand(2, 3, 3).softmax(-1)]))
    torch.testing.assert_close(target.sum(1) + source.sum(1), torch.ones(4, dtype=torch.float64))
    assert (source > 0).all()


def test_pooling_keeps_maps_within_the_limit():
    assert pooling_factor(256, 256) == 1
    assert pooling_factor(1000, 256) == 4
