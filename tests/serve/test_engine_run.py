import asyncio

import pytest

from glassformer.decoding import Engine, GenerationConfig
from glassformer.models import preset
from glassformer.serve.engine_run import EngineRun
from oracle import random_model

CONFIG = GenerationConfig(max_new_tokens=4, min_new_tokens=4)


def engine():
    return Engine(random_model(preset("tiny-gpt2")), end=2, max_tokens=256)


def test_pieces_add_up_to_what_was_written():
    own = engine()

    async def collect():
        requests = [own.submit(prompt, CONFIG, with_log_probs=True, n_top_log_probs=2) for prompt in ([5, 6], [7])]
        run, heard = EngineRun(requests, streams=True), []
        while not own.is_idle:
            own.step()
            run.deliver(*run.collect())
        run.deliver(*run.collect())
        async for pieces in run.pieces():
            heard += pieces
        return run, heard

    run, heard = asyncio.run(collect())
    for number, request in enumerate(run.requests):
        own_pieces = [piece for piece in heard if piece.prompt == number]
        assert [token for piece in own_pieces for token in piece.tokens] == request.texts[0].tokens
        assert [value for piece in own_pieces for value in piece.log_probs] == request.rows[0].log_probs
        assert [len(tops) for piece in own_pieces for tops in piece.top_log_probs] == [2] * 4
        assert [piece.reason for piece in own_pieces] == [None] * (len(own_pieces) - 1) + ["length"]
    assert run.n_tokens == 8
    assert run.first_token >= run.started


def test_a_whole_run_is_delivered_once():
    own = engine()

    async def wait():
        run = EngineRun([own.submit([5], CONFIG)])
        own.run()
        pieces, is_over = run.collect()
        run.deliver(pieces, is_over)
        await run.wait()
        return pieces

    assert asyncio.run(wait()) == []


def test_the_error_of_a_request_is_raised_where_it_is_awaited():
    own = engine()

    async def wait():
        run = EngineRun([own.submit([5], CONFIG)])
        run.requests[0].fail(ValueError("broken"))
        run.deliver(*run.collect())
        await run.wait()

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(wait())


def test_a_canceled_run_leaves_the_engine_with_the_next_step():
    own = engine()

    async def cancel():
        run = EngineRun([own.submit([5], CONFIG)])
        own.step()
        assert own.n_rows == 1
        run.cancel()
        own.step()
        return run

    assert asyncio.run(cancel()).is_done
    assert own.is_idle
    assert own.n_rows == 0
