"""`glassformer train TASK`: its flags are the fields of the task's config."""

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

HOW = ("restart", "accept_changes", "overwrite")
"""Flags that are no part of a recipe."""


def train(arguments: list[str]) -> None:
    """Parse `TASK [--recipe FILE] --out FOLDER [--any-config-field ...]` and train."""
    from glassformer.tasks.registry import TASKS, config_named, task_named

    if arguments[:1] not in [[task] for task in TASKS]:
        asked = arguments[0] if arguments else "nothing"
        lines = "\n".join(f"  {name:16}{entry.about}" for name, entry in TASKS.items())
        is_asked = asked in ("-h", "--help")
        print(f"usage: glassformer train TASK --help\n\n{lines}", file=sys.stdout if is_asked else sys.stderr)
        if is_asked:
            return
        print(f"\n{asked!r} is no task: expected one of {', '.join(TASKS)}", file=sys.stderr)
        sys.exit(2)
    task, *rest = arguments
    config, out, how = _parse(task, rest, config_named(task))
    print(f"wrote {out}: {task_named(task)(config).train(out, **how)}")


def _parse(task: str, arguments: list[str], kind: Any) -> tuple[Any, Path, dict[str, bool]]:
    """The task's config, from a recipe and flags, where the model goes, and how to treat what is there."""
    import tyro

    from glassformer.tasks.recipes import load_recipe
    from glassformer.tasks.registry import TASKS

    rest, recipe = take_option(arguments, "--recipe")
    rest, out = take_option(rest, "--out")
    flags = _flags_of(kind)
    usual = load_recipe(Path(recipe), kind) if recipe else kind()
    told = tyro.cli(
        flags,
        args=rest,
        default=flags(**_values(usual)),
        prog=f"glassformer train {task} --out FOLDER [--recipe FILE]",
        description=f"From {TASKS[task].about}, in the model folder --out. It can be stopped at any time; run the same "
        "command again to resume.",
        config=(tyro.conf.OmitArgPrefixes,),
    )
    if out is None:
        print("glassformer: --out is missing: expected a name for the model folder", file=sys.stderr)
        sys.exit(2)
    values = _values(told)
    how = {name: values.pop(name) for name in HOW}
    return kind(**values), Path(out), how


def _flags_of(kind: Any) -> Any:
    """The config as the command line spells it: `from` is a word that Python keeps to itself."""
    import tyro

    @dataclass(frozen=True, kw_only=True)
    class Flags(kind):  # type: ignore[misc]
        """A whole recipe."""

        start_from: Annotated[Path | None, tyro.conf.arg(name="from")] = None
        """A trained model to begin with, instead of chance: its shape, its numbers and its tokenizer; a head for
        another task is replaced by a fresh one. An encoder may be somebody else's, in HF's folder."""
        restart: bool = False
        """Discard the run in OUT.run and start anew."""
        accept_changes: Annotated[bool, tyro.conf.arg(name="continue")] = False
        """Continue from the newest checkpoint with other settings or other data, or with more updates."""
        overwrite: bool = False
        """Replace a model in --out that another run wrote. Other files are never replaced."""

    return Flags


def _values(config: Any) -> dict[str, Any]:
    """The fields of a config, as they are."""
    return {field.name: getattr(config, field.name) for field in fields(config)}


def take_option(arguments: list[str], name: str) -> tuple[list[str], str | None]:
    """The arguments without one option, and its value: `--name value` or `--name=value`."""
    rest, value, waiting = [], None, iter(arguments)
    for argument in waiting:
        if argument == name:
            value = next(waiting, "--")
            if value.startswith("--"):
                raise ValueError(f"{name} stands alone: expected a value behind it")
        elif argument.startswith(f"{name}="):
            value = argument.removeprefix(f"{name}=")
        else:
            rest.append(argument)
    return rest, value
