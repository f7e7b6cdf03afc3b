"""A conversation as the ids a model reads: its chat template's control tokens, and everybody's words as mere words.

The template decides where control tokens stand, and nothing in a message can add one. So each character of the rendered
text must be known to be the template's or a message's. Three ways lead there:

1. Render again with a random mark in place of every text in the messages. Where the result, with the texts put back,
   is the first rendering, what is not a text is the template's.
2. A template that looks into its messages renders the marks otherwise. Then render with every control token that the
   template itself writes under a random name; what bears such a name is the template's.
3. A template may put a token together, as in `'<|' + message.role + '|>'`. Where no message holds a control token, and
   the rendering with marks has the same ones in the same order, all of them are the template's.
"""

import functools
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from glassformer.text.chat_template import ChatTemplate
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer

Parts = list[tuple[str, bool]]
"""A text in parts, each with whether the template wrote it."""

# Roles and types that templates compare with: part of the form of a conversation, not of what is said in it.
# fmt: off
_WORDS = frozenset((
    "assistant", "developer", "function", "ipython", "model", "observation", "system", "tool", "tool_calls",
    "tool_results", "user",
    "array", "audio", "boolean", "document", "image", "image_url", "integer", "null", "number", "object", "string",
    "text", "tool_result", "tool_use", "video",
))
# fmt: on
_PLAIN_KEY = re.compile(r"[\w$.-]*")


def render_chat(
    messages: Sequence[Mapping[str, Any]],
    template: str,
    tokenizer: PretrainedTokenizer,
    *,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """The ids of a conversation, each message a `{"role": ..., "content": ...}`, by a Jinja template.

    With `add_generation_prompt` it ends where the model's answer begins. `variables` are for the template, such as
    `tools`. Control tokens in messages and variables are spelled out. A template that takes too long, grows too large
    or reaches for the machine is stopped with a ValueError.
    """
    said = {"tools": None, "documents": None, **(variables or {}), "messages": list(messages)}
    try:
        said = _map(said, lambda text: text)
    except RecursionError as error:
        raise ValueError("the messages are nested too deeply: expected a few levels") from error
    return tokenizer.encode_parts(_origins(template, said, add_generation_prompt, tokenizer))


def _origins(source: str, said: dict[str, Any], prompt: bool, tokenizer: PretrainedTokenizer) -> Parts:
    """The rendered text, by who wrote which part of it."""
    now = datetime.now()  # one time for all renderings

    def render(template: ChatTemplate, roles: Mapping[str, str], said: Mapping[str, Any]) -> str:
        return template.render({**roles, "add_generation_prompt": prompt, **said}, now)

    template, roles = _compiled(source), tokenizer.named_tokens
    text = render(template, roles, said)
    control = re.compile("|".join(map(re.escape, tokenizer.control_tokens)) or "(?!)")
    if control.search(text) is None:
        return [(text, False)]
    secret = secrets.token_hex(16)
    marks: dict[str, str] = {}  # one for each text, so that equal texts stay equal

    def mark(original: str) -> str:
        if not original.strip():
            return original  # a template may ask whether there is anything; a blank is no control token
        return marks.setdefault(original, f"{secret}m{len(marks):08d}")

    marked = _map(said, mark)
    try:
        skeleton = render(template, roles, marked)
    except ValueError:  # it does not like the marks
        skeleton = ""
    parts = _align(text, re.split(f"{secret}m([0-9]{{8}})", skeleton), list(marks))
    if parts is not None:
        return parts

    names = {token: f"{secret}t{index:08d}" for index, token in enumerate(tokenizer.control_tokens)}
    tokens = {name: token for token, name in names.items()}
    template, roles = ChatTemplate(source, names), {role: names.get(token, token) for role, token in roles.items()}
    pieces = re.split(f"({secret}t[0-9]{{8}})", render(template, roles, said))
    parts = [(tokens.get(piece, piece), piece in tokens) for piece in pieces]
    # A control token put together from pieces, or from words the template compares with, has no name of its own.
    try:
        bare = control.search(render(template, roles, marked))
    except ValueError:
        bare = _unsaid(parts, control, marks)
    if bare is not None or "".join(part for part, _ in parts) != text:
        if not any(map(control.search, marks)) and control.findall(skeleton) == control.findall(text):
            pieces = re.split(f"({control.pattern})", text)
            return [(piece, index % 2 == 1) for index, piece in enumerate(pieces)]
        raise ValueError(
            "the chat template mixes its control tokens with what the messages say: expected to tell them apart"
            + (f", but {bare[0]!r} could be either's" if bare else "")
        )
    return parts


def _unsaid(parts: Parts, control: re.Pattern[str], texts: Iterable[str]) -> re.Match[str] | None:
    """A control token without a name that no text holds, so that the template must have had a part in it."""
    bare = (found for part, is_named in parts if not is_named for found in control.finditer(part))
    return next((found for found in bare if not any(found[0] in text for text in texts)), None)


def _align(text: str, skeleton: Sequence[str], originals: Sequence[str]) -> Parts | None:
    """The text as the skeleton's parts, template and number of a mark in turn, with an original for each mark."""
    # Each way to come to a place in the text, as (the way before, its last part); any is as good as another.
    ways: dict[int, Any] = {len(skeleton[0]): (None, (skeleton[0], True))} if text.startswith(skeleton[0]) else {}
    for number, after in zip(skeleton[1::2], skeleton[2::2], strict=True):
        found: dict[int, Any] = {}
        for place, way in ways.items():
            for variant in _variants(originals[int(number)]):
                if text.startswith(variant + after, place):
                    found.setdefault(place + len(variant + after), ((way, (variant, False)), (after, True)))
        ways = found
    way, parts = ways.get(len(text)), []
    while way is not None:
        way, part = way
        parts.append(part)
    return parts[::-1] or None


def _variants(original: str) -> list[str]:
    """What templates make of a text: nothing, its ends trimmed, or JSON."""
    as_json = json.dumps(original, ensure_ascii=False)[1:-1]
    return list(dict.fromkeys((original, original.strip(), original.lstrip(), original.rstrip(), as_json)))


def _map(value: Any, change: Callable[[str], str], key: str = "") -> Any:
    """A copy of plain values with each text changed: keys too, unless they are plain words; roles and types stay."""
    if isinstance(value, str):
        return value if key in ("role", "type") and value in _WORDS else change(value)
    if isinstance(value, Mapping):
        return {_key(name, change): _map(item, change, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map(item, change, key) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    raise ValueError(f"{key or 'a message'} is a {type(value).__name__}: expected text, numbers, lists, dictionaries")


def _key(name: Any, change: Callable[[str], str]) -> str:
    return name if _PLAIN_KEY.fullmatch(str(name)) else change(str(name))


@functools.lru_cache(maxsize=16)
def _compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source)
