"""Tool calls that a model writes into its answer, as in `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

Many models with tools in their chat template were trained to write this form (Hermes, Qwen, SmolLM). Text of another
form stays text.
"""

import json
import uuid
from typing import Any, NamedTuple

BEGIN_CALL, END_CALL = "<tool_call>", "</tool_call>"


class ParsedAnswer(NamedTuple):
    """The text of an answer and its tool calls, in OpenAI's form."""

    text: str
    calls: list[dict[str, Any]]


def parse_tool_calls(answer: str) -> ParsedAnswer:
    """Split a complete answer into its text and its tool calls. A call that is not valid JSON stays text."""
    text, *rest = answer.split(BEGIN_CALL)
    calls: list[dict[str, Any]] = []
    for part in rest:
        inside, _, after = part.partition(END_CALL)
        call = _read_call(inside, len(calls))
        if call is None:
            text += BEGIN_CALL + part
        else:
            calls.append(call)
            text += after if after.strip() else ""
    return ParsedAnswer(text.rstrip() if calls else answer, calls)


class ToolCallFilter:
    """Holds back the part of a streamed answer that may be tool calls, until the answer is complete."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, piece: str) -> str:
        """Take a piece of the answer, and return the text that is no tool call for certain."""
        self._held += piece
        place = self._held.find(BEGIN_CALL)
        if place < 0:
            sizes = range(min(len(self._held), len(BEGIN_CALL) - 1), 0, -1)
            place = len(self._held) - next((n for n in sizes if BEGIN_CALL.startswith(self._held[-n:])), 0)
        free, self._held = self._held[:place], self._held[place:]
        return free

    def finish(self) -> ParsedAnswer:
        """Return the text that was held back, and the tool calls."""
        return parse_tool_calls(self._held)


def _read_call(text: str, index: int) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = json.dumps(found.get("arguments", found.get("parameters", {})), ensure_ascii=False)
    function = {"name": found["name"], "arguments": arguments}
    return {"index": index, "id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}
