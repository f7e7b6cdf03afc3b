"""Errors of the HTTP API, in the form of OpenAI's: a message, a type, the parameter and a code."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from glassformer.base.checks import shortened, shown
from glassformer.decoding.engine_request import EngineFullError, RequestTooLargeError
from glassformer.pipelines.pipeline import InputTooLongError

_LOG = logging.getLogger(__name__)
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
SERVER_FAULT = "the server failed to answer; its log has the reason"


class ApiError(Exception):
    """An error that is reported to a client.

    Args:
        status: The HTTP status, such as 400.
        message: What was wrong, the value, and what is allowed.
        param: The field of the request that was wrong, if it was one.
        code: A short name of the error for programs.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return the error as a JSON object in OpenAI's form."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        message = shortened(self.message).encode("utf-8", "replace").decode()
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """Return the HTTP response that reports the error."""
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


def bad_value(field: str, value: object, expected: str) -> ApiError:
    """Return the error for a wrong value of a field. `expected` says what is allowed."""
    return ApiError(400, f"{field}={shown(value)}: expected {expected}", param=field)


def as_api_error(error: BaseException) -> ApiError:
    """Return the error that is reported to a client when `error` was raised while its request was answered.

    A ValueError is about the request, and its message says what was wrong. Anything else is a fault of the server,
    which is logged and not described to the client.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestTooLargeError):
        message = (
            f"the request needs {error.n_tokens} tokens of the cache, of the prompt and max_tokens for each text: "
            f"expected at most {error.max_tokens} (--cache-tokens of the server); shorten the prompt, lower "
            "max_tokens, or ask for fewer texts"
        )
        return ApiError(400, message, param="max_tokens", code="context_length_exceeded")
    if isinstance(error, EngineFullError):
        message = "more requests are waiting than the server allows (--max-queue): try again later"
        return ApiError(429, message, code="queue_full", headers={"Retry-After": "1"})
    if isinstance(error, InputTooLongError):
        return ApiError(400, f"{error.reason}; shorten it", code="context_length_exceeded")
    if isinstance(error, ValueError):
        return ApiError(400, str(error))
    if isinstance(error, TimeoutError):
        return ApiError(504, "the request took longer than the server's --timeout", code="timeout")
    _LOG.error("a request failed", exc_info=error)
    return ApiError(500, SERVER_FAULT)


def install_error_handlers(app: FastAPI) -> None:
    """Let the application answer every error in OpenAI's form."""

    async def refuse(request: Request, error: Exception) -> JSONResponse:
        return as_api_error(error).response()

    async def refuse_body(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return describe_validation(error.errors()).response()

    async def refuse_route(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        message = str(error.detail)
        if error.status_code == 404:
            message = f"{request.method} {shown(request.url.path)}: there is no such address; /docs lists them"
        elif error.status_code == 405:
            message = f"{request.method} {shown(request.url.path)}: expected another method; /docs lists them"
        return ApiError(error.status_code, message, headers=error.headers).response()

    app.add_exception_handler(RequestValidationError, refuse_body)
    app.add_exception_handler(HTTPException, refuse_route)
    app.add_exception_handler(Exception, refuse)
    for kind in (ApiError, ValueError, EngineFullError, TimeoutError):
        app.add_exception_handler(kind, refuse)


def describe_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """Return one error for what pydantic found wrong in a request: the first wrong field, and what it may be."""
    first = errors[0]
    field = _field(first["loc"])
    same = [error for error in errors if _field(error["loc"]) == field]
    kinds = {error["type"] for error in same}
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is not JSON: expected a JSON object in UTF-8", code="invalid_json")
    if first["type"] == "value_error" and not field:
        return ApiError(400, str(first["msg"]).removeprefix("Value error, "), code="invalid_value")
    if not field:
        return ApiError(400, "the body is not an object: expected a JSON object, with Content-Type application/json")
    if kinds == {"missing"}:
        return ApiError(400, f"{field} is missing: this request needs it", param=field, code="missing")
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{field} is not a field of this request: leave it out", param=field, code="unknown_field")
    expected = " or ".join(dict.fromkeys(_expected(str(error["msg"])) for error in same[:6]))
    return ApiError(400, f"{field}={shown(first.get('input'))}: expected {expected}", param=field, code="invalid_value")


def _field(location: Sequence[int | str]) -> str:
    """Return where in the body a wrong value is, such as `messages.0.role`, without the names of pydantic's types.

    The first part of a location is `body`, `query` or `path`.
    """
    parts = [str(part) for part in location[1:] if part not in _KINDS]
    return ".".join(part for part in parts if part.isdecimal() or part.replace("_", "").isalpha())


_KINDS = {"str", "int", "float", "bool", "dict"}


def _expected(message: str) -> str:
    found = message.removeprefix("Value error, ").removeprefix("Input should be ").removeprefix("Input should ")
    found = found.removeprefix("expected ")
    return found[:1].lower() + found[1:]
