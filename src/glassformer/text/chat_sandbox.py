"""Run chat templates in a restricted Jinja sandbox with limits on time and memory.

The methods and filters that templates use are available, with a bound on the work of each call (`chat_bounds.py`). The
time is checked at each call, arithmetic operation, loop iteration, and value that is built or printed.
"""

import functools
import threading
import time
from collections.abc import Callable, ItemsView, Iterable, KeysView, ValuesView
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as loop_controls
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined, markup_join
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Cycler, Joiner, Namespace
from markupsafe import Markup

from glassformer.text import chat_bounds as bounds

MAX_SECONDS = 1.0
"""CPU time limit of one rendering, in seconds."""
_OF_JINJA = ("_loop_vars", "_block_vars")
"""Keyword arguments that Jinja adds to calls in compiled templates; only Jinja's own functions accept them."""
_PRINTABLE = (str, bytes, int, float, list, tuple, dict, range, KeysView, ValuesView, ItemsView, Undefined, type(None))


class Budget(threading.local):
    """What one rendering may still use: time until `deadline`, and `chars` characters of printed text.

    Each thread has its own budget.
    """

    deadline = 0.0
    chars = 0
    now = datetime.min

    def start(self, now: datetime) -> None:
        """Reset the budget for a new rendering. `now` is the time of day that the template sees."""
        self.now = now
        self.deadline = time.thread_time() + MAX_SECONDS
        self.chars = bounds.MAX_CHARS

    def tick(self) -> None:
        """Raise SecurityError if the rendering is over its time limit."""
        if time.thread_time() > self.deadline:
            raise SecurityError(f"it ran for more than {MAX_SECONDS:g} s")

    def spend(self, chars: int) -> None:
        """Subtract printed characters from the budget. Raises SecurityError when it is used up."""
        self.chars -= chars
        if self.chars < 0:
            raise SecurityError(f"it wrote more than {bounds.MAX_CHARS} characters")


class _Generation(Extension):
    """The `{% generation %}` tag, which marks model output for training. It has no effect here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Sandbox(ImmutableSandboxedEnvironment):
    """The Jinja environment of one template, which checks time, size and access in every operation."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        self.budget = Budget()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loop_controls, _Generation],
            finalize=self.emit,
            optimized=False,  # no constant folding before the clock starts
            cache_size=0,
        )
        self.filters = {name: self._guard(self.filters[name], name) for name in bounds.FILTERS}
        self.filters |= {"join": self._join, "sum": self._sum, "tojson": self._to_json}
        self.tests = {name: self._guard(test) for name, test in self.tests.items()}
        self.globals = {
            "range": safe_range,
            "namespace": Namespace,
            "dict": _Dict(),
            "cycler": Cycler,
            "joiner": Joiner,
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
        }

    @jinja2.pass_context
    def emit(self, context: Context, value: Any) -> str:
        """Return the text that is printed for a value, and count its characters.

        Taking the context makes Jinja call this for constants too, each time they are printed.
        """
        self.budget.tick()
        text = self.text(value)
        self.budget.spend(len(text))
        return text

    def checked(self, value: Any) -> Any:
        """Return the value unchanged. Raises SecurityError if it is too large or the time is up."""
        self.budget.tick()
        bounds.weigh(value)
        return value

    def ticked(self, value: Any) -> Any:
        """Return the value unchanged. Raises SecurityError if the rendering is over its time limit.

        Unlike `checked`, it does not limit the value's size: slices and comparisons are never larger than their inputs.
        """
        self.budget.tick()
        return value

    def joined(self, *values: Any) -> str:
        """Return the values as one text, as the operator `~` does. Raises SecurityError if it is too long."""
        texts = [self.text(value) for value in values]
        bounds.check_chars(sum(map(len, texts)))
        return markup_join(values) if any(isinstance(value, Markup) for value in values) else "".join(texts)

    def text(self, value: Any) -> str:
        """Return a value as text. Raises SecurityError unless it is a plain value, such as a text, number or list."""
        if not isinstance(value, _PRINTABLE):
            raise SecurityError(
                f"it prints a {type(value).__name__}: expected a text, a number, a list or a dictionary"
            )
        self.checked(list(value) if isinstance(value, KeysView | ValuesView | ItemsView) else value)
        return str(value)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function or a method from a template. Methods whose work can be large are replaced by bounded ones."""
        self.budget.tick()
        bounded = bounds.bounded_method(function)
        if bounded is function:
            return self.checked(super().call(context, function, *args, **kwargs))
        given = {name: value for name, value in kwargs.items() if name not in _OF_JINJA}
        return self.checked(bounded(*args, **given))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right`, unless the result would be too large."""
        self.budget.tick()
        bounds.check_binop(operator, left, right)
        return self.checked(super().call_binop(context, operator, left, right))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return `obj.attribute`. Raises SecurityError if the rendering is over its time limit.

        The time is checked here because a filter may call this for every item of a list.
        """
        self.budget.tick()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return `obj[argument]`. Raises SecurityError if the rendering is over its time limit."""
        self.budget.tick()
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may access `obj.attr`.

        For plain values, such as texts and lists, `chat_bounds.METHODS` lists the allowed names.
        """
        for kind, names in bounds.METHODS:
            if isinstance(obj, kind):
                return attr in names
        known = isinstance(obj, Namespace | LoopContext | Macro | Cycler | Joiner | _Dict)
        return known and super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Return Jinja's undefined value for an attribute that `is_safe_attribute` refused.

        Raises SecurityError if the attribute's name starts with an underscore.
        """
        if attribute.startswith("_"):
            raise SecurityError(f"it reaches for {attribute!r} of a {type(obj).__name__}")
        return super().unsafe_undefined(obj, attribute)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a bounded replacement if `value` is a text's `format` or `format_map`, else None."""
        owner, name = getattr(value, "__self__", None), getattr(value, "__name__", "")
        if name not in ("format", "format_map") or not isinstance(owner, str):
            return None
        if isinstance(owner, Markup):
            raise SecurityError("it formats HTML")

        def formatted(*args: Any, **kwargs: Any) -> str:
            if name == "format_map":
                args, kwargs = (), *args
            self.budget.tick()
            return bounds.BoundedFormatter(self).vformat(owner, args, kwargs)

        return formatted

    def _guard(self, function: Any, name: str = "") -> Callable[..., Any]:
        # Some filters take the context, the evaluation context or the environment before the value.
        skipped = int(hasattr(function, "jinja_pass_arg"))

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            self.budget.tick()
            bounds.check_filter(name, *args[skipped:], **kwargs)
            return self.checked(function(*args, **kwargs))

        return guarded

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        items = bounds.listed(value)
        if attribute is not None:
            items = [make_attrgetter(self, attribute)(item) for item in items]
        texts, between = [self.text(item) for item in items], self.text(d)
        bounds.check_chars(sum(map(len, texts)) + len(between) * len(texts))
        return between.join(texts)

    def _sum(self, value: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
        """Replace the filter `sum`, with a check of time and size per item.

        A sum of lists is slow: each addition copies the result so far.
        """
        if isinstance(start, str | bytes):
            raise TypeError("sum() can't sum strings")
        total = start
        for item in bounds.listed(value):
            self.budget.tick()
            item = item if attribute is None else make_attrgetter(self, attribute)(item)
            bounds.check_binop("+", total, item)
            total = total + item
        return self.checked(total)

    @functools.wraps(bounds.to_json)
    def _to_json(self, *args: Any, **kwargs: Any) -> str:
        self.budget.tick()
        return bounds.to_json(*args, **kwargs)

    def _strftime_now(self, form: str) -> str:
        if len(form) > 64 or any(letter.isdigit() for letter in form):
            raise SecurityError(f"it writes the time as {form[:64]!r}: expected a short form without widths")
        return self.budget.now.strftime(form)


class _Dict:
    """The `dict` function of templates, with `dict.fromkeys`."""

    def __call__(self, *args: Any, **items: Any) -> dict[Any, Any]:
        return dict(*args, **items)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        """Return a dictionary with one value for all keys."""
        return dict.fromkeys(bounds.listed(keys), value)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
