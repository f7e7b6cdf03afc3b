"""The pool runner: prompts, steps and verification give the logits of the whole text, plain and recorded."""

import pytest
import torch

from glassformer.runtime.cache_pool import CachePool
from glassformer.runtime.pool_runner import PoolRunner
from recording import BEGIN, DECODERS, PAIR, make

TEXTS = [[5, 6, 7, 8], [9, 4], [11, 12, 13]]


def runner_for(config, **options):
    model = make(config)
    return PoolRunner(model, CachePool(model, max_rows=4, max_tokens=80), **options)


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("name", ["learned positions", "relative", "window"])
def test_rows_of_different_lengths_take_steps_together(name, is_recorded):
    runner = runner_for(DECODERS[name], is_recorded=is_recorded)
    rows = runner.pool.take(3)
    with torch.inference_mode():
        first = runner.read(rows, TEXTS)
        for row in rows:
            row.state = "running"
        second = runner.step(torch.tensor([[3], [4], [5]])).clone()
        third = runner.step(torch.tensor([[6], [7], [8]]))
        for index, text in enumerate(TEXTS):
            whole = runner.model(torch.tensor([[*text, 3 + index, 6 + index]]))[0]
            assert torch.allclose(torch.stack((first[index], second[index], third[index])), whole[-3:])
    assert [row.length for row in rows] == [6, 4, 5]


@pytest.mark.parametrize("is_recorded", [False, True])
def test_sources_of_different_lengths_take_steps_together(is_recorded):
    runner = runner_for(PAIR, is_recorded=is_recorded)
    rows = runner.pool.take(3)
    with torch.inference_mode():
        runner.read_sources(rows, TEXTS, BEGIN)
        for row in rows:
            row.state = "running"
        found = runner.step(torch.tensor([[3], [4], [5]]))
        for index, text in enumerate(TEXTS):
            whole = runner.model(torch.tensor([text]), torch.tensor([[BEGIN, 3 + index]]))[0]
            assert torch.allclose(found[index], whole[-1])


def test_a_prompt_can_be_read_in_parts():
    runner = runner_for(DECODERS["alibi"])
    rows = runner.pool.take(1)
    with torch.inference_mode():
        for part in ([5, 6], [7], [8, 9, 10]):
            found = runner.read(rows, [part])
        assert torch.allclose(found, runner.model(torch.tensor([[5, 6, 7, 8, 9, 10]]))[:, -1])
    assert rows[0].tokens == [5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("config", [DECODERS["window"], PAIR], ids=["decoder", "pair"])
def test_proposed_tokens_can_be_verified_and_rejected(config):
    runner = runner_for(config)
    rows = runner.pool.take(2)
    with torch.inference_mode():
        if config is PAIR:
            runner.read_sources(rows, TEXTS[:2], BEGIN)
            wholes = [runner.model(torch.tensor([text]), torch.tensor([[BEGIN, 3, 4, 5]]))[0] for text in TEXTS[:2]]
        else:
            runner.read(rows, TEXTS[:2])
            wholes = [runner.model(torch.tensor([[*text, 3, 4, 5]]))[0] for text in TEXTS[:2]]
        found = runner.verify(rows, [[3, 4, 9], [3]])
        assert torch.allclose(found[0, :2], wholes[0][-3:-1])
        assert torch.allclose(found[1, 0], wholes[1][-3])
        runner.pool.truncate(rows[0], rows[0].length - 1)
        found = runner.verify(rows, [[5], [4, 5]])
        assert torch.allclose(found[0, 0], wholes[0][-1])
        assert torch.allclose(found[1, :2], wholes[1][-2:])


def test_a_recorded_step_leaves_rows_that_do_not_run_intact():
    runner = runner_for(DECODERS["learned positions"], is_recorded=True)
    running, reading, kept = rows = runner.pool.take(3)
    with torch.inference_mode():
        runner.read(rows, TEXTS)
        running.state = "running"
        runner.pool.keep(kept)
        before = [block[1:3].clone() for block in (*runner.pool.keys, *runner.pool.values)]
        for token in (3, 4):
            runner.step(torch.tensor([[token]]))
    for block, old in zip((*runner.pool.keys, *runner.pool.values), before, strict=True):
        assert torch.equal(block[1, :, : reading.length], old[0, :, : reading.length])
        assert torch.equal(block[2, :, : kept.length], old[1, :, : kept.length])
