"""An engine that is driven over a socket, as that of another process is, in a thread of this one."""

import socket
import threading
import time
from contextlib import contextmanager

from glassformer.decoding import Engine
from glassformer.serve.engine_frames import FrameSocket
from glassformer.serve.engine_process import EngineLoop
from glassformer.serve.remote_engine import EngineLink, RemoteEngine


@contextmanager
def remote_engine(model, make_constraint=None, **options):
    """Yield the engine of the server's side, that of the other side as `loop`, and the list of the steps' rows."""
    ours, theirs = socket.socketpair()
    loop = EngineLoop(FrameSocket(theirs), lambda: Engine(model, **options), make_constraint)
    thread = threading.Thread(target=loop.run)
    thread.start()
    steps, reports = [], threading.Event()
    engine = RemoteEngine(
        model, link=EngineLink(FrameSocket(ours)), on_report=reports.set, note_step=steps.append, **options
    )
    engine.reports = reports
    try:
        yield engine, loop, steps
    finally:
        engine.close()
        thread.join(20)
        assert not thread.is_alive()


def wait_for(engine, requests, seconds=30):
    """Take over reports until the requests are done."""
    until = time.monotonic() + seconds
    while not all(request.is_done for request in requests):
        assert time.monotonic() < until, "a request is not done"
        engine.reports.wait(1)
        engine.reports.clear()
        engine.step()
