"""The pool runner: prompts, steps and verification give the logits of the whole text, plain and recorded."""

from dataclasses import replace

import pytest
import torch

from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.kernels.kernel_registry import cpp_kernels
from glassformer.runtime import pool_runner
from glassformer.runtime.cache_pool import CachePool
from glassformer.runtime.pool_runner import PoolRunner
from recording import BEGIN, DECODERS, PAIR, make

TEXTS = [[5, 6, 7, 8], [9, 4], [11, 12, 13]]


def runner_for(config, **options):
    model = make(config)
    runner = PoolRunner(model, CachePool(model, max_rows=4, max_tokens=80), **options)
    runner.test_model = model  # a runner does not keep its model
    return runner


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


@pytest.mark.parametrize("name", ["learned positions", "window"])
def test_a_greedy_step_chooses_the_best_tokens_and_continues_with_them(name):
    runners = [runner_for(DECODERS[name], is_recorded=True) for _ in range(2)]
    bias = torch.zeros(runners[0].model.config.vocab_size)
    bias[7] = -torch.inf
    with torch.inference_mode():
        for runner in runners:
            rows = runner.pool.take(3)
            runner.read(rows, TEXTS)
            for row in rows:
                row.state = "running"
        tokens = chosen = torch.tensor([[3], [4], [5]])
        for _ in range(3):
            best = (runners[0].step(tokens) + bias).max(-1)
            results, chosen = runners[1].greedy_step(chosen, bias)
            tokens = best.indices[:, None]
            assert torch.equal(chosen, tokens)
            assert torch.equal(results[1].long(), best.indices)
            assert torch.allclose(results[0].double(), best.values.double())
    assert [row.length for row in runners[1].pool.rows[:3]] == [row.length for row in runners[0].pool.rows[:3]]


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
def test_a_recorded_pass_verifies_the_proposal_of_a_single_row(config):
    runner = runner_for(config, is_recorded=True)
    rows, text = runner.pool.take(1), [3, 4, 5, 6, 7]
    with torch.inference_mode():
        if config is PAIR:
            runner.read_sources(rows, TEXTS[:1], BEGIN)
            whole = runner.model(torch.tensor(TEXTS[:1]), torch.tensor([[BEGIN, *text]]))[0]
        else:
            runner.read(rows, TEXTS[:1])
            whole = runner.model(torch.tensor([[*TEXTS[0], *text]]))[0]
        rows[0].state = "running"
        for part in ([3, 4, 9], [5, 6], [7]):
            before = rows[0].length
            found = runner.verify(rows, [part])[0]
            n_right = 2 if part[-1] == 9 else len(part)
            assert torch.allclose(found[:n_right], whole[before : before + n_right])
            runner.pool.truncate(rows[0], before + n_right)
    assert len(runner._recorded) == 3


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


@pytest.fixture
def replaying():
    """A runner that replays steps from C++. The kernels need heads of at least 16 numbers, in float32."""
    try:
        kernels = cpp_kernels()
    except KernelBuildError as error:
        pytest.skip(f"no C++ kernels: {error}")
    model = make(replace(DECODERS["rotary, grouped"], d_model=64)).float()
    yield PoolRunner(model, CachePool(model, max_rows=4, max_tokens=80, kernels=kernels), is_recorded=True)
    del model  # a runner does not keep its model


def start(runner, texts):
    rows = runner.pool.take(len(texts))
    runner.read(rows, texts)
    for row in rows:
        row.state = "running"


def test_steps_replayed_from_cpp_give_the_logits_of_the_whole_text(replaying):
    with torch.inference_mode():
        start(replaying, TEXTS)
        found = [replaying.step(torch.full((3, 1), token)).clone() for token in (3, 4, 5, 6)]
        assert [key[0] for key in replaying._recorded] == [3]
        for index, text in enumerate(TEXTS):
            whole = replaying.model(torch.tensor([[*text, 3, 4, 5, 6]]))[0]
            assert torch.allclose(torch.stack([scores[index] for scores in found]), whole[-4:], atol=1e-4)
    assert not replaying.can_run_ahead


def test_a_verification_can_fill_a_row(replaying):
    with torch.inference_mode():
        start(replaying, [[5] * 17])
        (row,) = (row for row in replaying.pool.rows if row.is_busy)
        found = replaying.verify([row], [[3, 4, 5]])  # fills the row: its capacity is 20
        whole = replaying.model(torch.tensor([[5] * 17 + [3, 4, 5]]))
        assert torch.allclose(found, whole[:, -3:], atol=1e-4)
        assert len(replaying._recorded) == 1
        replaying.pool.truncate(row, 18)
        found = replaying.verify([row], [[4, 5]])
        assert torch.allclose(found, whole[:, -2:], atol=1e-4)


def test_more_rows_than_a_cpu_replays_take_plain_steps(replaying, monkeypatch):
    monkeypatch.setattr(pool_runner, "MAX_REPLAYED_POOL_ROWS", 2)
    with torch.inference_mode():
        start(replaying, TEXTS)
        replaying.step(torch.full((3, 1), 3))
        assert not replaying._recorded
        replaying.step(torch.full((2, 1), 3))
        assert [key[0] for key in replaying._recorded] == [2]


def test_replaced_parameters_are_noticed(replaying):
    with torch.inference_mode():
        start(replaying, TEXTS[:1])
        replaying.compute_with(replaying.model)
        replaying.step(torch.tensor([[3]]))
        replaying.compute_with(replaying.model)
        assert replaying._recorded
        head = replaying.model.head.out_proj
        head.weight.data = torch.zeros_like(head.weight)
        replaying.compute_with(replaying.model)
        assert torch.equal(replaying.step(torch.tensor([[4]]))[0], head.bias)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_recorded_steps_and_verification_on_a_gpu_give_the_logits_of_the_whole_text():
    model = make(DECODERS["rotary, grouped"]).cuda()
    runner = PoolRunner(model, CachePool(model, max_rows=4, max_tokens=80), is_recorded=True)
    with torch.inference_mode():
        start(runner, TEXTS[:1])
        row = runner.pool.rows[0]
        whole = model(torch.tensor([[*TEXTS[0], 3, 4, 5, 6, 7, 8]], device="cuda"))[0]
        found = [runner.step(torch.tensor([[3]], device="cuda")).clone()]
        runner.verify([row], [[4, 9, 9]])
        runner.pool.truncate(row, 6)  # 4 was right
        found.append(runner.verify([row], [[5, 6, 7]])[0].clone())
        found.append(runner.step(torch.tensor([[8]], device="cuda")).clone())
        assert torch.allclose(torch.cat(found), whole[[4, 6, 7, 8, 9]])
    assert sorted(key[1] for key in runner._recorded) == [1, 3]
