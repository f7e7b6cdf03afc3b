import json
import time

from glassformer.serve.access_log import note_fact

PROMPT = {"model": "chat", "prompt": "a secret text", "max_tokens": 2}


def lines_of(server, path):
    found = [json.loads(line) for line in server.log if line.startswith("{")]
    return [line for line in found if line["path"] == path]


def line_of(server, path, number):
    """Return the line of a request, which may arrive a little later than its answer."""
    for _ in range(200):
        found = [line for line in lines_of(server, path) if line["id"] == number]
        if found:
            return found[0]
        time.sleep(0.05)
    raise AssertionError("the request was not logged")


def test_a_request_is_one_line_of_json_without_its_text(server):
    status, headers, _ = server.ask("/v1/completions", PROMPT)
    line = line_of(server, "/v1/completions", headers["X-Request-Id"])
    assert status == line["status"] == 200
    assert (line["method"], line["model"], line["completion_tokens"]) == ("POST", "chat", 2)
    assert line["prompt_tokens"] > 2
    assert "secret" not in "".join(server.log)
    assert 'path="/v1/completions",status="200"' in server.ask("/metrics")[2]


def test_texts_are_logged_if_that_is_asked_for(guarded):
    assert guarded.ask("/v1/completions", PROMPT, headers={"Authorization": "Bearer k3"})[0] == 200
    guarded.ask("/health")
    assert "a secret text" in lines_of(guarded, "/v1/completions")[-1]["body"]


def test_facts_outside_a_logged_request_are_dropped():
    note_fact({}, model="x")
