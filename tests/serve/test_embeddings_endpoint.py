import base64
import re

import numpy as np
import pytest

from glassformer.pipelines.load import load

PATH = "/v1/embeddings"


def test_vectors_are_those_of_the_model(server, model_paths):
    texts = ["the cat", "it is red. " * 3, "a"] * 8
    status, _, body = server.ask(PATH, {"model": "embedder", "input": texts})
    assert status == 200
    found = np.array([entry["embedding"] for entry in body["data"]])
    np.testing.assert_allclose(found, load(model_paths["embedder"]).embed(texts).numpy(), atol=1e-5)
    assert [entry["index"] for entry in body["data"]] == list(range(len(texts)))
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > len(texts)


def test_vectors_can_be_sent_as_base64(server):
    plain = server.ask(PATH, {"model": "embedder", "input": "the cat"})[2]["data"][0]["embedding"]
    encoded = server.ask(PATH, {"model": "embedder", "input": "the cat", "encoding_format": "base64"})[2]
    np.testing.assert_array_equal(
        np.frombuffer(base64.b64decode(encoded["data"][0]["embedding"]), "<f4"), np.array(plain, "<f4")
    )


def test_trained_encoders_make_vectors_too(server):
    assert server.ask(PATH, {"model": "classifier", "input": "the cat"})[0] == 200


@pytest.mark.parametrize("name", ["embedder", "classifier"])
def test_a_text_longer_than_the_model_reads_is_refused_with_the_limit(server, model_paths, name):
    limit = load(model_paths[name]).model.config.max_len
    status, _, body = server.ask(PATH, {"model": name, "input": ["the cat", "cat " * 2000]})
    assert status == 400
    assert re.match(rf"input 2 of 2 has \d+ tokens: expected at most {limit}, ", body["error"]["message"])
    assert (body["error"]["param"], body["error"]["code"]) == ("input", "context_length_exceeded")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": "chat"}, "model"),
        ({"dimensions": 7}, "dimensions"),
        ({"input": ["a"] * 300}, "input"),
        ({"input": []}, "input"),
        ({"input": [1, 2]}, "input"),
        ({"encoding_format": "hex"}, "encoding_format"),
    ],
)
def test_a_wrong_request_names_the_field(server, changes, field):
    status, _, body = server.ask(PATH, {"model": "embedder", "input": "a", **changes})
    assert status == 400
    assert body["error"]["param"].split(".")[0] == field


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([[5, 6]], "input=[[5, 6]]: expected texts, not token ids"),
        ([5, 6], "check_embedding_ctx_length=False"),
        (["a", ""], "expected a text that is not empty, or a list of such texts"),
        ("", "expected a text that is not empty"),
        ({"text": "a"}, "expected a text that is not empty"),
    ],
)
def test_what_cannot_be_embedded_is_refused_with_what_to_send(server, given, expected):
    status, _, body = server.ask(PATH, {"model": "embedder", "input": given})
    assert status == 400
    assert expected in body["error"]["message"]
