"""`glassformer prepare TASK`: tokenize a corpus into shards, once, for `train TASK --prepared`. Imports no torch."""

import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from glassformer.base.dataclass_flags import Option, field_options, options_of
from glassformer.base.plurals import counted
from glassformer.cli.flag_parser import HELP, HELP_ALL, UsageError, help_text, naming_columns, parse_options
from glassformer.cli.part_option import read_part
from glassformer.progress import reporting
from glassformer.tasks.prepare_units import PREPARED_TASKS

ABOUT = """\
Tokenize the data of a task into shards, so that training starts at once whatever the size of the corpus.

The tokenizer is trained on a sample. Run the same command again to resume. On a cluster, run it as an array job with
--part 1/N to --part N/N and one --out; the last part to end makes the corpus complete. Then train with
glassformer train TASK --prepared FOLDER."""


@dataclass(frozen=True)
class PrepareOptions:
    """Flags of `prepare` that do not say which data is read."""

    out: Path | None = None
    """Folder to write; it must be new, or hold an interrupted preparation of the same data."""
    processes: int = 0
    """Number of processes that tokenize; 0 is one per core."""
    part: str = ""
    """Tokenize part I of N only, such as 2/8. (default: all of the data)"""
    quiet: bool = False
    """Show no progress. Errors and the last line are still shown."""


def prepare(arguments: list[str]) -> None:
    """Run `glassformer prepare TASK --out FOLDER [OPTIONS]`, or print the help."""
    wants_help = bool({*HELP, HELP_ALL} & {*arguments})
    task = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if task is None and wants_help:
        print(
            f"usage: glassformer prepare TASK --out FOLDER [OPTIONS]\n\n{ABOUT}\n\nTasks: {', '.join(PREPARED_TASKS)}"
        )
        return
    if task not in PREPARED_TASKS:
        found = "no task" if task is None else task
        raise UsageError(f"prepare needs a task first, but found {found}: expected {' or '.join(PREPARED_TASKS)}")
    flags = prepare_flags(task)
    if wants_help:
        print(help_text(f"glassformer prepare {task} --out FOLDER [OPTIONS]", ABOUT, list(flags.values())))
        return
    values = {flags[name].path: value for name, value in parse_options(arguments[1:], flags, f"prepare {task}").items()}
    names = [one.name for one in fields(PrepareOptions)]
    own: dict[str, Any] = {name: values.pop(name) for name in names if name in values}
    if "out" not in own:
        raise UsageError("--out is missing: expected a name for the folder of tokenized data")
    if own.get("processes", 0) < 0:
        raise UsageError(f"--processes {own['processes']}: expected 0 or more")
    _prepare(task, values, own)


def prepare_flags(task: str) -> dict[str, Option]:
    """Return the flags of `prepare TASK`: its own, and those of the data and of the tokenizer."""
    from glassformer.tasks.prepare_corpus import OPTIONS
    from glassformer.tasks.task_registry import config_named

    own = [
        replace(one, path=one.name, section="Preparation")
        for one in field_options(PrepareOptions, PrepareOptions(), "")
    ]
    found = {one.name: one for one in own}
    for name, option in options_of(config_named(task)).items():
        if option.path.startswith(OPTIONS) and option.path not in ("data.corpus", "data.folder", "data.prepared"):
            found[name] = option
    if "vocab_size" in found:
        about = f"{found['vocab_size'].about} (default: by the size of the data)"
        found["vocab_size"] = replace(found["vocab_size"], about=about)
    return found


def _prepare(task: str, given: dict[str, Any], own: dict[str, Any]) -> None:
    from glassformer.tasks.configs.task_options import make_config
    from glassformer.tasks.prepare_corpus import is_prepared, prepare_corpus
    from glassformer.tasks.task_registry import config_named

    part = read_part(own.get("part", ""))
    config: Any = make_config(config_named(task), {"model.vocab_size": 1, **given})
    if not config.data.is_given():
        raise ValueError(config.data.NO_FILES)
    out = own["out"]
    was_complete = is_prepared(out)
    with reporting(quiet=own.get("quiet", False)), naming_columns(config.data):
        corpus = prepare_corpus(task, config, out, processes=own.get("processes", 0), part=part)
    if corpus is None:
        print(f"wrote part {part[0]} of {part[1]} to {out}; other parts are not complete yet")
        return
    n_shards = sum(map(len, corpus.shards().values()))
    done = f"{out} is complete already" if was_complete else f"wrote {out}"
    print(f"{done}: {counted(corpus.size.examples, 'examples')} in {counted(n_shards, 'shards')}")
    print(f"train on it: glassformer train {task} --prepared {out} --out MODEL", file=sys.stderr)
