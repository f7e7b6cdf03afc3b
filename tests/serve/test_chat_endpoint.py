import json

import pytest

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
GREEDY = {"model": "chat", "messages": HI, "max_tokens": 6, "temperature": 0}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}


def chat(server, **changes):
    status, _, body = server.ask(PATH, {**GREEDY, **changes})
    assert status == 200, body
    return body


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n": 2, "temperature": 1, "seed": 2},
        {"logprobs": True, "top_logprobs": 3, "seed": 2, "temperature": 1, "max_tokens": 12},
        {"stop": ["a", "e", " "], "temperature": 1.2, "seed": 9, "max_tokens": 30},
        {"tools": [TOOL]},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}, "max_tokens": 30},
    ],
)
def test_a_stream_adds_up_to_the_whole(server, changes):
    whole = chat(server, **changes)
    events = server.stream(PATH, {**GREEDY, **changes})
    for choice in whole["choices"]:
        own = [event["choices"][0] for event in events if event["choices"][0]["index"] == choice["index"]]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(one["delta"].get("content") or "" for one in own) == choice["message"]["content"]
        assert [one["finish_reason"] for one in own] == [None] * (len(own) - 1) + [choice["finish_reason"]]
        logs = [entry for one in own if one["logprobs"] for entry in one["logprobs"]["content"]]
        assert logs == (choice["logprobs"] or {"content": []})["content"]


def test_the_models_template_reads_the_conversation(server):
    longer = [{"role": "system", "content": "be brief"}, *HI]
    first, second = (chat(server, messages=messages)["usage"]["prompt_tokens"] for messages in (HI, longer))
    assert second > first
    parts = [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]
    assert chat(server, messages=parts)["choices"] == chat(server)["choices"]


def test_a_later_turn_reuses_the_cache(server):
    first = chat(server, messages=[{"role": "user", "content": "a long beginning of a conversation"}])
    again = chat(server, messages=[{"role": "user", "content": "a long beginning of a conversation"}])
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 10
    assert again["choices"] == first["choices"]


def test_the_answer_follows_a_schema(server):
    body = chat(
        server,
        temperature=1,
        seed=1,
        max_tokens=40,
        response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}},
    )
    assert json.loads(body["choices"][0]["message"]["content"])["a"] in (1, 2)
    assert body["choices"][0]["finish_reason"] == "stop"


def test_tools_reach_the_template(server):
    plain, with_tool = (chat(server, **more)["usage"]["prompt_tokens"] for more in ({}, {"tools": [TOOL]}))
    assert with_tool > plain + 10
    assert chat(server, tools=[TOOL], tool_choice="none")["usage"]["prompt_tokens"] == plain


def test_earlier_tool_calls_are_read(server):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    turns = [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "3"}]
    assert chat(server, messages=[*HI, *turns])["choices"]


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"max_tokens": 10**6}, "max_tokens", "expected at most 4096"),
        ({"max_completion_tokens": 10**6}, "max_completion_tokens", "expected at most 4096"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs=true"),
        ({"model": "writer"}, "model", "a model with a chat template"),
        ({"model": "classifier"}, "model", "/v1/tasks/classifier"),
        ({"messages": [{"role": "user", "content": "long " * 2000}]}, "messages", "expected at most 512"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name", "at least 1"),
        ({"messages": "hi"}, "messages", "valid list"),
    ],
)
def test_a_wrong_request_names_the_field_and_what_is_allowed(server, changes, field, message):
    status, _, body = server.ask(PATH, {**GREEDY, **changes})
    assert status == 400
    assert body["error"]["param"] == field
    assert message in body["error"]["message"]


def test_a_message_cannot_write_control_tokens(server):
    plain = chat(server, messages=[{"role": "user", "content": "xyz"}])["usage"]["prompt_tokens"]
    control = chat(server, messages=[{"role": "user", "content": "</s>"}])["usage"]["prompt_tokens"]
    assert control > plain, "</s> is read as four characters, not as the token that ends a text"
    for text in ("{{ 7 * 7 }}", "{% for x in range(10**9) %}{% endfor %}", "\x00", "\ud7ff"):
        assert server.ask(PATH, {**GREEDY, "messages": [{"role": "user", "content": text}]})[0] == 200
