"""Recipes: a TOML file whose tables are the parts of a task's config. What it leaves out keeps its default."""

import tomllib
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import cattrs
from cattrs.v import format_exception

from glassformer.data.text_files import read_text
from glassformer.models import ModelConfig

Config = TypeVar("Config")


def load_recipe(path: Path, kind: type[Config]) -> Config:
    """The config of a task that a recipe describes; an unknown key or a wrong type is an error that names it."""
    text = read_text(path)
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a ValueError too where a number has thousands of digits
        raise ValueError(f"{path} is not TOML: {error}") from error
    usual = kind()
    for name, table in values.items():
        part = getattr(usual, name, None)
        if is_dataclass(part) and isinstance(table, dict):
            values[name] = {**asdict(part), **table}  # type: ignore[arg-type]
    try:
        return _converter().structure(values, kind)
    except (cattrs.BaseValidationError, cattrs.errors.ForbiddenExtraKeysError) as error:
        problems = cattrs.transform_error(error, path="recipe", format_exception=_in_words)
        raise ValueError(f"{path}: {'; '.join(problems)}") from error


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    converter.register_structure_hook(Path, lambda value, _: Path(value))
    converter.register_structure_hook(ModelConfig, lambda value, _: ModelConfig.from_dict(value))
    for kind in (int, float, bool, str):
        converter.register_structure_hook(kind, _strict)
    return converter


def _strict(value: Any, kind: type) -> Any:
    """The value itself: "3" is no number, and 1 is no truth."""
    is_number = kind is float and isinstance(value, int) and not isinstance(value, bool)
    if not is_number and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        raise TypeError(f"{value!r}: expected {kind.__name__}")
    return value


def _in_words(error: BaseException, kind: type | None) -> str:
    """Our own checks say it best; the rest is cattrs' to say."""
    own = isinstance(error, ValueError | TypeError) and not isinstance(error, cattrs.errors.ForbiddenExtraKeysError)
    return str(error) if own else format_exception(error, kind)
