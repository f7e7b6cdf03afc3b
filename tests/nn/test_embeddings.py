"""Embeddings: the sum of token, type and position vectors, and ids outside the tables are refused."""

import pytest
import torch
from torch import nn

from glassformer.nn import Embeddings, LearnedPositions

TOKENS = torch.tensor([[3, 1], [0, 4]])
POSITIONS = torch.arange(2)[None]


def test_scaled_tokens_types_and_positions_are_added():
    embeddings = Embeddings(5, 4, positions=LearnedPositions(6, 4), n_token_types=2, scale=True)
    types = torch.tensor([[0, 1], [1, 0]])
    expected = 2 * embeddings.tokens.weight[TOKENS] + embeddings.token_types.weight[types]
    expected = expected + embeddings.positions.weight[:2]
    torch.testing.assert_close(embeddings(TOKENS, POSITIONS, types), expected)


def test_tokens_have_type_0_unless_types_are_given():
    embeddings = Embeddings(5, 4, n_token_types=2)
    zeros = torch.zeros_like(TOKENS)
    torch.testing.assert_close(embeddings(TOKENS, POSITIONS), embeddings(TOKENS, POSITIONS, zeros))
    assert not torch.equal(embeddings(TOKENS, POSITIONS), embeddings(TOKENS, POSITIONS, zeros + 1))


def test_the_norm_comes_before_the_projection_to_the_width_of_the_model():
    norm, projection = nn.LayerNorm(4), nn.Linear(4, 6)
    embeddings = Embeddings(5, 4, norm=norm, projection=projection)
    torch.testing.assert_close(embeddings(TOKENS, POSITIONS), projection(norm(embeddings.tokens.weight[TOKENS])))


def test_ids_outside_the_tables_are_refused():
    embeddings = Embeddings(5, 4, n_token_types=2)
    embeddings.check("tokens", TOKENS, TOKENS % 2)
    with pytest.raises(ValueError, match="source holds the id 5: expected ids from 0 to 4"):
        embeddings.check("source", TOKENS + 1)
    with pytest.raises(ValueError, match="token_types holds the id 4: expected ids from 0 to 1"):
        embeddings.check("tokens", TOKENS, TOKENS)
    with pytest.raises(ValueError, match="token_types were given to a model without them"):
        Embeddings(5, 4).check("tokens", TOKENS, TOKENS)
