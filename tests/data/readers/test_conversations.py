"""Conversations in OpenAI's and ShareGPT's shapes, pairs of answers, and the records that are refused."""

import json

import pytest

from glassformer.data.readers.conversations import (
    CONVERSATION_COLUMNS,
    PREFERENCE_COLUMNS,
    make_conversation,
    make_preference,
)
from glassformer.data.readers.records import BadRecordError, RecordReader

USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}


def read(path, record, columns=CONVERSATION_COLUMNS, make=make_conversation):
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    (found,) = RecordReader((path,), columns, make)
    return found


def test_both_shapes_give_the_same_conversation(tmp_path):
    path = tmp_path / "a.jsonl"
    shared = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
    parts = [USER, {"role": "assistant", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]
    expected = read(path, {"messages": [USER, ANSWER]})
    assert expected.messages == (USER, ANSWER)
    assert expected.where == f"{path}:1"
    assert read(path, {"conversations": shared}) == expected == read(path, {"messages": parts})
    with_system = read(path, {"conversations": shared, "system": "be brief"})
    assert with_system.messages == ({"role": "system", "content": "be brief"}, USER, ANSWER)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"text": "hi"}, "neither 'messages' nor 'conversations'"),
        ({"messages": []}, "'messages' is .*: expected a list of messages"),
        ({"messages": ["hi"]}, r"messages\[0\] is 'hi': expected an object with role and content"),
        (
            {"messages": [{"role": "boss", "content": "x"}]},
            r"messages\[0\] has the role 'boss': expected one",
        ),
        ({"messages": [USER, {"role": "assistant", "content": 3}]}, r"messages\[1\].content is 3: expected a text"),
        ({"messages": [USER]}, "no message of the assistant"),
        ({"messages": [USER, {"role": "assistant", "content": "\ud800"}]}, "half a surrogate pair"),
        (
            {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]}]},
            r"messages\[1\].tool_calls is .*: expected none",
        ),
        ({"messages": [USER, {**ANSWER, "reasoning_content": "hm"}]}, r"messages\[1\].reasoning_content is 'hm'"),
        ({"messages": [USER, {**ANSWER, "weight": 0}]}, r"messages\[1\].weight is 0: expected 1"),
        ({"messages": [USER, ANSWER], "tools": [{"type": "function"}]}, "'tools' is .*: expected none"),
        ({"messages": [{"role": "system", "content": "a"}, USER, ANSWER], "system": "b"}, "'system' is 'b', and"),
    ],
)
def test_a_bad_conversation_is_named(record, problem, tmp_path):
    with pytest.raises(BadRecordError, match=rf"a\.jsonl:1: {problem}"):
        read(tmp_path / "a.jsonl", record)


def test_fields_that_say_nothing_are_no_error(tmp_path):
    path = tmp_path / "a.jsonl"
    answer = {**ANSWER, "tool_calls": None, "function_call": None, "refusal": None, "audio": None, "weight": 1}
    assert read(path, {"messages": [USER, answer], "tools": [], "system": None}).messages == (USER, ANSWER)
    system = {"role": "system", "content": "be brief"}
    for text in ("be brief", ""):
        assert read(path, {"messages": [system, USER, ANSWER], "system": text}).messages == (system, USER, ANSWER)


def test_pairs_of_answers_are_texts_or_messages(tmp_path):
    def pair(record):
        return read(tmp_path / "a.jsonl", record, PREFERENCE_COLUMNS, make_preference)

    expected = pair({"prompt": "hi", "chosen": "hello", "rejected": "no"})
    assert (expected.messages, expected.chosen, expected.rejected) == ((USER,), "hello", "no")
    sides = {"chosen": [USER, ANSWER], "rejected": [USER, {"role": "assistant", "content": "no"}]}
    assert pair(sides) == pair({"prompt": [USER], **sides}) == expected
    for record, problem in (
        ({"chosen": "a", "rejected": "b"}, "no prompt"),
        ({"prompt": "hi", "chosen": "a"}, "'rejected' is None: expected a text or a list of messages"),
        ({"prompt": "hi", "chosen": [ANSWER, USER], "rejected": "b"}, "the last message of 'chosen' is of 'user'"),
        ({"chosen": [USER, ANSWER], "rejected": [ANSWER]}, "differ before their last message"),
        ({"prompt": "hi", "chosen": "a", "rejected": "b", "tools": [{}]}, "'tools' is .*: expected none"),
        ({"prompt": "hi", "chosen": [{**ANSWER, "tool_calls": [{}]}], "rejected": "b"}, r"chosen\[0\].tool_calls is"),
    ):
        with pytest.raises(BadRecordError, match=problem):
            pair(record)
