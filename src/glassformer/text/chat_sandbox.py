"""Where chat templates run: Jinja's sandbox, made narrower, with little time, little memory and no way out.

Only the methods and filters that templates use are there. Whatever could run long or grow large asks for leave first:
each call, each sum, each value that is built or printed.
"""

import functools
import json
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as loop_controls
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace

MAX_SECONDS = 1.0
"""Computing time of one rendering."""
MAX_CHARS = 1 << 23
"""Characters printed, and of any one value."""
MAX_NODES = 300_000
"""Values inside one value."""

# fmt: off
TEXT_METHODS = frozenset((
    "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdecimal", "isdigit",
    "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition", "removeprefix",
    "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines",
    "startswith", "strip", "swapcase", "title", "upper",
))
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "int", "items", "last",
    "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "safe", "select", "selectattr",
    "sort", "string", "title", "trim", "unique", "upper",
)
# fmt: on
_METHODS: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, TEXT_METHODS),
    (dict, frozenset({"items", "keys", "values", "get"})),
    ((list, tuple), frozenset({"index", "count"})),
)
_BITS = 4096
_INDENT = 16


class Budget(threading.local):
    """What a rendering may still use up; each thread has its own."""

    deadline = 0.0
    chars = 0
    now = datetime.min

    def start(self, now: datetime) -> None:
        """A new rendering begins; `now` is the time that the template is told."""
        self.now = now
        self.deadline = time.thread_time() + MAX_SECONDS
        self.chars = MAX_CHARS

    def tick(self) -> None:
        """Refuse to go on when the time is up."""
        if time.thread_time() > self.deadline:
            raise SecurityError(f"it ran for more than {MAX_SECONDS:g} s")

    def spend(self, chars: int) -> None:
        """Count what is printed."""
        self.chars -= chars
        if self.chars < 0:
            raise SecurityError(f"it wrote more than {MAX_CHARS} characters")


class _Generation(Extension):
    """`{% generation %}` marks what a model wrote, for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for one template."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        self.budget = Budget()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loop_controls, _Generation],
            finalize=self.emit,
            optimized=False,  # nothing is computed before the clock runs
            cache_size=0,
        )
        self.filters = {name: self._guard(self.filters[name]) for name in _FILTERS}
        self.filters |= {"join": self._join, "replace": self._replace, "indent": self._indent, "tojson": self._to_json}
        self.tests = {name: self._guard(test) for name, test in self.tests.items()}
        self.globals = {
            "range": safe_range,
            "namespace": Namespace,
            "dict": _dict,
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
        }

    @jinja2.pass_context
    def emit(self, context: Context, value: Any) -> str:
        """Print a value. Taking the context makes Jinja call this for constants too, each time they are printed."""
        self.budget.tick()
        text = self.text(value)
        self.budget.spend(len(text))
        return text

    def checked(self, value: Any) -> Any:
        """The value, if there is time left and it is small enough."""
        self.budget.tick()
        _weigh(value)
        return value

    def ticked(self, value: Any) -> Any:
        """The value, if there is time left; for values that are no larger than what they were made of."""
        self.budget.tick()
        return value

    def joined(self, *values: Any) -> str:
        """Texts one after the other."""
        texts = [self.text(value) for value in values]
        _check_chars(sum(map(len, texts)))
        return "".join(texts)

    def text(self, value: Any) -> str:
        """A value as text. Objects of the machine have none."""
        if not isinstance(value, str | int | float | list | tuple | dict | Undefined | None):
            raise SecurityError(
                f"it prints a {type(value).__name__}: expected a text, a number, a list or a dictionary"
            )
        self.checked(value)
        return str(value)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function; those methods of a text that could make it grow without bound are our own."""
        self.budget.tick()
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str) and function.__name__ == "join" and len(args) == 1:
            return self._join(args[0], owner)
        if isinstance(owner, str) and function.__name__ == "replace":
            return self._replace(owner, *args, **kwargs)
        return self.checked(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right`, unless the result would be too large."""
        self.budget.tick()
        sizes = [len(side) if isinstance(side, str | list | tuple) else None for side in (left, right)]
        if operator == "%" and sizes[0] is not None:
            raise SecurityError("it formats text with %")
        if operator == "**" and not (_is_small(left) and _is_small(right)):
            raise SecurityError("it computes too large a power")
        if operator == "*" and sizes != [None, None]:
            count = right if sizes[0] is not None else left
            size = (sizes[0] or sizes[1] or 0) * max(count if isinstance(count, int) else 0, 0)
            _check_chars(size) if isinstance(left, str) or isinstance(right, str) else _check_nodes(size)
        if operator == "+" and None not in sizes:
            size = sum(size or 0 for size in sizes)
            _check_chars(size) if isinstance(left, str) else _check_nodes(size)
        return self.checked(super().call_binop(context, operator, left, right))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may have `obj.attr`: only what is known to do no harm."""
        for kind, names in _METHODS:
            if isinstance(obj, kind):
                return attr in names
        return isinstance(obj, Namespace | LoopContext | Macro) and super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """What a refused attribute is: nothing; and where it leads to the machine inside, an error at once."""
        if attribute.startswith("_"):
            raise SecurityError(f"it reaches for {attribute!r} of a {type(obj).__name__}")
        return super().unsafe_undefined(obj, attribute)

    def wrap_str_format(self, value: Any) -> None:
        """Formatting can ask for a field of any width; as no allowed method, it is refused."""

    def _guard(self, function: Any) -> Callable[..., Any]:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            self.budget.tick()
            return self.checked(function(*args, **kwargs))

        return guarded

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        items = [self.text(item if attribute is None else self.getitem(item, attribute)) for item in value]
        _check_chars(sum(map(len, items)) + len(d) * len(items))
        return d.join(items)

    def _replace(self, text: Any, old: str, new: str, count: int = -1) -> str:
        text = self.text(text)
        _check_chars(len(text) + text.count(old) * len(new))
        return text.replace(old, new, -1 if count is None else count)

    def _indent(self, text: str, width: int = 4, first: bool = False, blank: bool = False) -> str:
        if not 0 <= width <= _INDENT:
            raise SecurityError(f"it indents by {width}: expected at most {_INDENT}")
        lines = self.text(text).split("\n")
        _check_nodes(len(lines))
        space = " " * width
        rest = [space + line if line or blank else line for line in lines[1:]]
        return "\n".join([(space if first else "") + lines[0], *rest])

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as people write it, without the HTML escapes of Jinja's own."""
        self.checked(value)
        if indent is not None and not 0 <= indent <= _INDENT:
            raise SecurityError(f"it indents JSON by {indent}: expected at most {_INDENT}")
        if separators is not None and sum(map(len, separators)) > _INDENT:
            raise SecurityError(f"it separates JSON by more than {_INDENT} characters")
        encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        chunks, size = [], 0
        for chunk in encoder.iterencode(value):
            size += len(chunk)
            _check_chars(size)
            chunks.append(chunk)
        return "".join(chunks)

    def _strftime_now(self, form: str) -> str:
        if len(form) > 64 or any(letter.isdigit() for letter in form):
            raise SecurityError(f"it writes the time as {form[:64]!r}: expected a short form without widths")
        return self.budget.now.strftime(form)


def _weigh(value: Any) -> None:
    """Refuse a value too large to be copied, compared or printed, by counting what it would hold written out."""
    count, chars, waiting = 0, 0, [value]
    while waiting:
        item = waiting.pop()
        count += 1
        if isinstance(item, str):
            chars += len(item)
        elif isinstance(item, dict):
            count += len(item)
            waiting += item.values()
            chars += sum(len(key) for key in item if isinstance(key, str))
        elif isinstance(item, list | tuple):
            waiting += item
        elif isinstance(item, int) and item.bit_length() > _BITS:
            raise SecurityError("it computes too large a number")
        _check_nodes(count + len(waiting))
        _check_chars(chars)


def _check_chars(count: int) -> None:
    if count > MAX_CHARS:
        raise SecurityError(f"it builds a text of more than {MAX_CHARS} characters")


def _check_nodes(count: int) -> None:
    if count > MAX_NODES:
        raise SecurityError(f"it builds a value of more than {MAX_NODES} parts")


def _is_small(number: Any) -> bool:
    return isinstance(number, int | float) and abs(number) <= 64


def _dict(*args: Any, **items: Any) -> dict[Any, Any]:
    return dict(*args, **items)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
