import copy
import threading
import time

import pytest

from glassformer.decoding import Engine
from glassformer.pipelines.pipeline import LineRequest
from glassformer.pipelines.translator import Translator
from glassformer.serve.compute_thread import ComputeThread
from glassformer.serve.engine_writer import EngineWriter
from glassformer.serve.server_metrics import ServerMetrics
from glassformer.text.tokenizer import BEGIN, END
from pipelines.tiny_pipelines import make

LINES = ["the cat", "", "it is red", "the old saw"]


@pytest.fixture
def writing():
    pipeline, compute = make(Translator), ComputeThread(ServerMetrics())
    lane = compute.add_lane(
        lambda: Engine(pipeline.model, begin=BEGIN, end=END, tokenizer=pipeline.target_tokenizer, max_tokens=512)
    )
    yield pipeline, compute, lane
    compute.start()
    compute.close()


def answers_of(pipeline, writer, request):
    own = copy.copy(pipeline)
    own.writer = writer
    return [answer.record for answer in own.answer_lines(LINES, request)]


@pytest.mark.parametrize("n_best", [None, 1])
def test_a_pipeline_answers_as_it_does_alone(writing, n_best):
    pipeline, compute, lane = writing
    compute.start()
    compute.start = lambda: None
    request = LineRequest(n_best=n_best, with_scores=True)
    expected = [answer.record for answer in pipeline.answer_lines(LINES, request)]
    found = answers_of(pipeline, EngineWriter(compute, lane, 30), request)
    assert [{**one, "score": None, "n_best": None} for one in found] == [
        {**one, "score": None, "n_best": None} for one in expected
    ]


def test_a_canceled_writer_gives_up(writing):
    pipeline, compute, lane = writing  # nothing computes yet, so that it waits
    writer = EngineWriter(compute, lane, 30)
    timer = threading.Timer(0.1, writer.cancel)
    timer.start()
    with pytest.raises(TimeoutError):
        answers_of(pipeline, writer, LineRequest())
    assert all(request.is_canceled for request in lane.requests)


def test_a_writer_gives_up_when_its_time_is_over(writing):
    pipeline, compute, lane = writing
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        answers_of(pipeline, EngineWriter(compute, lane, 0.05), LineRequest())
    assert time.monotonic() - begin < 10
