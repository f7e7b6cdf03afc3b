"""`glassformer train TASK`: its flags are the fields of the task's config."""

import sys
from pathlib import Path
from typing import Any

TASKS = {
    "translation": "Train a translator on sentence pairs",
    "classification": "Train a classifier on labelled texts, from scratch or from somebody's encoder (--start-from)",
}


def train(arguments: list[str]) -> None:
    """Parse `TASK [--recipe FILE] --out FOLDER [--any-config-field ...]` and train."""
    if arguments[:1] not in [[task] for task in TASKS]:
        asked = arguments[0] if arguments else "nothing"
        lines = "\n".join(f"  {task:16}{about}" for task, about in TASKS.items())
        print(f"usage: glassformer train TASK --help\n\n{lines}", file=sys.stderr)
        if asked in ("-h", "--help"):
            sys.exit(0)
        print(f"\n{asked!r} is no task: expected one of {', '.join(TASKS)}", file=sys.stderr)
        sys.exit(2)
    task, *rest = arguments
    if task == "translation":
        from glassformer.tasks.translation import TranslationConfig, train_translation

        config, out = _parse(task, rest, TranslationConfig)
        translated = train_translation(config, out)
        told = f": BLEU {translated.bleu:.2f}, chrF {translated.chrf:.2f} on the test pairs" if translated else ""
    else:
        from glassformer.tasks.classification import ClassificationConfig, train_classification

        config, out = _parse(task, rest, ClassificationConfig)
        found = train_classification(config, out)
        told = f": accuracy {found.accuracy:.2%}, macro-F1 {found.macro_f1:.2%} on the texts for validation"
    print(f"wrote {out}{told}")


def _parse(task: str, arguments: list[str], kind: Any) -> tuple[Any, Path]:
    """The task's config, from a recipe and flags, and where the model goes."""
    import tyro

    from glassformer.tasks.recipes import load_recipe

    rest, recipe = take_option(arguments, "--recipe")
    rest, out = take_option(rest, "--out")
    config = tyro.cli(
        kind,
        args=rest,
        default=load_recipe(Path(recipe), kind) if recipe else kind(),
        prog=f"glassformer train {task} --out FOLDER [--recipe FILE]",
        description=f"{TASKS[task]}, into the model folder --out. It can be stopped at any time, and goes on when "
        "called again.",
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
