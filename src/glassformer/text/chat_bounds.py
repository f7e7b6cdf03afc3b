"""Limits on single calls in a chat template: methods of texts, lists and dictionaries, filters, formatting.

A running method of `str` cannot be interrupted. So each method is either linear in inputs of limited size, or its work
and result size are computed before the call. A call that would exceed the limits raises SecurityError.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedFormatter

MAX_CHARS = 1 << 23
"""Maximum length of a text in characters."""
MAX_NODES = 300_000
"""Maximum number of values in a list or dictionary, nested ones included."""
MAX_BITS = 4096
"""Maximum size of an integer in bits."""
_INDENT = 16
_WIDTH = 10_000
"""Maximum field width in formatting."""
_SEARCH = 10_000_000
"""Maximum number of steps of Python's search from the right (`rfind`), which is quadratic in the worst case."""
_FEW = 32
"""Maximum length of the argument of Python's `strip`, which compares each stripped character with all of it."""
_LINE_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_ENCODINGS = frozenset(("utf8", "ascii", "latin1", "iso88591", "utf16", "utf32"))

# fmt: off
TEXT_METHODS = frozenset((
    "capitalize", "casefold", "center", "count", "encode", "endswith", "expandtabs", "find", "format", "format_map",
    "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric",
    "isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "maketrans", "partition",
    "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split",
    "splitlines", "startswith", "strip", "swapcase", "title", "translate", "upper", "zfill",
))
# fmt: on
METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (str, TEXT_METHODS),
    (dict, frozenset({"items", "keys", "values", "get", "copy", "fromkeys"})),
    (list, frozenset({"index", "count", "copy"})),
    (tuple, frozenset({"index", "count", "grouper", "list"})),  # the last two: of `groupby`
    (int, frozenset({"bit_length", "bit_count", "conjugate", "real", "imag", "numerator", "denominator"})),
    (float, frozenset({"is_integer", "conjugate", "real", "imag"})),
    (bytes, frozenset({"decode", "hex"})),
)
"""Attributes that a template may access, by the type of their owner. None of them modifies it."""


def check_chars(count: int) -> None:
    """Raise SecurityError for a text of more than MAX_CHARS characters."""
    if count > MAX_CHARS:
        raise SecurityError(f"it builds a text of more than {MAX_CHARS} characters")


def check_nodes(count: int) -> None:
    """Raise SecurityError for a list or dictionary of more than MAX_NODES values."""
    if count > MAX_NODES:
        raise SecurityError(f"it builds a value of more than {MAX_NODES} parts")


def weigh(value: Any) -> None:
    """Raise SecurityError if a value, with all values nested in it, is too large to copy, compare or print."""
    count, chars, waiting = 0, 0, [value]
    while waiting:
        item = waiting.pop()
        count += 1
        if isinstance(item, str | bytes):
            chars += len(item)
        elif isinstance(item, dict):
            count += len(item)
            waiting += item.values()
            chars += sum(len(key) for key in item if isinstance(key, str))
        elif isinstance(item, list | tuple):
            waiting += item
        elif isinstance(item, int) and item.bit_length() > MAX_BITS:
            raise SecurityError("it computes too large a number")
        check_nodes(count + len(waiting))
        check_chars(chars)


def listed(values: Iterable[Any]) -> list[Any]:
    """Return the values as a list. Raises SecurityError if there are more than MAX_NODES."""
    if isinstance(values, str):
        check_nodes(len(values))
    found = list(islice(values, MAX_NODES + 1))
    check_nodes(len(found))
    return found


def bounded_method(function: Any) -> Callable[..., Any]:
    """Return the function, or a replacement with bounded work if a call of the function may be costly.

    The replaced functions are some methods of texts, `bytes.decode` and `dict.fromkeys`.
    """
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if isinstance(owner, str) and name in _TEXT:
        return lambda *args, **kwargs: _TEXT[name](owner, *args, **kwargs)
    if isinstance(owner, bytes) and name == "decode":
        return lambda *args, **kwargs: _decode(owner, *args, **kwargs)
    if owner is dict and name == "fromkeys":
        return lambda keys, value=None: dict.fromkeys(listed(keys), value)
    return function


def check_binop(operator: str, left: Any, right: Any) -> None:
    """Raise SecurityError if the result of `left operator right` would be too large."""
    sizes = [len(side) if isinstance(side, str | bytes | list | tuple) else None for side in (left, right)]
    if operator == "%" and isinstance(left, str):
        check_percent(left, right)
    is_power = operator == "**" and isinstance(left, int) and isinstance(right, int)
    if is_power and left.bit_length() * right > MAX_BITS:
        raise SecurityError("it computes too large a power")
    if operator == "*" and sizes != [None, None]:
        count = right if sizes[0] is not None else left
        size = (sizes[0] or sizes[1] or 0) * max(count if isinstance(count, int) else 0, 0)
        check_chars(size) if isinstance(left, str) or isinstance(right, str) else check_nodes(size)
    if operator == "+" and None not in sizes:
        size = sum(size or 0 for size in sizes)
        check_chars(size) if isinstance(left, str) else check_nodes(size)


def check_percent(form: str, values: Any) -> None:
    """Raise SecurityError if the result of `form % values` could be too large."""
    fields = form.count("%")
    if "*" in form and fields:
        raise SecurityError("it formats text with a width from outside (*)")
    _check_widths(form)
    given: Sequence[Any] = (values,)
    if isinstance(values, tuple):
        given = values
    elif isinstance(values, Mapping):
        given = tuple(values.values())
    longest = 0
    for value in given:
        weigh(value)
        longest = max(longest, len(str(value)))
    widths = sum(int(number) for number in re.findall(r"[0-9]+", form))
    # repr and ascii write up to ten characters per character.
    check_chars(len(form) + widths + fields * longest * (10 if re.search("%[^a-zA-Z]*[ra]", form) else 1))


class BoundedFormatter(SandboxedFormatter):
    """`str.format` with limits on field widths and on the result's size."""

    _size = 0

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Return the text of one field. Raises SecurityError if its width or the whole result is too large."""
        _check_widths(format_spec)
        weigh(value)
        text = super().format_field(value, format_spec)
        self._size += len(text)
        check_chars(self._size)
        return text


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON, without the HTML escapes of Jinja's filter `tojson`, which this replaces."""
    weigh(value)
    if indent is not None and (len(indent) if isinstance(indent, str) else indent) > _INDENT:
        raise SecurityError(f"it indents JSON by {indent}: expected at most {_INDENT}")
    if separators is not None and sum(map(len, separators)) > _INDENT:
        raise SecurityError(f"it separates JSON by more than {_INDENT} characters")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    chunks, size = [], 0
    for chunk in encoder.iterencode(value):
        size += len(chunk)
        check_chars(size)
        chunks.append(chunk)
    return "".join(chunks)


def check_filter(name: str, value: Any = "", *args: Any, **kwargs: Any) -> None:
    """Raise SecurityError if applying the filter `name` to a value could take too long or give too large a result.

    `args` and `kwargs` are the filter's arguments.
    """
    if name in _ITERATING and isinstance(value, str):
        check_nodes(len(value))
    if name in _LONGEST and isinstance(value, str) and len(value) > _LONGEST[name]:
        raise SecurityError(f"it uses the filter {name} on {len(value)} characters: expected at most {_LONGEST[name]}")
    if name in _FILTER_CHECKS:
        _FILTER_CHECKS[name](value, *args, **kwargs)


def _check_widths(form: str) -> None:
    for number in re.findall(r"[0-9]+", form):
        if len(number) > 5 or int(number) > _WIDTH:
            raise SecurityError(f"it formats text to a width of {number[:20]}: expected at most {_WIDTH}")


def _pad(name: str) -> Callable[..., Any]:
    def padded(text: str, width: int, *fill: str) -> Any:
        check_chars(width)
        return getattr(text, name)(width, *fill)

    return padded


def _expandtabs(text: str, tabsize: int = 8) -> str:
    check_chars(len(text) + text.count("\t") * tabsize)
    return text.expandtabs(tabsize)


def _join(text: str, items: Iterable[Any]) -> str:
    parts = listed(items)
    check_chars(len(text) * len(parts) + sum(len(part) for part in parts if isinstance(part, str)))
    return text.join(parts)


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    found = text.count(old)
    check_chars(len(text) + (found if count < 0 else min(found, count)) * len(new))
    return text.replace(old, new, count)


def _translate(text: str, table: Any) -> str:
    values = table.values() if isinstance(table, Mapping) else table if isinstance(table, list | tuple) else ()
    check_chars(len(text) * max((len(value) for value in values if isinstance(value, str)), default=1))
    return text.translate(table)


def _encode(text: str, encoding: str = "utf-8", errors: str = "strict") -> bytes:
    _check_encoding(encoding)
    return text.encode(encoding, errors)


def _decode(text: bytes, encoding: str = "utf-8", errors: str = "strict") -> str:
    _check_encoding(encoding)
    return text.decode(encoding, errors)


def _check_encoding(name: str) -> None:
    if re.sub("[-_ ]", "", name).lower() not in _ENCODINGS:
        raise SecurityError(f"it encodes text as {name!r}: expected utf-8, utf-16, utf-32, latin-1 or ascii")


def _split(text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    parts = text.split(sep, _splits(maxsplit))
    check_nodes(len(parts))
    return parts


def _rsplit(text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    if sep and _is_long_search(text, sep):
        return [part[::-1] for part in _split(text[::-1], sep[::-1], maxsplit)[::-1]]
    parts = text.rsplit(sep, _splits(maxsplit))
    check_nodes(len(parts))
    return parts


def _splits(maxsplit: int) -> int:
    return min(maxsplit, MAX_NODES) if maxsplit >= 0 else MAX_NODES


def _splitlines(text: str, keepends: bool = False) -> list[str]:
    check_nodes(_lines(text))
    return text.splitlines(keepends)


def _lines(text: str) -> int:
    return 1 + sum(map(text.count, _LINE_BREAKS))


def _rfind(text: str, sub: str, start: int | None = None, end: int | None = None) -> int:
    if not _is_long_search(text, sub):
        return text.rfind(sub, start, end)
    begin, stop, _ = slice(start, end).indices(len(text))
    window = text[begin:stop]
    # Searching from the left takes linear time.
    found = window[::-1].find(sub[::-1])
    return begin + len(window) - found - len(sub) if found >= 0 else -1


def _rindex(text: str, sub: str, start: int | None = None, end: int | None = None) -> int:
    found = _rfind(text, sub, start, end)
    if found < 0:
        raise ValueError("substring not found")
    return found


def _rpartition(text: str, sep: str) -> tuple[str, str, str]:
    if not _is_long_search(text, sep):
        return text.rpartition(sep)
    found = _rfind(text, sep)
    return (text[:found], sep, text[found + len(sep) :]) if found >= 0 else ("", "", text)


def _is_long_search(text: str, sub: str) -> bool:
    return len(sub) > 8 and len(text) * len(sub) > _SEARCH


def _strip(name: str) -> Callable[..., Any]:
    def stripped(text: str, chars: str | None = None) -> Any:
        if chars is None or len(chars) <= _FEW:
            return getattr(text, name)(chars)
        known, begin, end = set(chars), 0, len(text)
        while name != "rstrip" and begin < end and text[begin] in known:
            begin += 1
        while name != "lstrip" and end > begin and text[end - 1] in known:
            end -= 1
        return text[begin:end]

    return stripped


_TEXT: dict[str, Callable[..., Any]] = {
    **{name: _pad(name) for name in ("center", "ljust", "rjust", "zfill")},
    **{name: _strip(name) for name in ("strip", "lstrip", "rstrip")},
    "expandtabs": _expandtabs,
    "join": _join,
    "replace": _replace,
    "translate": _translate,
    "encode": _encode,
    "split": _split,
    "rsplit": _rsplit,
    "splitlines": _splitlines,
    "rfind": _rfind,
    "rindex": _rindex,
    "rpartition": _rpartition,
}


def _check_indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> None:
    lines = _lines(text) + 1
    check_nodes(lines)
    check_chars(len(text) + lines * (len(width) if isinstance(width, str) else width))


def _check_replace(text: Any, old: Any, new: Any, count: int | None = None) -> None:
    text, old, new = str(text), str(old), str(new)
    check_chars(len(text) + text.count(old) * len(new))


def _check_trim(text: Any, chars: str | None = None) -> None:
    if chars is not None and len(chars) > _FEW:
        raise SecurityError(f"it trims {len(chars)} characters: expected at most {_FEW}")


def _check_round(value: Any, precision: int = 0, method: str = "common") -> None:
    if abs(precision) > 300:
        raise SecurityError(f"it rounds to {precision} digits: expected at most 300")


_FILTER_CHECKS: dict[str, Callable[..., None]] = {
    "batch": lambda value, linecount, fill_with=None: check_nodes(linecount),
    "slice": lambda value, slices, fill_with=None: check_nodes(slices),
    "center": lambda value, width=80: check_chars(width),
    "format": lambda value, *args, **kwargs: check_percent(str(value), kwargs or args),
    "indent": _check_indent,
    "replace": _check_replace,
    "round": _check_round,
    "trim": _check_trim,
}
# fmt: off
_ITERATING = frozenset((
    "batch", "groupby", "list", "map", "max", "min", "reject", "rejectattr", "select", "selectattr", "slice",
    "sort", "sum", "unique",
))
"""Filters that iterate over their input; a text is iterated character by character."""
_LONGEST = {
    **dict.fromkeys(("title", "truncate", "urlencode", "wordcount", "xmlattr"), 1 << 20),
    **dict.fromkeys(("int", "striptags", "urlize", "wordwrap"), 10_000),
}
"""Maximum input length in characters of filters that are slow or take superlinear time."""
FILTERS = (
    "abs", "attr", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e", "escape",
    "filesizeformat", "first", "float", "forceescape", "format", "groupby", "indent", "int", "items", "last",
    "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "safe",
    "select", "selectattr", "slice", "sort", "string", "striptags", "title", "trim", "truncate", "unique", "upper",
    "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr",
)
"""Jinja filters that a template may use: all except `random` and `pprint`."""
# fmt: on
