"""Encode conversations with a chat template. Only the template can produce control tokens, never a message.

For that, every character of the rendered text must be attributed to the template or to a message. Three methods are
tried:

1. Render again with a random mark in place of every message text. If substituting the texts gives the first rendering,
everything except the texts was written by the template.

2. A template that inspects its messages may render marks differently. Then render with a random name for every control
token that the template itself writes; these names mark the template's tokens.

3. A template may assemble a token, as in `'<|' + message.role + '|>'`. If no message contains a control token, and the
rendering with marks has the same control tokens in the same order, the template wrote all of them.
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
"""A rendered text in parts, each marked True if the template wrote the control tokens in it, so that they count."""

# Values of `role` and `type` that templates compare with. They are not message text, so they get no mark.
# fmt: off
_WORDS = frozenset((
    "assistant", "developer", "function", "ipython", "model", "observation", "system", "tool", "tool_calls",
    "tool_results", "user",
    "array", "audio", "boolean", "document", "image", "image_url", "integer", "null", "number", "object", "string",
    "text", "tool_result", "tool_use", "video",
))
# fmt: on
_PLAIN_KEY = re.compile(r"[\w$.-]*")
_MARK = f"{secrets.token_hex(16)}m"
"""The start of every mark in this process. Results and errors never contain a mark, so clients cannot learn it."""
_SKELETONS: dict[tuple[Any, ...], str] = {}
"""Cache of renderings with marks, by template, variables and form of the conversation. It saves every second one."""
MAX_SKELETONS, MAX_SKELETON_CHARS = 256, 8192
"""How many renderings with marks are kept, and the most characters of one."""


def render_chat(
    messages: Sequence[Mapping[str, Any]],
    template: str,
    tokenizer: PretrainedTokenizer,
    *,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the token ids of a conversation, rendered by a Jinja template.

    Each message is `{"role": ..., "content": ...}`. With `add_generation_prompt` the ids end where the model's answer
    starts. `variables` are passed to the template, such as `tools`. Control tokens in messages and variables are
    encoded as plain text. A template that takes too long, grows too large or accesses the machine is stopped with a
    ValueError.
    """
    said = {"tools": None, "documents": None, **(variables or {}), "messages": list(messages)}
    try:
        said = _map(said, lambda text: text)
    except RecursionError as error:
        raise ValueError("the messages are nested too deeply: expected a few levels") from error
    return tokenizer.encode_parts(_origins(template, said, add_generation_prompt, tokenizer))


def _origins(source: str, said: dict[str, Any], prompt: bool, tokenizer: PretrainedTokenizer) -> Parts:
    """Render a conversation, and return the text in parts that are attributed to the template or to a message.

    `source` is the template. `said` holds its variables, including the messages. `prompt` is `add_generation_prompt`.
    """
    now = datetime.now()  # the same time for all renderings

    def render(template: ChatTemplate, roles: Mapping[str, str], said: Mapping[str, Any]) -> str:
        return template.render({**roles, "add_generation_prompt": prompt, **said}, now)

    template, roles = _compiled(source), tokenizer.named_tokens
    text = render(template, roles, said)
    control = tokenizer.control_pattern
    if control.search(text) is None:
        return [(text, False)]
    marks: dict[str, str] = {}  # equal texts get equal marks

    def mark(original: str) -> str:
        if not original.strip():
            return original  # an empty text stays empty, because templates test for it
        return marks.setdefault(original, f"{_MARK}{len(marks):08d}")

    marked = _map(said, mark)
    key = source, tuple(roles.items()), prompt, json.dumps(marked)
    known = _SKELETONS.get(key, "")  # if the template writes the date, yesterday's skeleton fails to align
    parts = _align(text, _split_marks(known), list(marks)) if known else None
    if parts is not None:
        return parts
    try:
        skeleton = render(template, roles, marked)
    except ValueError:  # the template rejects the marks
        skeleton = ""
    parts = _align(text, _split_marks(skeleton), list(marks))
    if parts is not None:
        _remember(key, skeleton)
        return parts

    secret = secrets.token_hex(16)  # a new one, because an error of the template may contain a name
    names = {token: f"{secret}t{index:08d}" for index, token in enumerate(tokenizer.control_tokens)}
    tokens = {name: token for token, name in names.items()}
    template, roles = ChatTemplate(source, names), {role: names.get(token, token) for role, token in roles.items()}
    pieces = re.split(f"({secret}t[0-9]{{8}})", render(template, roles, said))
    parts = [(tokens.get(piece, piece), piece in tokens) for piece in pieces]
    # A control token assembled from pieces, or from words that the template compares with, has no random name.
    try:
        bare = control.search(render(template, roles, marked))
    except ValueError:
        bare = _unsaid(parts, control, marks)
    if bare is not None or "".join(part for part, _ in parts) != text:
        if not any(map(control.search, marks)) and control.findall(skeleton) == control.findall(text):
            pieces = re.split(f"({control.pattern})", text)
            return [(piece, index % 2 == 1) for index, piece in enumerate(pieces)]
        raise ValueError(
            "the chat template mixes its control tokens with the texts of messages: expected them apart"
            + (f", but {bare[0]!r} could be either's" if bare else "")
        )
    return parts


def _unsaid(parts: Parts, control: re.Pattern[str], texts: Iterable[str]) -> re.Match[str] | None:
    """Return the first control token that neither has a random name nor occurs in a message text, or None.

    The template must have assembled such a token. `parts` are (text, flag) pairs, where the flag is True for a token
    with a random name. `control` matches all control tokens, and `texts` are the message texts.
    """
    bare = (found for part, is_named in parts if not is_named for found in control.finditer(part))
    return next((found for found in bare if not any(found[0] in text for text in texts)), None)


def _align(text: str, skeleton: Sequence[str], originals: Sequence[str]) -> Parts | None:
    """Split a rendered text into parts by aligning it with the skeleton, or return None if they do not match.

    The skeleton is the rendering with marks, as alternating template texts and mark numbers. `originals[n]` is the
    message text that mark n replaces.
    """
    # Each position that an alignment can reach, with (previous state, last part). Any path to the end will do.
    ways: dict[int, Any] = {len(skeleton[0]): (None, (skeleton[0], True))} if text.startswith(skeleton[0]) else {}
    for number, after in zip(skeleton[1::2], skeleton[2::2], strict=True):
        found: dict[int, Any] = {}
        is_whole = number.isdecimal() and int(number) < len(originals)  # else the template has cut the mark
        variants = _variants(originals[int(number)]) if is_whole else []
        for place, way in ways.items():
            for variant in variants:
                if text.startswith(variant + after, place):
                    found.setdefault(place + len(variant + after), ((way, (variant, False)), (after, True)))
        ways = found
    way, parts = ways.get(len(text)), []
    while way is not None:
        way, part = way
        parts.append(part)
    return parts[::-1] or None


def _split_marks(skeleton: str) -> list[str]:
    """Return a rendering with marks as alternating template texts and mark numbers."""
    first, *rest = skeleton.split(_MARK)
    return [first, *(part for piece in rest for part in (piece[:8], piece[8:]))]


def _remember(key: tuple[Any, ...], skeleton: str) -> None:
    """Keep a rendering with marks, unless it is long."""
    if len(key[-1]) + len(skeleton) <= MAX_SKELETON_CHARS:
        if len(_SKELETONS) >= MAX_SKELETONS:
            _SKELETONS.clear()
        _SKELETONS[key] = skeleton


def _variants(original: str) -> list[str]:
    """Return the forms in which templates print a text: unchanged, stripped, or as JSON without the quotes."""
    as_json = json.dumps(original, ensure_ascii=False)[1:-1]
    return list(dict.fromkeys((original, original.strip(), original.lstrip(), original.rstrip(), as_json)))


def _map(value: Any, change: Callable[[str], str], key: str = "") -> Any:
    """Copy messages and variables with `change` applied to each text, except known roles and types such as "user".

    Dictionary keys are changed too, unless they contain only letters, digits and `_ $ . -`. `key` is the key under
    which `value` is stored. Raises ValueError for a value that JSON does not have.
    """
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
