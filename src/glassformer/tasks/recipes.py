"""Read and write recipes: TOML files whose tables are the parts of a task's config. Missing keys have defaults."""

import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from glassformer.base.checks import shown
from glassformer.base.dataclass_flags import OPTION_NAMES, Option, options_of
from glassformer.base.fields import InvalidFieldError, as_field
from glassformer.base.names import suggestion
from glassformer.data.readers.text_files import check_file, read_text
from glassformer.models.config_names import OTHER_NAMES
from glassformer.tasks.configs.task_options import make_config

Config = TypeVar("Config")


def load_recipe(path: Path, kind: type[Config]) -> Config:
    """Return the config of the class `kind` that a recipe file describes.

    Raises ValueError, with the file and the key, for an unknown key or a wrong value.
    """
    try:
        return make_config(kind, read_recipe(path, kind))
    except (ValueError, TypeError) as error:
        raise ValueError(str(error) if str(error).startswith(f"{path}") else f"{path}: {error}") from error


def read_recipe(path: Path, kind: type[Any]) -> dict[str, Any]:
    """Return the values in a recipe file by dotted name (`train.lr`), checked against the config class `kind`."""
    check_file(path)
    text = read_text(path)
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number with thousands of digits is a ValueError too
        raise ValueError(f"{path} is not TOML: {error}") from error
    options = {option.path: option for option in options_of(kind).values()}
    tables = list(dict.fromkeys(name.partition(".")[0] for name in options if "." in name))
    given: dict[str, Any] = {}
    for name, value in values.items():
        if name in tables:
            if not isinstance(value, dict):
                raise ValueError(f"{path}: {name}={shown(value)}: expected a table, [{name}]")
            given |= {f"{name}.{key}": one for key, one in value.items()}
        else:
            given[next((field for field, option in OPTION_NAMES.items() if option == name), name)] = value
    return {name: _checked(path, name, value, options, tables) for name, value in given.items()}


def recipe_text(config: Any) -> str:
    """Return a config as the TOML text of a recipe, which `read_recipe` reads. Options that are None are left out."""
    tables: dict[str, list[str]] = {"": []}
    for option in options_of(type(config)).values():
        table, _, name = option.path.rpartition(".")
        value = getattr(getattr(config, table) if table else config, name)
        lines = tables.setdefault(table, [])
        if value is not None:
            lines.append(f"{OPTION_NAMES.get(name, name)} = {_toml(value)}")
        elif option.default is not None:
            lines.append(f"# {name} is None, which TOML cannot express")
    return "\n\n".join("\n".join([f"[{table}]"] * bool(table) + lines) for table, lines in tables.items() if lines)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    text = json.dumps(str(value), ensure_ascii=False)  # TOML strings are JSON strings, except for character 127
    return text.replace("\x7f", "\\u007f")


def _checked(path: Path, name: str, value: Any, options: dict[str, Option], tables: list[str]) -> Any:
    if name not in options:
        raise ValueError(f"{path}: {_unknown(name, isinstance(value, dict), options, tables)}")
    try:
        return as_field(options[name].hint, value)
    except InvalidFieldError as error:
        raise ValueError(f"{path}: {name}={shown(value)}: expected {error.expected}") from None


def _unknown(name: str, is_table: bool, options: dict[str, Option], tables: list[str]) -> str:
    """Return the error message about a key or table of a recipe that is not an option, with a suggestion."""
    table, _, key = name.rpartition(".")
    if is_table and not table:
        return f"unknown table [{name}]: {suggestion(name, tables)}"
    homes = {option.rpartition(".")[2]: option for option in options}
    if key in homes:
        home = homes[key].rpartition(".")[0]
        return f"{name} is in the wrong place: expected {key} " + (f"in the table [{home}]" if home else "in no table")
    inside = [option.rpartition(".")[2] for option in options if option.rpartition(".")[0] == table]
    where = f" in the table [{table}]" if table else ""
    return f"unknown key {key!r}{where}: {suggestion(key, inside, aliases=OTHER_NAMES if table == 'model' else None)}"
