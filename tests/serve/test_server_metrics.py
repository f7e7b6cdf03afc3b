from glassformer.serve.server_metrics import ServerMetrics


def test_metrics_are_written_for_prometheus():
    metrics = ServerMetrics()
    metrics.watch("queue", "Length of the queue", lambda: 3)
    metrics.note_request("/v1/models", 200, 0.02)
    metrics.note_step(0)
    metrics.note_step(5)
    metrics.note_tokens(7)
    metrics.note_prompt(10, 4)
    metrics.note_first_token(0.3)
    text = metrics.text().decode()
    for line in (
        'glassformer_requests_total{path="/v1/models",status="200"} 1.0',
        "glassformer_queue 3.0",
        'glassformer_batch_rows_bucket{le="4.0"} 0.0',
        'glassformer_batch_rows_bucket{le="8.0"} 1.0',
        "glassformer_generated_tokens_total 7.0",
        "glassformer_prompt_tokens_total 10.0",
        "glassformer_cached_tokens_total 4.0",
        'glassformer_first_token_seconds_bucket{le="0.5"} 1.0',
    ):
        assert line in text


def test_two_servers_in_one_process_count_apart():
    first, second = ServerMetrics(), ServerMetrics()
    first.note_tokens(3)
    assert "glassformer_generated_tokens_total 0.0" in second.text().decode()
