import asyncio
import threading
from types import SimpleNamespace

import pytest

from glassformer.serve.api_errors import ApiError
from glassformer.serve.compute_thread import ComputeThread
from glassformer.serve.health_endpoint import ready
from glassformer.serve.server_metrics import ServerMetrics
from glassformer.serve.server_options import BatchOptions, RequestLimits
from glassformer.serve.server_state import ServerState, state_of


def test_prompts_are_prepared_one_at_a_time_outside_the_event_loop():
    metrics = ServerMetrics()
    compute = ComputeThread(metrics)
    compute.start()
    state = ServerState(SimpleNamespace(models={}), compute, metrics, RequestLimits(), BatchOptions())

    async def prepare():
        here = threading.get_ident()
        threads = await asyncio.gather(*(state.prepare(threading.get_ident) for _ in range(4)))
        assert here not in threads
        assert len({*threads}) == 1
        assert await state.run_task(lambda value: value + 1, 2) == 3

    asyncio.run(prepare())
    assert state.n_waiting() == 0
    assert b"glassformer_running_rows 0.0" in metrics.text()
    state.close()
    assert not compute.is_alive()


def test_a_server_without_an_engine_is_not_ready():
    metrics = ServerMetrics()
    lane = SimpleNamespace(down_until=None, engine=SimpleNamespace(_waiting=[], n_rows=0), requests=[])
    shelf = SimpleNamespace(models={"a": SimpleNamespace(lane=lane)})
    state = ServerState(shelf, ComputeThread(metrics), metrics, RequestLimits(), BatchOptions())
    request = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(server=state)))
    state.is_ready = True
    assert asyncio.run(ready(request)).status_code == 200
    lane.down_until = 5.0
    with pytest.raises(ApiError, match="being prepared again"):
        asyncio.run(ready(request))


def test_endpoints_find_the_state_in_their_application():
    request = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(server="state")))
    assert state_of(request) == "state"
