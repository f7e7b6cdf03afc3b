"""Plain decoding steps: cached steps, reordered and merged rows, inference mode, and the limit of new tokens."""

import pytest
import torch

from glassformer.models import build_model, preset
from glassformer.runtime.step_runner import StepRunner, inference, limit_new_tokens, modules_of
from recording import DECODERS, PAIR, make

LLAMA_LIKE = DECODERS["rotary, grouped"]


def runner_for(model, rows, capacity=8):
    return StepRunner(model, model.new_cache(rows, capacity))


@torch.inference_mode()
def test_cached_steps_equal_one_pass_over_all_tokens():
    model, tokens = make(LLAMA_LIKE), torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    runner = runner_for(model, 2)
    runner.step(tokens[:, :2])
    runner.step(tokens[:, 2:3])
    torch.testing.assert_close(runner.step(tokens[:, 3:]), model(tokens)[:, -1])


@torch.inference_mode()
def test_a_reordered_row_continues_the_row_it_copies():
    model = make(LLAMA_LIKE)
    runner = runner_for(model, 2)
    runner.step(torch.tensor([[5, 6], [9, 10]]))
    runner.reorder(torch.tensor([1, 1]))
    found = runner.step(torch.tensor([[7], [8]]))
    torch.testing.assert_close(found, model(torch.tensor([[9, 10, 7], [9, 10, 8]]))[:, -1])
    runner.keep([1])
    torch.testing.assert_close(runner.step(torch.tensor([[3]])), model(torch.tensor([[9, 10, 8, 3]]))[:, -1])


@torch.inference_mode()
@pytest.mark.parametrize("name", DECODERS)
def test_copies_of_a_prompt_that_was_read_once_continue_as_if_each_had_read_it(name):
    model, copies = make(DECODERS[name]), 3
    prompts = torch.tensor([[0, 0, 5, 6, 9], [7, 8, 9, 10, 11]])
    mask = torch.tensor([[False, False, True, True, True], [True] * 5])
    rows, n_read = [], []
    model.embeddings.register_forward_hook(lambda module, args, output: n_read.append(tuple(args[0].shape)))
    for runner in (runner_for(model, 6), runner_for(model, 6)):
        if not rows:
            found = runner.prefill(prompts, mask, copies=copies)
        else:
            found = runner.step(prompts.repeat_interleave(copies, 0), mask.repeat_interleave(copies, 0))
        rows.append([found, runner.step(torch.arange(3, 9)[:, None]), runner.step(torch.arange(9, 15)[:, None])])
    assert n_read == [(2, 5), (6, 1), (6, 1), (6, 5), (6, 1), (6, 1)]
    for found, expected in zip(*rows, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


@torch.inference_mode()
def test_every_copy_of_an_encoder_decoder_reads_its_first_token():
    model = make(PAIR)
    memory = model.encode(torch.tensor([[5, 6, 7], [8, 9, 10]]))
    runner = StepRunner(model, model.new_cache(4, 8, 3, 2), memory)
    found = runner.prefill(torch.tensor([[1], [1]]), copies=2)
    expected = model(torch.tensor([[5, 6, 7], [8, 9, 10]]), torch.tensor([[1], [1]]))[:, -1]
    torch.testing.assert_close(found, expected.repeat_interleave(2, 0))


def test_inference_restores_the_training_mode_of_every_module():
    model = build_model(preset("tiny-gpt2")).train()
    model.decoder.eval()
    before = [module.training for module in modules_of(model)]
    assert {*before} == {True, False}
    with inference(model):
        assert torch.is_inference_mode_enabled()
        assert not any(module.training for module in modules_of(model))
    assert [module.training for module in modules_of(model)] == before


def test_new_tokens_are_limited_by_max_len():
    model = build_model(preset("tiny-gpt2", max_len=8))
    assert limit_new_tokens(model, 3, 4) == 4
    assert limit_new_tokens(model, 3, 50) == 6
    with pytest.raises(ValueError, match="the input has 9 tokens: expected at most max_len=8"):
        limit_new_tokens(model, 9, 1)
    assert limit_new_tokens(build_model(preset("tiny-llama", max_len=None)), 9, 50) == 50
