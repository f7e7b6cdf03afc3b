"""The explain endpoint gives the numbers of `gf.explain`, within its limits; /explore is the page."""

import urllib.request

import numpy as np
import pytest

from glassformer.inspect.explanation import explain
from glassformer.inspect.json_values import unpack
from glassformer.pipelines.load import load

QUICK = ("attention", "lens", "next", "beam")


@pytest.mark.parametrize("name", ["classifier", "writer", "translator", "embedder"])
def test_numbers_are_those_of_the_function(server, model_paths, name):
    status, _, found = server.ask(f"/v1/explain/{name}", {"text": "the old cat", "options": {"max_tokens": 4}})
    assert status == 200, found
    expected = explain(load(model_paths[name]), "the old cat", name=name, max_tokens=4, parts=QUICK).data
    assert found["text"] == expected["text"]
    assert found["output"]["loss"] == pytest.approx(expected["output"]["loss"], abs=1e-4)
    assert found["health"] is None
    assert found["ablation"] is None
    assert len(found["stacks"]) == len(expected["stacks"])


def test_a_head_is_switched_off_for_one_request_only(server):
    body = {"text": "the old cat", "options": {"parts": ["next"]}}
    _, _, before = server.ask("/v1/explain/writer", body)
    changed = {"text": "the old cat", "options": {"parts": ["next"], "ablate": ["decoder.layers.0"]}}
    _, _, without = server.ask("/v1/explain/writer", changed)
    _, _, after = server.ask("/v1/explain/writer", body)
    assert without["baseline"]["output"] == before["output"]
    assert without["next"] != before["next"]
    assert after == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 99}, "options.beam=99: expected less than or equal to 16"),
        ({"max_tokens": 1000}, "options.max_tokens=1000: expected less than or equal to 128"),
        ({"parts": ["all"]}, "parts holds 'all'"),
        ({"ablate": ["x"]}, "no part 'x' to switch off"),
        ({"color": 1}, "color is not a field"),
        ({"position": 500, "parts": ["attribution"]}, "position=500: expected"),
        ({"target": "zq " * 900}, "expected at most"),
    ],
)
def test_wrong_options_are_refused_in_the_form_of_the_server(server, options, message):
    status, _, found = server.ask("/v1/explain/writer", {"text": "the cat", "options": options})
    assert status == 400
    assert message in found["error"]["message"]


@pytest.mark.parametrize("name", ["classifier", "translator"])
def test_a_row_of_attention_is_that_of_the_explanation(server, name):
    body = {"text": "the old cat", "options": {"max_tokens": 4, "parts": ["attention"]}}
    _, _, found = server.ask(f"/v1/explain/{name}", body)
    attention = found["stacks"][-1]["layers"][0]["attention"][-1]
    target = found["text"]["target"]
    asked = {"text": "the old cat", "attention": attention["name"], "query": 1, "target_ids": target and target["ids"]}
    status, _, row = server.ask(f"/v1/attention/{name}", asked)
    assert status == 200, row
    np.testing.assert_allclose(unpack(row["weights"]), unpack(attention["weights"])[:, 1], atol=1e-4)
    status, _, refused = server.ask(f"/v1/attention/{name}", {**asked, "query": 99})
    assert status == 400
    assert "query=99: expected 0 to" in refused["error"]["message"]


def test_unknown_models_and_empty_texts_are_refused(server):
    assert server.ask("/v1/explain/nobody", {"text": "x"})[0] == 404
    assert server.ask("/v1/explain/writer", {"text": ""})[0] == 400
    assert server.ask("/v1/explain/writer", {"text": "x" * 20001})[0] == 400


def test_the_page_is_served_with_its_policy(server):
    with urllib.request.urlopen(f"{server.url}/explore") as answer:
        page = answer.read().decode()
        policy = answer.headers["Content-Security-Policy"]
    assert "<title>" in page
    assert "connect-src 'self'" in policy
    assert "img-src data: blob:" in policy
