"""One checker for all configs: the type hints of a dataclass say which values its fields may have."""

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
    """The values that a number may have."""

    words: str
    """For the error, after "expected"."""
    low: float = -math.inf
    high: float = math.inf
    without: Literal["none", "low", "high"] = "none"
    """Which end does not belong to the range."""

    def __repr__(self) -> str:
        return repr(self.words)

    def holds(self, value: float) -> bool:
        """Whether the value is inside."""
        is_end = value == {"none": math.nan, "low": self.low, "high": self.high}[self.without]
        return self.low <= value <= self.high and not is_end


Count = Annotated[int, Range("a whole number of at least 1", 1)]
Whole = Annotated[int, Range("a whole number, 0 or more", 0)]
NotNegative = Annotated[float, Range("0 or more", 0)]
Positive = Annotated[float, Range("a finite number above 0", 0, without="low")]
Probability = Annotated[float, Range("a probability, at least 0 and below 1", 0, 1, "high")]
"""Of something that may not always happen, such as dropout."""
Decay = Annotated[float, Range("0 or more, and less than 1", 0, 1, "high")]


class UnfitError(Exception):
    """A value that a field cannot have. The callers name the field and the value."""

    def __init__(self, expected: str, *, wrong_type: bool = False):
        super().__init__(expected)
        self.expected, self.wrong_type = expected, wrong_type


class Checked:
    """Base of the config dataclasses: unknown names and unfit values are errors at construction.

    A `str` is accepted for a path, a list or a single value for a tuple, and a whole number for a float; the field
    then holds the type that its hint names.
    """

    ALIASES: ClassVar[Mapping[str, str]] = {}
    """What other libraries call a field."""

    def __new__(cls, *args: Any, **values: Any) -> Self:
        """Refuse an unknown field by a suggestion, before the dataclass's own `__init__` refuses it without one."""
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        for name in values:
            if name not in known:
                raise TypeError(f"{cls.__name__} has no field {name!r}: {suggestion(name, known, aliases=cls.ALIASES)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, hint in hints_of(kind).items():
            value = getattr(self, name)
            try:
                found = as_field(hint, value)
            except UnfitError as error:
                raise (TypeError if error.wrong_type else ValueError)(
                    f"{name}={shown(value)}: expected {error.expected}"
                ) from None
            if found is not value:
                object.__setattr__(self, name, found)


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """The type hint of each field of a dataclass."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def as_field(hint: Any, value: Any) -> Any:
    """The value as a field with this type hint holds it. Raises UnfitError if the field cannot have it."""
    kind, allowed, is_optional = parts_of(hint)
    if value is None and is_optional:
        return None
    try:
        found = _as_kind(kind, value)
    except UnfitError as error:
        more = " or None" if is_optional else ""
        raise UnfitError(error.expected + more, wrong_type=error.wrong_type) from None
    if allowed is not None and not allowed.holds(found):
        raise UnfitError(allowed.words)
    return found


def parts_of(hint: Any) -> tuple[Any, Range | None, bool]:
    """The type of a hint without None and without its range, the range, and whether None is allowed."""
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
        raise UnfitError(expected, wrong_type=True)
    return value


def _as_float(value: Any) -> float:
    _if(isinstance(value, int | float) and not isinstance(value, bool), value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise UnfitError("a finite number")
    return value if isinstance(value, float) else number


def _as_choice(choices: tuple[str, ...], value: Any) -> str:
    if not isinstance(value, str) or value not in choices:
        near = nearest(value, choices)
        names = ", ".join(choice for choice in choices if choice)
        raise UnfitError(f"{'one of ' * (',' in names)}{names}" + (f" (did you mean {near!r}?)" if near else ""))
    return value


def _as_tuple(kind: Any, value: Any) -> tuple[Any, ...]:
    """A tuple of this type; a single value or any list of values is accepted."""
    if isinstance(value, str | Path):
        value = (value,)
    if not isinstance(value, Iterable) or isinstance(value, bytes | Mapping):
        raise UnfitError("a list of " + {Path: "paths", str: "texts"}.get(kind, "values"), wrong_type=True)
    try:
        found = tuple(_as_kind(kind, one) for one in value)
    except UnfitError as error:
        raise UnfitError(f"a list, each {error.expected}", wrong_type=error.wrong_type) from None
    return value if isinstance(value, tuple) and found == value else found
