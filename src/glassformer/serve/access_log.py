"""Log each request as one line of JSON, and count it. No text of a client is logged, unless that is asked for."""

import json
import logging
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassformer.serve.body_limit import BODY
from glassformer.serve.request_ids import new_id
from glassformer.serve.server_metrics import ServerMetrics

_LOG = logging.getLogger("glassformer.access")


class AccessLog:
    """ASGI middleware that logs and counts requests, and gives each an id, the header X-Request-Id.

    With `log_prompts` the bodies of requests are logged too.
    """

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, *, log_prompts: bool):
        self._app, self._metrics, self._log_prompts = app, metrics, log_prompts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and log what became of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status, number = time.monotonic(), 499, new_id()  # 499: the client has gone without an answer
        facts: dict[str, Any] = {}
        scope["glassformer.facts"] = facts
        if self._log_prompts:
            scope[BODY] = b""

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", number.encode())]
            await send(message)

        try:
            await self._app(scope, receive, note)
        except Exception:
            status = 500
            raise
        finally:
            seconds = time.monotonic() - begin
            route = scope.get("route")
            self._metrics.note_request(getattr(route, "path", "other"), status, seconds)
            if _LOG.isEnabledFor(logging.INFO):
                _LOG.info(json.dumps(self._line(scope, number, status, seconds, facts), ensure_ascii=True))

    def _line(self, scope: Scope, number: str, status: int, seconds: float, facts: dict[str, Any]) -> dict[str, Any]:
        client = scope.get("client") or ("unknown", 0)
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "id": number,
            "client": client[0],
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "seconds": round(seconds, 4),
            **facts,
        }
        if self._log_prompts:
            line["body"] = scope[BODY].decode("utf-8", "replace")
        return line


def note_fact(scope: Scope, **facts: Any) -> None:
    """Add facts about a request, such as its model and the number of its tokens, to its line in the log."""
    scope.get("glassformer.facts", {}).update(facts)
