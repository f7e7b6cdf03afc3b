"""`glassformer train TASK`: its flags are the fields of the task's config."""

import sys
from pathlib import Path
from typing import Any


def train(arguments: list[str]) -> None:
    """Parse `TASK [--recipe FILE] --out FOLDER [--any-config-field ...]` and train."""
    from glassformer.tasks.registry import TASKS, task_named

    if arguments[:1] not in [[task] for task in TASKS]:
        asked = arguments[0] if arguments else "nothing"
        lines = "\n".join(f"  {name:16}{entry.about}" for name, entry in TASKS.items())
        print(f"usage: glassformer train TASK --help\n\n{lines}", file=sys.stderr)
        if asked in ("-h", "--help"):
            sys.exit(0)
        print(f"\n{asked!r} is no task: expected one of {', '.join(TASKS)}", file=sys.stderr)
        sys.exit(2)
    task, *rest = arguments
    kind = task_named(task)
    config, out = _parse(task, rest, kind.Config)
    print(f"wrote {out}: {kind(config).train(out)}")


def _parse(task: str, arguments: list[str], kind: Any) -> tuple[Any, Path]:
    """The task's config, from a recipe and flags, and where the model goes."""
    import tyro

    from glassformer.tasks.recipes import load_recipe
    from glassformer.tasks.registry import TASKS

    rest, recipe = take_option(arguments, "--recipe")
    rest, out = take_option(rest, "--out")
    config = tyro.cli(
        kind,
        args=rest,
        default=load_recipe(Path(recipe), kind) if recipe else kind(),
        prog=f"glassformer train {task} --out FOLDER [--recipe FILE]",
        description=f"From {TASKS[task].about}, in the model folder --out. It can be stopped at any time, and goes on "
        "when called again.",
        config=(tyro.conf.OmitArgPrefixes,),
    )
    if out is None:
        print("glassformer: --out is missing: expected a name for the model folder", file=sys.stderr)
        sys.exit(2)
    return config, Path(out)


def take_option(arguments: list[str], name: str) -> tuple[list[str], str | None]:
    """The arguments without one option, and its value: `--name value` or `--name=value`."""
    rest, value, waiting = [], None, iter(arguments)
    for argument in waiting:
        if argument == name:
            value = next(waiting, None)
        elif argument.startswith(f"{name}="):
            value = argument.removeprefix(f"{name}=")
        else:
            rest.append(argument)
    return rest, value
