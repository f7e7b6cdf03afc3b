"""Read conversations and preferred answers from JSONL files, in OpenAI's and ShareGPT's shapes.

OpenAI: `{"messages": [{"role": "user", "content": "..."}, ...]}`. ShareGPT: `{"conversations": [{"from": "human",
"value": "..."}, ...]}`, with an optional `system`. A pair of answers has `prompt`, `chosen` and `rejected`; each is a
text or a list of messages. Errors name the file and line. Fields that a plain text cannot express, such as tool calls,
are errors, because the model would learn the conversation without them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.base.checks import shown
from glassformer.data.readers.records import Record, has_lone_surrogate, lone_surrogate

CONVERSATION_COLUMNS = ("messages", "conversations", "system", "tools")
PREFERENCE_COLUMNS = ("prompt", "chosen", "rejected", "system", "tools")
UNREAD_FIELDS = ("tool_calls", "function_call", "reasoning_content", "audio", "refusal")
"""Fields of OpenAI's messages that are not read: a message that has one of them is refused."""
ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
"""Names of roles in ShareGPT's shape that OpenAI's shape spells differently."""
KNOWN_ROLES = ("system", "developer", "user", "assistant", "tool", "function", "model")
Message = Mapping[str, str]


@dataclass(frozen=True)
class Conversation:
    """A conversation: messages with a role and a content, of which at least one is the assistant's."""

    messages: tuple[Message, ...]
    where: str = ""


@dataclass(frozen=True)
class AnswerPair:
    """A conversation that ends with a question, and two answers, of which the first is preferred."""

    messages: tuple[Message, ...]
    chosen: str
    rejected: str
    where: str = ""


def make_conversation(record: Record) -> Conversation:
    """Return the conversation of a record with the columns CONVERSATION_COLUMNS. Raise ValueError for a bad one."""
    openai, sharegpt, system, tools = record.cells
    if openai is None and sharegpt is None:
        raise ValueError("neither 'messages' nor 'conversations': expected a list of messages under one of them")
    messages = read_messages(
        sharegpt if openai is None else openai, "messages" if openai is not None else "conversations"
    )
    messages = _with_system(messages, system, tools)
    if not any(message["role"] == "assistant" for message in messages):
        raise ValueError("no message of the assistant: expected at least one, which the model learns")
    return Conversation(messages, record.where)


def make_preference(record: Record) -> AnswerPair:
    """Return the preference of a record with the columns PREFERENCE_COLUMNS. Raise ValueError for a bad one.

    Without a prompt, `chosen` and `rejected` are whole conversations that differ in their last message only.
    """
    prompt, chosen, rejected, system, tools = record.cells
    before = () if prompt is None else _as_messages(prompt, "prompt", "user")
    sides = [_as_messages(side, name, "assistant") for side, name in ((chosen, "chosen"), (rejected, "rejected"))]
    for side, name in zip(sides, ("chosen", "rejected"), strict=True):
        if side[-1]["role"] != "assistant":
            raise ValueError(
                f"the last message of {name!r} is of {side[-1]['role']!r}: expected the assistant's answer"
            )
    starts = [side[:-1] for side in sides]
    if starts[0] != starts[1]:
        raise ValueError("'chosen' and 'rejected' differ before their last message: expected the same conversation")
    rest = starts[0]
    if before and rest[: len(before)] == before:  # the prompt is repeated in both
        rest = rest[len(before) :]
    messages = _with_system((*before, *rest), system, tools)
    if not messages:
        raise ValueError("no prompt: expected a text or messages under 'prompt'")
    return AnswerPair(messages, sides[0][-1]["content"], sides[1][-1]["content"], record.where)


def read_messages(value: object, name: str) -> tuple[Message, ...]:
    """Check a list of messages in OpenAI's or ShareGPT's shape, and return them in OpenAI's."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name!r} is {shown(value)}: expected a list of messages")
    return tuple(_message(one, f"{name}[{place}]") for place, one in enumerate(value))


def _as_messages(value: object, name: str, role: str) -> tuple[Message, ...]:
    if isinstance(value, str):
        return ({"role": role, "content": _text(value, name)},)
    if not isinstance(value, list):
        raise ValueError(f"{name!r} is {shown(value)}: expected a text or a list of messages")
    return read_messages(value, name)


def _message(value: object, name: str) -> Message:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is {shown(value)}: expected an object with role and content")
    role = value.get("role", value.get("from"))
    role = ROLES.get(role, role) if isinstance(role, str) else role
    if role not in KNOWN_ROLES:
        raise ValueError(f"{name} has the role {shown(role)}: expected one of {', '.join(KNOWN_ROLES)}")
    for field in UNREAD_FIELDS:
        if value.get(field):
            raise ValueError(f"{name}.{field} is {shown(value[field])}: expected none, because only content is learned")
    if value.get("weight") not in (None, 1):
        raise ValueError(f"{name}.weight is {shown(value['weight'])}: expected 1, because every answer is learned")
    return {"role": str(role), "content": _text(value.get("content", value.get("value")), f"{name}.content")}


def _text(value: object, name: str) -> str:
    """Return a text, or the texts of OpenAI's content parts joined."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        parts: list[Any] = [part.get("text") if isinstance(part, Mapping) else None for part in value]
        if parts and all(isinstance(part, str) for part in parts):
            value = "".join(parts)
    if not isinstance(value, str):
        raise ValueError(f"{name} is {shown(value)}: expected a text")
    if has_lone_surrogate(value):
        raise ValueError(lone_surrogate(name))
    return value


def _with_system(messages: tuple[Message, ...], system: object, tools: object) -> tuple[Message, ...]:
    """Return the messages after the system message of their record. `tools`, which cannot be learned, are refused."""
    if tools:
        raise ValueError(f"'tools' is {shown(tools)}: expected none, because conversations are learned without tools")
    if system is None:
        return messages
    first: Message = {"role": "system", "content": _text(system, "system")}
    given = [message for message in messages if message["role"] == "system"]
    if given and first not in given and first["content"].strip():
        raise ValueError(f"'system' is {shown(system)}, and a message has the role 'system': expected one of them")
    return messages if given else (first, *messages)
