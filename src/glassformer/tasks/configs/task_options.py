"""The options of a task: the fields of its config, by the flat names of flags and keyword arguments."""

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar

from glassformer.base.fields import hints_of
from glassformer.base.names import nearest

AUTOMATIC = frozenset(
    {
        *("model." + name for name in ("vocab_size", "n_encoder_layers", "n_decoder_layers", "d_model", "n_heads")),
        *("model." + name for name in ("d_ff", "dropout", "embedding_dropout", "init", "init_std")),
        *(
            "train." + name
            for name in ("minutes", "max_tokens", "optimizer", "lr", "weight_decay", "schedule", "threads")
        ),
        *("train." + name for name in ("warmup", "eval_every", "save_every", "label_smoothing", "word_dropout")),
        *("train.threads", "train.adversarial", "train.max_updates", "tokenizer.bpe_dropout", "swap_entities"),
    }
)
"""Dotted names of the options whose default is chosen for the data and the time: see `defaults.py`."""
FIRST = ("minutes", "from", "device")
"""The options that `--help` shows first for every task."""
SECTIONS = {"": "Task", "data": "Data", "tokenizer": "Tokenizer", "model": "Model", "train": "Training"}
SPELLINGS = {"start_from": "from"}
"""Fields whose option has another name: `from` is a keyword in Python."""
Config = TypeVar("Config")


@dataclass(frozen=True)
class Option:
    """One option: a field of a config or of another dataclass of the command line."""

    name: str
    """Name as a keyword argument: `max_tokens`."""
    path: str
    """Dotted name of the field in the config: `train.max_tokens`."""
    hint: Any
    default: Any
    about: str
    section: str = ""

    @property
    def flag(self) -> str:
        """Name on the command line: `--max-tokens`."""
        return f"--{self.name.replace('_', '-')}"


def options_of(kind: Any) -> dict[str, Option]:
    """Return all options of a config class, by name."""
    usual, found = kind(), {}
    for field in fields(kind):
        value = getattr(usual, field.name)
        part = field.name if is_dataclass(value) else ""
        for option in field_options(type(value), value, part) if part else [_option(kind, usual, field.name, "")]:
            assert option.name not in found, f"two options are called {option.name}"
            found[option.name] = option
    return found


def field_options(kind: Any, usual: Any, part: str) -> list[Option]:
    """Return the options of one part of a config, with the defaults of `usual`."""
    return [_option(kind, usual, field.name, part) for field in fields(kind)]


def _option(kind: Any, usual: Any, name: str, part: str) -> Option:
    about, heading = field_docs(kind)[name]
    section = ": ".join(filter(None, (SECTIONS.get(part, part), heading[:1].lower() + heading[1:])))
    path = f"{part}.{name}" if part else name
    return Option(SPELLINGS.get(name, name), path, hints_of(kind)[name], getattr(usual, name), about, section)


def given_options(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values by option name (`lr` or `train.lr`) to values by dotted name. An unknown name is a TypeError."""
    options = options_of(kind)
    names = {**options, **{option.path: option for option in options.values()}}
    for name in values:
        if name not in names:
            near = nearest(name, options)
            hint = f"did you mean {near!r}?" if near else "glassformer train TASK --help-all lists the options"
            raise TypeError(f"{name!r} is not an option of {kind.__name__}: {hint}")
    return {names[name].path: value for name, value in values.items()}


def make_config(kind: type[Config], given: Mapping[str, Any]) -> Config:
    """Return the config with the given values, by dotted name (`train.lr`), and defaults for the others."""
    usual: Any = kind()
    changes: dict[str, dict[str, Any]] = {"": {}}
    for path, value in given.items():
        part, _, name = path.rpartition(".")
        changes.setdefault(part, {})[name] = value
    parts = {part: replace(getattr(usual, part), **some) for part, some in changes.items() if part}
    config: Config = replace(usual, **parts, **changes[""])
    return config


@cache
def field_docs(kind: Any) -> dict[str, tuple[str, str]]:
    """Return the docstring of each field of a dataclass, and its heading: the last one-line comment above it."""
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
