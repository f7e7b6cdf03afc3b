"""Check the key and the rate of each request, before its body is read."""

import hmac
import math
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from glassformer.serve.api_errors import ApiError
from glassformer.serve.rate_limit import RateLimit

DOCS_FILES = "/docs-files"
"""The folder of the scripts of `/docs`."""
OPEN_PATHS = frozenset({"/", "/explore", "/health", "/ready", "/docs", "/openapi.json"})
"""Addresses that need no key and have no rate: they cost nothing and reveal nothing about other clients."""


class ApiKeys:
    """The keys of a server's clients. Without any, every request is allowed."""

    def __init__(self, keys: Iterable[str]):
        self._keys = [key.encode() for key in keys]

    def find(self, given: bytes) -> int | None:
        """Return the number of the key that a client gave, or None if it is no key of ours.

        Every key is compared, each in constant time, so that the time does not reveal how close a guess was.
        """
        found = None
        for number, key in enumerate(self._keys):
            if hmac.compare_digest(key, given):
                found = number
        return found

    def __bool__(self) -> bool:
        return bool(self._keys)


class KeyCheck:
    """ASGI middleware that answers requests without a valid key with status 401, and too frequent ones with 429."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, rate: RateLimit):
        self._app, self._keys, self._rate = app, keys, rate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        if scope["type"] == "http" and not _is_open(scope["path"]) and scope["method"] != "OPTIONS":
            error = self._refuse(scope)
            if error is not None:
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refuse(self, scope: Scope) -> ApiError | None:
        client = scope.get("client") or ("unknown", 0)
        name = f"address {client[0]}"
        if self._keys:
            number = self._keys.find(_bearer(scope))
            if number is None:
                return ApiError(
                    401,
                    "the API key is missing or wrong: expected the header Authorization: Bearer KEY with a key of "
                    "this server",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
            name = f"key {number}"
        seconds = self._rate.wait_for(name)
        if seconds:
            return ApiError(
                429,
                f"too many requests: expected at most {self._rate.per_minute} per minute; try again in {seconds:.1f} s",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(math.ceil(seconds))},
            )
        return None


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(f"{DOCS_FILES}/")


def _bearer(scope: Scope) -> bytes:
    """Return the key in the Authorization header of a request; nothing if there is none."""
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    kind, _, key = given.partition(b" ")
    return key.strip() if kind.lower() == b"bearer" else b""
