"""Flags that are the fields of a config: what was given on the command line, and the help that lists them."""

import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from glassformer.base.fields import UnfitError, as_field, parts_of
from glassformer.base.names import nearest
from glassformer.tasks.configs.options import AUTOMATIC, Option

HELP, HELP_ALL = ("-h", "--help"), "--help-all"
TRUTHS = {"true": True, "yes": True, "false": False, "no": False}
INDENT = 26
"""Column of the sentences in the help."""


class UsageError(ValueError):
    """A command line that cannot be understood."""

    exit_code = 2


def parse_options(arguments: Sequence[str], options: Mapping[str, Option], command: str) -> dict[str, Any]:
    """The values that were given on the command line, by option name; what was not given is not there.

    `--name value`, `--name=value`, several values where the option is a list, `--name` or `--no-name` where it is true
    or false. Hyphens and underscores are the same. `command` is for errors.
    """
    given: dict[str, Any] = {}
    waiting = list(arguments)
    while waiting:
        first, has_value, value = waiting.pop(0).partition("=")
        name = first.removeprefix("--").replace("-", "_")
        if not first.startswith("--") or not name:
            raise UsageError(f"{first!r} is not expected here: expected an option, such as {_example(options)}")
        if name.startswith("no_") and name not in options and _is_switch(options.get(name[3:])) and not has_value:
            given[name[3:]] = False
            continue
        if name not in options:
            raise UsageError(_unknown(first, options, command))
        option = options[name]
        values = [value] if has_value else []
        while waiting and not has_value and not waiting[0].startswith("--"):
            if values and not _is_list(option):
                break
            if _is_switch(option) and waiting[0].lower() not in TRUTHS:
                break
            values.append(waiting.pop(0))
        if not values and _is_switch(option):
            values = ["true"]
        if not values:
            raise UsageError(f"{option.flag} has no value: expected {_metavar(option)} after it")
        given[name] = _read(option, values)
    return given


def help_text(usage: str, about: str, options: Iterable[Option], more: str = "") -> str:
    """The help: usage, a description, the options under their sections, and where to find more."""
    width = min(100, max(60, shutil.get_terminal_size().columns))
    paragraphs = [f"usage: {usage}", textwrap.fill(about, width)]
    sections: dict[str, list[str]] = {}
    for option in options:
        sections.setdefault(option.section, []).append(_describe(option, width))
    paragraphs += [f"{section}:\n" + "\n".join(lines) for section, lines in sections.items()]
    return "\n\n".join([*paragraphs, *([textwrap.fill(more, width)] if more else [])])


def _describe(option: Option, width: int) -> str:
    first = f"  {option.flag} {_metavar(option)}".rstrip()
    if _is_switch(option) and option.default is True:
        first = f"  --[no-]{option.flag[2:]}"
    text = option.about
    if option.path in AUTOMATIC:
        text += " (default: chosen for the data and the time)"
    elif "(default" not in text and (usual := _default(option)):
        text += f" (default: {usual})"
    lines = textwrap.wrap(text, width - INDENT, break_on_hyphens=False) or [""]
    padded = [" " * INDENT + line for line in lines]
    if len(first) < INDENT - 1:
        return "\n".join([first.ljust(INDENT) + lines[0], *padded[1:]])
    return "\n".join([first, *padded])


def _default(option: Option) -> str:
    """The default as the command line would spell it; empty where none is worth a word."""
    value = option.default
    if isinstance(value, bool):
        return "on" if value else ""
    if value is None or value == "" or value == ():
        return ""
    return " ".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}" if _is_float(option) else str(value)


def _metavar(option: Option) -> str:
    kind, _, _ = parts_of(option.hint)
    if _is_switch(option):
        return ""
    if get_origin(kind) is Literal:
        return "|".join(choice for choice in get_args(kind) if choice)
    if get_origin(kind) is tuple:
        return {Path: "PATH ...", int: "N ..."}.get(get_args(kind)[0], "TEXT ...")
    return {Path: "PATH", int: "N", float: "X", bool: "true|false"}.get(kind, "TEXT")


def _read(option: Option, texts: list[str]) -> Any:
    """The value of an option, from its words on the command line."""
    kind, _, is_optional = parts_of(option.hint)
    told = f"{option.flag} {' '.join(texts)}"
    if is_optional and texts[0].lower() == "none":
        return None
    try:
        if get_origin(kind) is tuple:
            return as_field(option.hint, tuple(_word(get_args(kind)[0], text) for text in texts))
        return as_field(option.hint, _word(kind, texts[0]))
    except UnfitError as error:
        raise UsageError(f"{told}: expected {error.expected}") from None


def _word(kind: Any, text: str) -> Any:
    """One word as a value of this type; the word itself where it cannot be, which `as_field` then refuses."""
    if kind is bool:
        return TRUTHS.get(text.lower(), text)
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return text
    return text


def _unknown(flag: str, options: Mapping[str, Option], command: str) -> str:
    near = nearest(flag.removeprefix("--no-"), [option.flag for option in options.values()])
    hint = f"did you mean {near}?" if near else f"{command} {HELP_ALL} lists all options"
    return f"{flag} is no option of {command}: {hint}"


def _example(options: Mapping[str, Option]) -> str:
    return next(name for name in ("source", "data") if name in options).join(("--", " PATH"))


def _is_switch(option: Option | None) -> bool:
    return option is not None and option.hint is bool


def _is_list(option: Option) -> bool:
    return get_origin(parts_of(option.hint)[0]) is tuple


def _is_float(option: Option) -> bool:
    return parts_of(option.hint)[0] is float
