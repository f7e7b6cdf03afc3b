"""The encoder-only model: every token attends to all real tokens, and a new head keeps the rest."""

import torch

from glassformer.models import preset
from oracle import random_model

BERT = preset("tiny-bert-base")


def test_every_token_depends_on_all_real_tokens():
    model = random_model(BERT)
    tokens = torch.randint(1, 40, (1, 5))
    changed = tokens.clone()
    changed[0, -1] = (tokens[0, -1] + 1) % 40
    mask = torch.tensor([[1, 1, 1, 1, 0]])
    with torch.no_grad():
        differs = (model.encode(tokens) != model.encode(changed)).any(-1)
        assert differs.all()
        assert torch.equal(model.encode(tokens, mask)[:, :4], model.encode(changed, mask)[:, :4])


def test_without_a_head_the_output_is_the_hidden_states():
    model = random_model(BERT.with_head("none"))
    tokens = torch.randint(0, 40, (2, 5))
    with torch.no_grad():
        assert torch.equal(model(tokens), model.encode(tokens))


def test_under_a_new_head_all_other_parameters_are_copied():
    model = random_model(BERT, dtype=torch.float32)
    other = model.copy_with_head(BERT.with_head("token_class", n_labels=3)).eval()
    tokens = torch.randint(0, 40, (2, 5))
    with torch.no_grad():
        assert torch.equal(other.encode(tokens), model.encode(tokens))
        assert other(tokens).shape == (2, 5, 3)
        next(other.encoder.parameters()).zero_()
    assert next(model.encoder.parameters()).any(), "the copy shares no memory with the original"
