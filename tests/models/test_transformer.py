"""The base class of the models: the parameter count, the kind, and the check of a memory."""

import pytest
import torch

from glassformer.models import EncoderModel, build_model, preset
from glassformer.models.transformer import check_memory
from glassformer.nn import Stack


def test_tied_parameters_count_once():
    tied, separate = (build_model(preset("tiny-gpt2", tie=tie)) for tie in ("output", "none"))
    table = tied.embeddings.tokens.weight
    assert separate.n_parameters() == tied.n_parameters() + table.numel()


def test_gradient_checkpointing_is_switched_in_every_stack():
    model = build_model(preset("tiny-marian"))
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    assert len(stacks) == 2
    model.set_gradient_checkpointing()
    assert all(stack.gradient_checkpointing for stack in stacks)
    model.set_gradient_checkpointing(False)
    assert not any(stack.gradient_checkpointing for stack in stacks)


def test_a_config_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="makes kind 'decoder': expected 'encoder'"):
        EncoderModel(preset("tiny-gpt2"))


def test_a_memory_must_fit_the_target_and_the_width():
    target = torch.zeros(2, 3, dtype=torch.long)
    check_memory(torch.zeros(2, 7, 16), target, 16)
    with pytest.raises(ValueError, match=r"memory has shape \(2, 7, 8\): expected \(2, source length, 16\)"):
        check_memory(torch.zeros(2, 7, 8), target, 16)
    with pytest.raises(TypeError, match=r"memory has dtype torch\.int64"):
        check_memory(torch.zeros(2, 7, 16, dtype=torch.long), target, 16)
