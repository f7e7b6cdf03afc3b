import pytest


def test_a_server_says_that_it_lives_and_is_ready(server):
    assert server.ask("/health")[::2] == (200, {"status": "ok"})
    assert server.ask("/ready")[::2] == (200, {"status": "ready"})


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
def test_head_is_answered_as_get_without_a_body(server, path):
    asked = server.ask(path)
    status, headers, body = server.ask(path, method="HEAD")
    assert (status, headers["Content-Type"]) == (200, asked[1]["Content-Type"])
    assert body == ""


def test_metrics_count_what_was_written(server):
    before = server.metric("glassformer_generated_tokens_total")
    server.ask(
        "/v1/completions",
        {"model": "chat", "prompt": "the", "max_tokens": 7, "temperature": 0, "logit_bias": {"2": -100}},
    )
    assert server.metric("glassformer_generated_tokens_total") == before + 7
    status, headers, text = server.ask("/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "glassformer_first_token_seconds_count" in text
    assert "glassformer_batch_rows_count" in text
