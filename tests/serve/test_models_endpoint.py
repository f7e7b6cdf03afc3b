def test_models_are_listed_with_what_they_can_do(server, model_paths):
    server.ask("/v1/tasks/classifier", {"input": "a"})  # loads it
    status, _, body = server.ask("/v1/models")
    assert status == 200
    found = {entry["id"]: entry for entry in body["data"]}
    assert found.keys() == model_paths.keys()
    assert found["chat"]["endpoints"] == ["/v1/tasks/chat", "/v1/completions", "/v1/chat/completions"]
    assert found["classifier"]["endpoints"] == ["/v1/tasks/classifier", "/v1/embeddings"]
    assert found["classifier"]["task"] == "classification"
    assert all(entry["object"] == "model" for entry in found.values())


def test_one_model_is_described(server):
    status, _, body = server.ask("/v1/models/chat")
    assert (status, body["id"], body["loaded"], body["max_tokens"]) == (200, "chat", True, 512)
    for name in ("nothing", "../../etc/passwd", "%2e%2e%2fchat", "chat/../chat"):
        assert server.ask(f"/v1/models/{name}")[0] == 404
