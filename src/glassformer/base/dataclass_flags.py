"""Command-line flags made from dataclasses: one option for each field, described by the field's docstring.

`cli/flag_parser.py` parses command lines with these options and prints their help. Recipes (TOML files) and
`glassformer.train` use the same names.
"""

import ast
import inspect
import re
import textwrap
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

from glassformer.base.fields import hints_of

SECTIONS = {"": "Task", "data": "Data", "tokenizer": "Tokenizer", "model": "Model", "train": "Training"}
"""Help heading of each part of a task's config. "" stands for fields of the config itself."""
OPTION_NAMES = {"start_from": "from"}
"""Maps fields to options of another name. A field cannot be named `from`, which is a keyword in Python."""


@dataclass(frozen=True)
class Option:
    """One command-line option, made from a field of a config or of another dataclass."""

    name: str
    """Name as a keyword argument: `max_tokens`."""
    path: str
    """Dotted name of the field in the config: `train.max_tokens`."""
    hint: Any
    """Type hint of the field."""
    default: Any
    about: str
    """Docstring of the field, which is the option's help."""
    section: str = ""
    """Heading of the help under which the option is listed."""

    @property
    def flag(self) -> str:
        """Return the option's name on the command line, such as `--max-tokens`."""
        return f"--{self.name.replace('_', '-')}"


def options_of(kind: Any) -> dict[str, Option]:
    """Return the options of a config class by name.

    There is one option per field. A field that holds a dataclass has one for each field of that dataclass instead.
    """
    usual, found = kind(), {}
    for field in fields(kind):
        value = getattr(usual, field.name)
        part = field.name if is_dataclass(value) else ""
        for option in field_options(type(value), value, part) if part else [_option(kind, usual, field.name, "")]:
            assert option.name not in found, f"two options are called {option.name}"
            found[option.name] = option
    return found


def field_options(kind: Any, usual: Any, part: str) -> list[Option]:
    """Return one option for each field of the dataclass `kind`, with the values of its instance `usual` as defaults.

    `part` is the name of the config's field that holds this dataclass, such as "train"; "" for the config itself.
    """
    return [_option(kind, usual, field.name, part) for field in fields(kind)]


def _option(kind: Any, usual: Any, name: str, part: str) -> Option:
    about, heading = field_docs(kind)[name]
    section = ": ".join(filter(None, (SECTIONS.get(part, part), heading[:1].lower() + heading[1:])))
    path = f"{part}.{name}" if part else name
    return Option(OPTION_NAMES.get(name, name), path, hints_of(kind)[name], getattr(usual, name), about, section)


@cache
def field_docs(kind: Any) -> dict[str, tuple[str, str]]:
    """Map each field of a dataclass to its docstring and its heading, each "" if there is none.

    The heading is the nearest comment line above the field in the class body.
    """
    found: dict[str, tuple[str, str]] = {}
    for base in reversed(kind.__mro__):
        if "__dataclass_fields__" not in vars(base):
            continue
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # Python was installed without source files
            source = "class Nothing: ..."
        tree = ast.parse(source).body[0]
        assert isinstance(tree, ast.ClassDef)
        headings = {
            number: match[1]
            for number, line in enumerate(source.splitlines(), start=1)
            if (match := re.fullmatch(r"    # (.+)", line))
        }
        for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                heading = [text for number, text in headings.items() if number < node.lineno]
                about = ""
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                    about = " ".join(str(after.value.value).split())
                found[node.target.id] = about, heading[-1] if heading else ""
    return {field.name: found.get(field.name, ("", "")) for field in fields(kind)}
