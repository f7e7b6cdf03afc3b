import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.serve.tool_calls import ToolCallFilter, parse_tool_calls

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def test_a_call_is_taken_out_of_the_text():
    text, (call,) = parse_tool_calls(f"Let me see. {CALL}")
    assert text == "Let me see."
    assert call["function"]["name"] == "add"
    assert json.loads(call["function"]["arguments"]) == {"a": 1}
    assert call["id"].startswith("call_")


def test_several_calls_are_numbered():
    _, calls = parse_tool_calls(CALL + CALL)
    assert [call["index"] for call in calls] == [0, 1]
    assert calls[0]["id"] != calls[1]["id"]


@pytest.mark.parametrize(
    "answer", ["", "no call", "<tool_call>", "<tool_call>{}</tool_call>", "<tool_call>[1]</tool_call> x", "a <tool_ca"]
)
def test_what_is_no_call_stays_text(answer):
    assert parse_tool_calls(answer) == (answer, [])


@given(
    parts=st.lists(st.sampled_from(["a", "<", "tool", "<tool_call>", CALL, "call>", " "]), max_size=6),
    cuts=st.lists(st.integers(0, 80)),
)
def test_a_streamed_answer_is_the_same_answer(parts, cuts):
    answer = "".join(parts)
    places = sorted({0, len(answer), *(cut for cut in cuts if cut < len(answer))})
    stream = ToolCallFilter()
    text = "".join(stream.push(answer[a:b]) for a, b in pairwise(places))
    rest, calls = stream.finish()
    whole, expected = parse_tool_calls(answer)
    assert len(calls) == len(expected)
    assert (text + rest).rstrip() == whole.rstrip()
