"""Parse command lines and print their help. `base/dataclass_flags.py` makes the flags from dataclasses."""

import inspect
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from glassformer.base.dataclass_flags import Option, field_options
from glassformer.base.fields import InvalidFieldError, as_field, parts_of
from glassformer.base.names import nearest

HELP, HELP_ALL = ("-h", "--help"), "--help-all"
TRUTHS = {"true": True, "yes": True, "false": False, "no": False}
RENAMED_FLAGS = {"--int8": "--quantize int8", "--compiled": "--compile on", "--no-compiled": "--compile off"}
"""Options of earlier versions, and what to write today."""
INDENT = 26
"""Column of the help text where the descriptions of the options start."""


class UsageError(ValueError):
    """A wrong command line: an unknown or missing option, or values that are out of range or contradict each other."""

    exit_code = 2


def parse_options(
    arguments: Sequence[str], options: Mapping[str, Option], command: str, positional: Sequence[Option] = ()
) -> dict[str, Any]:
    """Return the values of the options on the command line, by option name. Options that were not given are missing.

    An option is `--name value` or `--name=value`, with several values if it is a list, or `--name` or `--no-name` if it
    is boolean. Hyphens and underscores in names are the same. Other words are values of the `positional` arguments, and
    so are all words after `--`. `command` is the command's name in error messages.
    """
    given: dict[str, Any] = {}
    waiting, words = list(arguments), []
    while waiting:
        whole = waiting.pop(0)
        first, has_value, value = whole.partition("=")
        name = first.removeprefix("--").replace("-", "_")
        if re.fullmatch("-[A-Za-z][A-Za-z0-9_-]*", first):
            raise UsageError(_unknown(first, options, command))
        if whole == "--" and positional:
            words += waiting
            break
        if positional and not first.startswith("--"):
            words.append(whole)
            continue
        if not first.startswith("--") or not name:
            raise UsageError(f"{whole!r} is not expected here: expected an option, such as {_example(options)}")
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
        if name in given and _is_list(option):  # the first values would be lost
            raise UsageError(f"{option.flag} occurs twice: expected all its values after one {option.flag}")
        given[name] = _read(option, values)
    for option in positional:
        own = words if _is_list(option) else words[:1]
        words = words[len(own) :]
        if own:
            given[option.name] = _read(replace(option, name=option.name.upper()), own)
    if words:
        raise UsageError(f"{words[0]!r} is not expected here: {_use_of(words[0], options, command)}")
    return given


def call_function(function: Callable[..., None], arguments: Sequence[str], command: str) -> None:
    """Call a verb's function with the arguments of the command line, or print its help and exit.

    Parameters before the `*` are positional arguments, and those after it are options. The help is the function's
    docstring, whose `Args` describe the parameters. `command` is the command's name in the help and in errors.
    """
    about, positional, options = function_options(function)
    if {*HELP, HELP_ALL} & {*arguments}:
        words = " ".join(f"[{one.name.upper()}]" if _has_default(one) else one.name.upper() for one in positional)
        needed = " ".join(f"{one.flag} {_metavar(one)}" for one in options.values() if not _has_default(one))
        usage = " ".join(filter(None, (f"glassformer {command}", words, needed, "[OPTIONS]" if options else "")))
        print(help_text(usage, about, [*positional, *options.values()]))
        sys.exit(0)
    given = parse_options(arguments, options, command, positional)
    for option in (*positional, *options.values()):
        if option.name not in given and not _has_default(option):
            name = option.name.upper() if option in positional else option.flag
            expected = "" if option in positional else f"expected {_metavar(option)}; "
            raise UsageError(f"{name} is missing: {expected}glassformer {command} --help shows how to use it")
    first = [given.pop(option.name) for option in positional if option.name in given]
    values = {name: value for name, value in given.items() if "." not in options[name].path}
    for parameter in inspect.signature(function).parameters.values():
        if is_dataclass(parameter.default):
            own = {name: given[name] for name in given if options[name].path == f"{parameter.name}.{name}"}
            values[parameter.name] = replace(parameter.default, **own)  # type: ignore[type-var]
    function(*first, **values)


def function_options(function: Callable[..., None]) -> tuple[str, list[Option], dict[str, Option]]:
    """Return the description of a verb's function, its positional arguments, and its options by name.

    A parameter whose default is a dataclass is a group of options: one for each field. The docstring of the class is
    the heading of the group in the help.
    """
    about, docs = _docstring(function)
    hints = get_type_hints(function, include_extras=True)
    positional: list[Option] = []
    options: dict[str, Option] = {}
    for parameter in inspect.signature(function).parameters.values():
        name, usual, hint = parameter.name, parameter.default, hints[parameter.name]
        if is_dataclass(usual):
            heading = (type(usual).__doc__ or name).removesuffix(".")
            group = field_options(type(usual), usual, name)
            options |= {option.name: _with_hint(replace(option, section=heading)) for option in group}
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            options[name] = _with_hint(Option(name, name, hint, usual, docs.get(name, ""), "Options"))
        else:
            positional.append(Option(name, name, hint, usual, docs.get(name, ""), "Arguments"))
    return about, positional, options


def _with_hint(option: Option) -> Option:
    """Return the option with the `help_behavior_hint` of its annotation, if there is one, added to its description."""
    notes = getattr(option.hint, "__metadata__", ())
    said = next((found for note in notes if isinstance(found := getattr(note, "help_behavior_hint", ""), str)), "")
    return replace(option, about=f"{option.about} {said}".rstrip())


def _docstring(function: Callable[..., None]) -> tuple[str, dict[str, str]]:
    """Return the text of a function's docstring before `Args:`, and the description of each argument by name."""
    about, _, arguments = inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:\n")
    found: dict[str, str] = {}
    for line in arguments.splitlines():
        if match := re.fullmatch(r"    (\w+): (.*)", line):
            found[match[1]], last = match[2], match[1]
        elif line.startswith("     ") and found:
            found[last] += f" {line.strip()}"
    return about, found


def _has_default(option: Option) -> bool:
    return option.default is not inspect.Parameter.empty


def help_text(usage: str, about: str, options: Iterable[Option], more: str = "") -> str:
    """Return the help of a command: its usage, a description, the options by section, and the last paragraph `more`."""
    width = min(100, max(60, shutil.get_terminal_size().columns))
    paragraphs = [f"usage: {usage}", *(textwrap.fill(" ".join(part.split()), width) for part in about.split("\n\n"))]
    sections: dict[str, list[str]] = {}
    for option in options:
        sections.setdefault(option.section, []).append(_describe(option, width))
    paragraphs += [f"{section}:\n" + "\n".join(lines) for section, lines in sections.items()]
    return "\n\n".join([*paragraphs, *([textwrap.fill(more, width)] if more else [])])


def _describe(option: Option, width: int) -> str:
    from glassformer.tasks.configs.task_options import AUTOMATIC

    first = f"  {option.flag} {_metavar(option)}".rstrip()
    if option.section == "Arguments":
        first = f"  {option.name.upper()}" + " ..." * _is_list(option)
    if _is_switch(option) and option.default is True:
        first = f"  --[no-]{option.flag[2:]}"
    text = option.about
    if "(default" in text:
        pass
    elif option.path in AUTOMATIC:
        text += " (default: chosen for the data and the time)"
    elif usual := _default(option):
        text += f" (default: {usual})"
    lines = textwrap.wrap(text, width - INDENT, break_on_hyphens=False) or [""]
    padded = [" " * INDENT + line for line in lines]
    if len(first) < INDENT - 1:
        return "\n".join([first.ljust(INDENT) + lines[0], *padded[1:]])
    return "\n".join([first, *padded])


def _default(option: Option) -> str:
    """Return an option's default as the help shows it; "" if the help does not show it (off, none, empty)."""
    value = option.default
    if isinstance(value, bool):
        return "on" if value else ""
    if value is None or value == "" or value == () or not _has_default(option):
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
    """Convert the words after a flag to the option's type. Raise UsageError if that is not possible."""
    kind, _, is_optional = parts_of(option.hint)
    given = f"{option.name if option.name.isupper() else option.flag} {' '.join(texts)}"
    if is_optional and texts[0].lower() == "none":
        return None
    try:
        if get_origin(kind) is tuple:
            return as_field(option.hint, tuple(_word(get_args(kind)[0], text) for text in texts))
        return as_field(option.hint, _word(kind, texts[0]))
    except InvalidFieldError as error:
        raise UsageError(f"{given}: expected {error.expected.removesuffix(' or None')}") from None


@contextmanager
def naming_columns(data: Any) -> Iterator[None]:
    """Context manager that adds the name of an option to a MissingColumnError: the option that sets the column's name.

    `data` is the data config. Its fields whose names end with `_column` hold the names of the columns.
    """
    from glassformer.data.readers.records import MissingColumnError

    try:
        yield
    except MissingColumnError as error:
        names = [one.name for one in fields(data) if one.name.endswith("_column")]
        option = next((name for name in names if getattr(data, name) == error.column), None)
        raise error.naming(f"--{option.replace('_', '-')}") if option else error from error


def _word(kind: Any, text: str) -> Any:
    """Convert one word to the type `kind`. If that fails, return the word itself, which `as_field` then refuses."""
    if kind is bool:
        return TRUTHS.get(text.lower(), text)
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return text
    return text


def _unknown(flag: str, options: Mapping[str, Option], command: str) -> str:
    if flag in RENAMED_FLAGS and RENAMED_FLAGS[flag].split()[0].removeprefix("--") in options:
        return f"{flag} is now {RENAMED_FLAGS[flag]}: use that"
    near = nearest(flag.removeprefix("--no-"), [option.flag for option in options.values()])
    files = [option for name, option in options.items() if name in ("source", "target", "data")]
    hint = f"did you mean {near}?" if near else f"glassformer {command} {HELP_ALL} lists all options"
    if flag in ("--source", "--target", "--data") and files:
        hint = f"its data is given with {' and '.join(f'{option.flag} PATH' for option in files)}"
    return f"{flag} is not an option of {command}: {hint}"


def _use_of(word: str, options: Mapping[str, Option], command: str) -> str:
    """Return a hint for the error about an unexpected word on the command line: what to write instead."""
    if "input" not in options:
        return f"glassformer {command} --help shows what is"
    if Path(word).is_file():
        return f"for the lines of a file use --input {shlex.quote(word)}"
    return f"a line of text is given on stdin, as in echo {shlex.quote(word)} | glassformer {command} MODEL"


def _example(options: Mapping[str, Option]) -> str:
    files = [option for name, option in options.items() if name in ("source", "data")]
    return f"{files[0].flag} PATH" if files else next(iter(options.values())).flag


def _is_switch(option: Option | None) -> bool:
    return option is not None and parts_of(option.hint)[::2] == (bool, False)


def _is_list(option: Option) -> bool:
    return get_origin(parts_of(option.hint)[0]) is tuple


def _is_float(option: Option) -> bool:
    return parts_of(option.hint)[0] is float
