"""Diverse beam search: a group pays for tokens that earlier groups chose in the same step."""

import pytest
import torch

from glassformer.decoding.diverse_beam import rank_groups
from glassformer.decoding.generation_config import GenerationConfig

LOGS = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()


def rank(alive, values, best, by_rank):
    """Rank the continuations of beams with one hypothesis each."""
    return alive + values[:, 0], torch.zeros_like(best[:, 0]), best[:, 0]


def ranked(penalty, end=3):
    """The continuations of one sentence with two groups of one hypothesis, whose next tokens are equally likely."""
    config = GenerationConfig(num_beams=2, num_beam_groups=2, diversity_penalty=penalty)
    alive, by_rank = torch.zeros(2, 1), torch.zeros(2, 1, dtype=torch.long)
    return rank_groups(LOGS.expand(2, -1), alive, by_rank, config, end, rank)


def test_the_second_group_avoids_the_token_of_the_first():
    found = ranked(penalty=1.0)
    assert found.tokens.tolist() == [[0, 1], [1, 0]]
    torch.testing.assert_close(found.totals, LOGS[found.tokens])
    torch.testing.assert_close(found.penalized[1], LOGS[[1, 0]] - torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize(("penalty", "end"), [(0.1, 3), (5.0, 0)])
def test_a_small_penalty_and_an_ended_hypothesis_leave_the_best_token(penalty, end):
    first, second = ranked(penalty, end).tokens.tolist()
    assert first[0] == 0
    assert second[0] == 0
