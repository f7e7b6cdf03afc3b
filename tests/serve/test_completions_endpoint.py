import json

import pytest

PATH = "/v1/completions"
GREEDY = {"model": "chat", "prompt": "the cat", "max_tokens": 6, "temperature": 0}


def complete(server, **changes):
    status, _, body = server.ask(PATH, {**GREEDY, **changes})
    assert status == 200, body
    return body


def joined(events):
    """Put the pieces of a stream together, as text, tokens and finish reason by index."""
    texts, tokens, reasons = {}, {}, {}
    for event in events:
        for choice in event["choices"]:
            index = choice["index"]
            texts[index] = texts.get(index, "") + choice["text"]
            if choice["logprobs"]:
                tokens.setdefault(index, []).extend(choice["logprobs"]["tokens"])
            reasons[index] = choice["finish_reason"] or reasons.get(index)
    return texts, tokens, reasons


def test_a_text_is_continued(server):
    body = complete(server)
    (choice,) = body["choices"]
    assert choice["text"]
    assert choice["finish_reason"] in ("stop", "length")
    assert body["usage"]["completion_tokens"] <= 6
    assert body["object"] == "text_completion"
    assert complete(server)["choices"] == body["choices"]


def test_a_prompt_of_tokens_is_the_same_prompt(server):
    logs = complete(server, echo=True, max_tokens=0, logprobs=0)["choices"][0]["logprobs"]
    assert "".join(logs["tokens"]) == "the cat"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n": 3, "temperature": 0.9, "seed": 5},
        {"n": 2},
        {"prompt": ["the", "old cat", "it is"], "seed": 3, "temperature": 1.5, "n": 2},
        {"logprobs": 3, "echo": True},
        {"echo": True, "max_tokens": 0, "logprobs": 2},
        {"stop": [" c", "e"], "temperature": 1, "seed": 8, "max_tokens": 40},
        {"presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1.2, "top_k": 20, "seed": 1},
        {"response_format": {"type": "regex", "pattern": "[a-z]{3,8} [0-9]+"}, "seed": 4, "temperature": 1},
    ],
)
def test_a_stream_adds_up_to_the_whole(server, changes):
    whole = complete(server, **changes)
    events = server.stream(PATH, {**GREEDY, **changes, "stream_options": {"include_usage": True}})
    texts, tokens, reasons = joined(events)
    for choice in whole["choices"]:
        assert texts[choice["index"]] == choice["text"]
        assert reasons[choice["index"]] == choice["finish_reason"]
        if choice["logprobs"]:
            assert tokens[choice["index"]] == choice["logprobs"]["tokens"]
    count = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [events[-1]["usage"][name] for name in count] == [whole["usage"][name] for name in count]
    assert events[-1]["choices"] == []


def test_choices_are_numbered_by_prompt_and_sample(server):
    body = complete(server, prompt=["the", "cat"], n=2, temperature=1, seed=1)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    alone = complete(server, prompt="cat", n=2, temperature=1, seed=1)
    assert [choice["text"] for choice in body["choices"][2:]] == [choice["text"] for choice in alone["choices"]]


def test_stop_strings_and_biases_hold(server):
    free = complete(server, max_tokens=20)["choices"][0]["text"]
    stop = free[len(free) // 2 :][:2]
    cut = complete(server, max_tokens=20, stop=stop)["choices"][0]
    assert cut["text"] == free[: free.index(stop)]
    assert cut["finish_reason"] == "stop"
    logs = complete(server, logprobs=1, logit_bias={"100": 100})["choices"][0]["logprobs"]
    assert len({*logs["tokens"]}) == 1


def test_log_probabilities_have_the_format_of_completions(server):
    (choice,) = complete(server, logprobs=2, echo=True)["choices"]
    logs = choice["logprobs"]
    assert choice["text"].startswith("the cat")
    assert {len(values) for values in logs.values()} == {len(logs["tokens"])}
    assert logs["token_logprobs"][0] is None
    assert all(value <= 0 for value in logs["token_logprobs"][1:])
    assert all(len(top) <= 2 for top in logs["top_logprobs"][1:])
    for token, value, top in list(zip(logs["tokens"], logs["token_logprobs"], logs["top_logprobs"], strict=True))[3:]:
        assert max(top.values()) == pytest.approx(value), f"greedy search takes the likeliest token, {token!r}"


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"max_tokens": 10**6}, "max_tokens", "expected at most 4096"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"prompt": "cat " * 2000}, "prompt", "expected at most 512"),
        ({"prompt": "cat " * 2000, "echo": True, "logprobs": 1, "max_tokens": 0}, "prompt", "expected at most 512"),
        ({"prompt": []}, "prompt", "expected 1 to 256"),
        ({"prompt": ["a"] * 300}, "prompt", "expected 1 to 256"),
        ({"prompt": [10**6]}, "prompt", "token ids from 0"),
        ({"prompt": [[]]}, "prompt", "at least one token"),
        ({"best_of": 4}, "best_of", "the value of n"),
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream=true"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "token ids"),
        ({"n": 100}, "n", "expected at most 32"),
        ({"model": "translator"}, "model", "/v1/tasks/translator"),
        ({"response_format": {"type": "regex", "pattern": "("}}, "response_format", "cannot be followed"),
    ],
)
def test_a_wrong_request_names_the_field_and_what_is_allowed(server, changes, field, message):
    status, _, body = server.ask(PATH, {**GREEDY, **changes})
    assert status == 400
    assert body["error"]["param"] == field
    assert message in body["error"]["message"]
    assert json.dumps(body)


def test_a_text_ends_with_the_context(server):
    body = complete(server, prompt="cat " * 125, max_tokens=4000, logit_bias={"2": -100})
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] <= 513
