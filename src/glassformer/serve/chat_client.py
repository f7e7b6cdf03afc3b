"""A client of a server with OpenAI's API, for chats in a terminal. It needs only Python's own library."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from glassformer.base.checks import shortened

CONNECT_SECONDS = 600.0
"""How long to wait for the next part of an answer. A server may load a model first."""


class ChatClient:
    """Asks a server with OpenAI's API, such as `glassformer serve`.

    Args:
        address: The server's address, with or without `/v1` at its end.
        model: The model to ask; "" is the first one that the server lists.
        key: The API key; "" sends none.
    """

    def __init__(self, address: str, model: str = "", key: str = ""):
        if urlsplit(address).scheme not in ("http", "https"):
            raise ValueError(f"{address}: expected an address that begins with http:// or https://")
        base = address.rstrip("/")
        self._base = base if base.endswith("/v1") else f"{base}/v1"
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        self.model = model or self._first_model()

    def answer(self, messages: Sequence[Mapping[str, str]], settings: Mapping[str, Any]) -> Iterator[str]:
        """Yield the answer to a conversation piece by piece. Closing the generator stops the answer."""
        body = {"model": self.model, "messages": list(messages), "stream": True, **settings}
        with closing(self._open("/chat/completions", body)) as response:
            for line in _lines(response):
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[len(b"data: ") :])
                if "error" in event:
                    raise ValueError(str(event["error"].get("message", event["error"])))
                for choice in event.get("choices", [])[:1]:
                    if piece := choice.get("delta", {}).get("content"):
                        yield piece

    def _first_model(self) -> str:
        with closing(self._open("/models")) as response:
            found = json.loads(response.read()).get("data", [])
        if not found:
            raise ValueError(f"{self._base}/models lists no model: expected at least one")
        return str(found[0]["id"])

    def _open(self, path: str, body: Any = None) -> HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, self._headers)
        try:
            response: HTTPResponse = urllib.request.urlopen(request, timeout=CONNECT_SECONDS)
            return response
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(f"{self._base}{path}: status {error.code}: {_reason(error.read(10_000))}") from error
        except urllib.error.URLError as error:
            raise ValueError(f"{self._base}{path} cannot be reached: {error.reason}; is the server running?") from error


def _lines(response: HTTPResponse) -> Iterator[bytes]:
    """Yield the lines of a stream of events until [DONE]. Raises ValueError if the connection ends before."""
    reason = "the connection was closed"
    try:
        for line in response:
            if line.startswith(b"data: [DONE]"):
                return
            yield line
    except (OSError, HTTPException) as error:
        reason = str(error)
    raise ValueError(f"the server did not complete the answer: {reason}")


def _reason(body: bytes) -> str:
    """Return the message of an error in OpenAI's form, or the beginning of the body."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return shortened(body.decode("utf-8", "replace").strip(), 200)
