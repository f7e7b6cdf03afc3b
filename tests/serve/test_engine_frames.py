import json
import socket
import threading

import pytest

from glassformer.decoding.engine_request import EngineFullError
from glassformer.serve.engine_frames import (
    EngineFaultError,
    EngineReport,
    FrameSocket,
    RequestReport,
    RowReport,
    as_error,
    decode_report,
    kind_of,
)


@pytest.fixture
def pair():
    found = [*map(FrameSocket, socket.socketpair())]
    yield found
    for one in found:
        one.close()


def test_values_arrive_whole_and_in_order(pair):
    one, other = pair
    assert other.receive(waits=False) == []
    values = [{"a": [1, 2.5, None]}, "ü", [-float("inf")], {"long": [7] * 300_000}]
    sending = threading.Thread(target=one.send, args=values)
    sending.start()
    found = []
    while len(found) < len(values):
        found += other.receive(waits=True)
    sending.join(10)
    assert found == values


def test_a_closed_socket_is_the_end_for_both(pair):
    one, other = pair
    one.send(1)
    one.close()
    assert other.receive(waits=True) == [1]
    with pytest.raises(EOFError, match="closed"):
        other.receive(waits=True)
    with pytest.raises(BrokenPipeError):
        other.send(2)


def test_a_report_survives_json():
    rows = [RowReport(1, [5, 6], [-0.5, -1e-9], [], "length")]
    report = EngineReport(3, 2, [RequestReport(9, 4, rows, True), RequestReport(8, 0, [], True, ("ValueError", "x"))])
    found = decode_report(json.loads(json.dumps(report)))
    assert found.requests[0] == report.requests[0]
    assert found.requests[1].error == ["ValueError", "x"]
    assert found[:2] == (3, 2)


def test_errors_keep_their_kind():
    for error in (ValueError("x"), EngineFaultError("x"), EngineFullError("x"), FloatingPointError("x")):
        found = as_error(kind_of(error), str(error))
        assert type(found) is type(error)
        assert str(found) == "x"
    assert type(as_error(kind_of(KeyError("x")), "x")) is RuntimeError
