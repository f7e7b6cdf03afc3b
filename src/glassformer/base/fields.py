"""Validate the values of config dataclasses against the type hints of their fields."""

import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from glassformer.base.checks import shown
from glassformer.base.names import nearest, suggestion


class Range(NamedTuple):
    """The allowed values of a numeric field, written in its type hint: `Annotated[int, Range(...)]`."""

    words: str
    """Description of the allowed values, which follows "expected" in error messages."""
    low: float = -math.inf
    high: float = math.inf
    without: Literal["none", "low", "high"] = "none"
    """Which of the two ends is not allowed itself."""

    def __repr__(self) -> str:
        return repr(self.words)

    def holds(self, value: float) -> bool:
        """Return whether the value is inside the range."""
        is_end = value == {"none": math.nan, "low": self.low, "high": self.high}[self.without]
        return self.low <= value <= self.high and not is_end


Count = Annotated[int, Range("a whole number of at least 1", 1)]
Whole = Annotated[int, Range("a whole number, 0 or more", 0)]
MAX_THREADS = 1024
"""The most threads that an option allows. Tens of thousands exhaust a system."""
Threads = Annotated[int, Range(f"a whole number from 0 to {MAX_THREADS:,}", 0, MAX_THREADS)]
NotNegative = Annotated[float, Range("0 or more", 0)]
Positive = Annotated[float, Range("a finite number above 0", 0, without="low")]
Probability = Annotated[float, Range("a probability, at least 0 and below 1", 0, 1, "high")]
"""A probability below 1, such as a dropout rate."""
Decay = Annotated[float, Range("0 or more, and less than 1", 0, 1, "high")]


class InvalidFieldError(Exception):
    """A field's value is invalid. The caller adds the field's name and the value to the message.

    `expected` describes valid values. `wrong_type` says that the value's type is the problem, not the value itself.
    """

    def __init__(self, expected: str, *, wrong_type: bool = False):
        super().__init__(expected)
        self.expected, self.wrong_type = expected, wrong_type


class Checked:
    """Base class of config dataclasses: unknown fields and invalid values raise an error at construction.

    Some values are converted to the type in the field's hint: a `str` to a path, and an integer to a float. A tuple
    field accepts any list or other iterable, and also a single text or path, which becomes the only element.
    """

    ALIASES: ClassVar[Mapping[str, str]] = {}
    """Maps names that other libraries use to our fields. The error about such a name suggests our field."""

    def __new__(cls, *args: Any, **values: Any) -> Self:
        """Raise a TypeError that suggests a field for an unknown name. The dataclass's own error has no suggestion."""
        kind: Any = cls
        known = hints_of(kind)
        for name in values:
            if name not in known:
                near = suggestion(name, list(known), aliases=cls.ALIASES)
                raise TypeError(f"{cls.__name__} has no field {name!r}: {near}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, parts in _parts_by_field(kind).items():
            value = getattr(self, name)
            try:
                found = _as_parts(parts, value)
            except InvalidFieldError as error:
                raise (TypeError if error.wrong_type else ValueError)(
                    f"{name}={shown(value)}: expected {error.expected}"
                ) from None
            if found is not value:
                object.__setattr__(self, name, found)


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """Return the type hint of each field of a dataclass by name, `Annotated` ranges included."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


@cache
def _parts_by_field(kind: Any) -> dict[str, tuple[Any, Range | None, bool]]:
    """Return the parts of each field's type hint by name. Splitting them for each config took most of its time."""
    return {name: parts_of(hint) for name, hint in hints_of(kind).items()}


def as_field(hint: Any, value: Any) -> Any:
    """Return a value converted to the type of a field with this type hint.

    Raises InvalidFieldError if the value cannot be converted or is outside the hint's `Range`.
    """
    return _as_parts(parts_of(hint), value)


def _as_parts(parts: tuple[Any, Range | None, bool], value: Any) -> Any:
    kind, allowed, is_optional = parts
    if value is None and is_optional:
        return None
    try:
        found = _as_kind(kind, value)
    except InvalidFieldError as error:
        more = " or None" if is_optional else ""
        raise InvalidFieldError(error.expected + more, wrong_type=error.wrong_type) from None
    if allowed is not None and not allowed.holds(found):
        raise InvalidFieldError(allowed.words)
    return found


def parts_of(hint: Any) -> tuple[Any, Range | None, bool]:
    """Split a type hint into its bare type, its `Range` (or None), and whether the hint allows None."""
    allowed, is_optional = None, False
    while typing.get_origin(hint) in (Annotated, typing.Union, types.UnionType):
        if typing.get_origin(hint) is Annotated:
            hint, *notes = typing.get_args(hint)
            allowed = next((note for note in notes if isinstance(note, Range)), allowed)
        else:
            kinds = typing.get_args(hint)
            is_optional = is_optional or types.NoneType in kinds
            hint = next(kind for kind in kinds if kind is not types.NoneType)
    return hint, allowed, is_optional


def _as_kind(kind: Any, value: Any) -> Any:
    if typing.get_origin(kind) is Literal:
        return _as_choice(typing.get_args(kind), value)
    if typing.get_origin(kind) is tuple:
        return _as_tuple(typing.get_args(kind)[0], value)
    if kind is bool:
        return _if(isinstance(value, bool), value, "True or False")
    if kind is int:
        return _if(isinstance(value, int) and not isinstance(value, bool), value, "a whole number")
    if kind is float:
        return _as_float(value)
    if kind is str:
        return _if(isinstance(value, str), value, "a text")
    if kind is Path:
        return Path(_if(isinstance(value, str | Path) and str(value) != "", value, "a path"))
    if isinstance(kind, type) and is_dataclass(kind):
        return _if(isinstance(value, kind), value, f"a {kind.__name__}")
    return value


def _if(fits: bool, value: Any, expected: str) -> Any:
    if not fits:
        raise InvalidFieldError(expected, wrong_type=True)
    return value


def _as_float(value: Any) -> float:
    _if(isinstance(value, int | float) and not isinstance(value, bool), value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidFieldError("a finite number")
    return value if isinstance(value, float) else number


def _as_choice(choices: tuple[str, ...], value: Any) -> str:
    if not isinstance(value, str) or value not in choices:
        near = nearest(value, choices)
        names = ", ".join(choice for choice in choices if choice)
        raise InvalidFieldError(f"{'one of ' * (',' in names)}{names}" + (f" (did you mean {near!r}?)" if near else ""))
    return value


def _as_tuple(kind: Any, value: Any) -> tuple[Any, ...]:
    """Convert a single text or path, or an iterable of values, to a tuple with elements of type `kind`."""
    if isinstance(value, str | Path):
        value = (value,)
    if not isinstance(value, Iterable) or isinstance(value, bytes | Mapping):
        raise InvalidFieldError("a list of " + {Path: "paths", str: "texts"}.get(kind, "values"), wrong_type=True)
    try:
        found = tuple(_as_kind(kind, one) for one in value)
    except InvalidFieldError as error:
        raise InvalidFieldError(f"a list, each {error.expected}", wrong_type=error.wrong_type) from None
    return value if isinstance(value, tuple) and found == value else found
