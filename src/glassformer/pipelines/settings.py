"""Check the settings in `task.json` against the type hints of the pipeline's constructor."""

import inspect
import math
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from glassformer.base.checks import shown
from glassformer.checkpoint.safe_files import CorruptFolderError

MAX_WHOLE = 2**31 - 1


def check_settings(pipeline: type[Any], settings: Mapping[str, Any], file: Path) -> None:
    """Raise CorruptFolderError unless the settings can be the keyword arguments of the pipeline's constructor.

    The error says which setting is missing, unknown or of the wrong type. It names `file`, the path of `task.json`.
    """
    parameters = inspect.signature(pipeline).parameters.values()
    hints = typing.get_type_hints(pipeline.__init__)
    named = {one.name: one for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
    for name, parameter in named.items():
        if name not in settings and parameter.default is inspect.Parameter.empty:
            raise CorruptFolderError(f"{file} has no {name!r}: expected it, for a {pipeline.__name__}")
    for name, value in settings.items():
        if name in named:
            expected = _problem(hints[name], value)
            if expected:
                raise CorruptFolderError(f"{file} has {name}={shown(value)}: expected {expected}")
        elif not takes_any:
            raise CorruptFolderError(f"{file} has the setting {shown(name)}: expected {', '.join(named) or 'none'}")


def _problem(hint: Any, value: Any) -> str:
    """Return "" if `value` has the type `hint`, otherwise a description of that type for an error message."""
    if hint is bool:
        return "" if isinstance(value, bool) else "true or false"
    if hint is int:
        return "" if type(value) is int and abs(value) <= MAX_WHOLE else f"a whole number, at most {MAX_WHOLE}"
    if hint is float:
        is_number = type(value) in (int, float) and abs(value) <= MAX_WHOLE and math.isfinite(value)
        return "" if is_number else f"a number, at most {MAX_WHOLE}"
    if hint is str:
        return "" if isinstance(value, str) else "a text"
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        return "" if isinstance(value, str) and value in choices else f"one of {', '.join(map(str, choices))}"
    if typing.get_origin(hint) is Sequence and typing.get_args(hint) == (str,):
        is_texts = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return "" if is_texts else "a list of texts"
    return ""
