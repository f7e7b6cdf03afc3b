"""`glassformer train translation`: its flags are the fields of the task's config."""

import sys
from pathlib import Path
from typing import Any


def train(arguments: list[str]) -> None:
    """Parse `translation [--recipe FILE] --out FOLDER [--any-config-field ...]` and train."""
    import tyro

    if arguments[:1] != ["translation"]:
        asked = arguments[0] if arguments else "nothing"
        print(
            f"usage: glassformer train translation --help\n\n{asked!r} is no task: expected translation",
            file=sys.stderr,
        )
        sys.exit(0 if arguments[:1] in (["-h"], ["--help"]) else 2)
    from glassformer.tasks.recipes import load_recipe
    from glassformer.tasks.translation import TranslationConfig, train_translation

    rest, recipe = take_option(arguments[1:], "--recipe")
    rest, out = take_option(rest, "--out")
    default = load_recipe(Path(recipe)) if recipe else TranslationConfig()
    config: Any = tyro.cli(
        TranslationConfig,
        args=rest,
        default=default,
        prog="glassformer train translation --out FOLDER [--recipe FILE]",
        description="Train a translator on sentence pairs into the model folder --out. It can be stopped at any time, "
        "and goes on when called again.",
        config=(tyro.conf.OmitArgPrefixes,),
    )
    if out is None:
        print("glassformer: --out is missing: expected a name for the model folder", file=sys.stderr)
        sys.exit(2)
    scores = train_translation(config, Path(out))
    print(f"wrote {out}" + (f": BLEU {scores.bleu:.2f}, chrF {scores.chrf:.2f} on the test pairs" if scores else ""))


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
