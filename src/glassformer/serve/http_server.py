"""The server process: sockets, signals, and time limits of connections. It is uvicorn, with three changes.

1. SIGTERM and Ctrl-C let running requests finish, and then the process ends with exit code 0. A second signal ends it
   at once.
2. A connection on which no request begins, or whose head does not arrive within HEAD_SECONDS, is closed. Otherwise
   clients could hold connections open for free.
3. Its log says where the server listens, in one line.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from glassformer.serve.server_options import ListenOptions, RequestLimits

HEAD_SECONDS = 30.0
"""How long a connection may be open without a complete request head."""
KEEP_ALIVE_SECONDS = 30
SWITCH_SECONDS = 0.0005
"""How long the computing thread waits for the interpreter while the event loop uses it. Python's default is 0.005, and
a step of a GPU asks for it several times."""
MAX_CONNECTIONS = 2000
"""The most connections at a time. Requests on further ones get status 503."""


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP protocol, which closes connections whose request head does not arrive in time."""

    head_seconds = HEAD_SECONDS
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Note a new connection, on which a request is now awaited."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is closed."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client. While they are part of a head, its time runs."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._head_timer is None:
            self._await_head()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_seconds, self._close_silent)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_silent(self) -> None:
        self._head_timer = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()


class HttpServer(uvicorn.Server):
    """uvicorn's server, which ends by a signal as if it had ended by itself. `on_start` is called when it listens."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None]):
        super().__init__(config)
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self._on_start()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Return a context manager in which SIGTERM and SIGINT end the server after its running requests."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        usual: dict[int, Any] = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in usual.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End after the running requests; at the second signal, end the process."""
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address. Raises OSError with the address if that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named. Without it, each response on a kept-alive connection
    # arrives 40 ms late: Nagle's algorithm waits for the client's delayed acknowledgement.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise OSError(
            error.errno, f"--host {host} --port {port}: {error.strerror}; choose another address or port"
        ) from error
    return found


def serve(
    app: FastAPI, listen: ListenOptions, limits: RequestLimits, *, on_start: Callable[[str], None] = print
) -> None:
    """Serve the application until a signal ends it. `on_start` is called with the address, such as http://host:port."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    logging.getLogger("glassformer.access").setLevel(logging.WARNING if listen.quiet else logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    sys.setswitchinterval(SWITCH_SECONDS)
    with open_socket(listen.host, listen.port) as found:
        host, port = found.getsockname()[:2]
        config = uvicorn.Config(
            app,
            http=PatientProtocol,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, round(limits.drain)),
            limit_concurrency=MAX_CONNECTIONS,
        )
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        HttpServer(config, lambda: on_start(address)).run(sockets=[found])
