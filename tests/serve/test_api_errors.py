import pytest

from glassformer.decoding import EngineFullError
from glassformer.decoding.engine_request import RequestTooLargeError
from glassformer.pipelines.pipeline import InputTooLongError
from glassformer.serve.api_errors import SERVER_FAULT, ApiError, as_api_error, bad_value, describe_validation


def test_an_error_has_openais_form():
    body = bad_value("n", 0, "1 to 128").body()
    assert body == {
        "error": {"message": "n=0: expected 1 to 128", "type": "invalid_request_error", "param": "n", "code": None}
    }


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, "authentication_error"), (404, "not_found_error"), (429, "rate_limit_error"), (503, "server_error")],
)
def test_the_type_follows_from_the_status(status, kind):
    assert ApiError(status, "x").body()["error"]["type"] == kind


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("wrong"), 400),
        (EngineFullError("3 requests are waiting: expected fewer"), 429),
        (RequestTooLargeError(n_rows=9, n_tokens=90, max_rows=4, max_tokens=60), 400),
        (InputTooLongError("the input has 9 tokens: expected at most 4", "--truncate cuts it"), 400),
        (TimeoutError(), 504),
    ],
)
def test_errors_of_other_layers_get_a_status(error, status):
    assert as_api_error(error).status == status


def test_a_request_that_is_too_large_is_described_by_its_fields_and_the_options_of_the_server():
    found = as_api_error(RequestTooLargeError(n_rows=4, n_tokens=812, max_rows=4, max_tokens=600))
    assert "812 tokens" in found.message
    assert "expected at most 600 (--cache-tokens of the server)" in found.message
    assert "lower max_tokens" in found.message
    assert found.param == "max_tokens"
    assert "max_new_tokens" not in found.message
    queue = as_api_error(EngineFullError("2 requests are waiting: expected fewer than max_waiting=2"))
    assert "--max-queue" in queue.message
    assert "max_waiting" not in queue.message


def test_an_input_that_is_too_long_is_described_without_options_of_the_command_line():
    found = as_api_error(InputTooLongError("the input has 9 tokens: expected at most 4", "--truncate cuts it"))
    assert found.message == "the input has 9 tokens: expected at most 4; shorten it"
    assert found.code == "context_length_exceeded"


def test_a_fault_of_the_server_is_logged_and_not_described_to_the_client(caplog):
    found = as_api_error(RuntimeError("secret path /home/me"))
    assert (found.status, found.message) == (500, SERVER_FAULT)
    assert "secret path" in caplog.text


def test_text_that_is_no_utf8_can_be_reported():
    assert ApiError(400, "bad \ud800").response().status_code == 400


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ({"type": "missing", "loc": ("body", "model"), "msg": "Field required", "input": {}}, "model is missing"),
        (
            {"type": "float_type", "loc": ("body", "top_p"), "msg": "Input should be a valid number", "input": "a"},
            "top_p='a': expected a valid number",
        ),
        ({"type": "extra_forbidden", "loc": ("body", "foo"), "msg": "", "input": 1}, "foo is not a field"),
        (
            {"type": "int", "loc": ("body", "query"), "msg": "Input should be at least 0", "input": -1},
            "query=-1: expected at least 0",
        ),
        ({"type": "json_invalid", "loc": ("body", 3), "msg": "", "input": {}}, "the body is not JSON"),
        ({"type": "model_type", "loc": ("body",), "msg": "", "input": []}, "the body is not an object"),
        (
            {
                "type": "x",
                "loc": ("body", "messages", 0, "content", "str"),
                "msg": "Input should be a text",
                "input": 3,
            },
            "messages.0.content=3: expected a text",
        ),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_what_is_allowed(error, message):
    assert describe_validation([error]).message.startswith(message)
