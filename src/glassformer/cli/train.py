"""`glassformer train TASK`: its flags are the fields of the task's config.

`--lr 0.001` sets `config.train.lr`, and `--d-model 256` sets `config.model.d_model`, so that a new field needs no new
code here. A recipe (TOML) sets the same names, and flags override it. Options that were not given stay unset until the
data are known, because defaults such as the model's size depend on them. `RunOptions` are the flags that belong to
this run and to no recipe, such as `--out`.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glassformer.base.fields import Whole
from glassformer.cli.flag_parser import HELP, HELP_ALL, UsageError, help_text, naming_columns, parse_options
from glassformer.cli.launch import is_follower, is_started, launch
from glassformer.progress import Step, reporting

if TYPE_CHECKING:
    from glassformer.training.callbacks import Callbacks


@dataclass(frozen=True)
class RunOptions:
    """Flags of `train` that are not part of a recipe."""

    out: Path | None = None
    """Model folder to write; the run folder OUT.run beside it holds the checkpoints to resume from."""
    recipe: Path | None = None
    """TOML file with options for this task; flags override it."""
    size: Literal["auto", "tiny", "small", "base"] = "auto"
    """Size of the model: auto fits it to the data and the time; tiny is 128 wide, small 256, base 512."""
    preset: str = ""
    """Family whose architecture the model has, such as llama or bert-base; its size is chosen by --size."""
    restart: bool = False
    """Discard the run in OUT.run and start anew."""
    accept_changes: bool = False
    """Continue from the newest checkpoint with other settings or other data, or with more updates."""
    quiet: bool = False
    """Show no progress. Errors and the last line are still shown."""
    overwrite: bool = False
    """Replace a model in --out that another run wrote; other files are never replaced."""
    devices: Whole = 0
    """Train with this many processes on this machine, one per GPU or core; 0 is one process without a launcher."""
    max_restarts: Whole = 0
    """With --devices, start again from the newest checkpoint this many times if a process is killed."""
    track: Literal["none", "wandb", "mlflow"] = "none"
    """Also log losses and scores to Weights & Biases or MLflow, whose package must be installed. TensorBoard events are
    in OUT.run wherever tensorboard is installed."""


def train(arguments: list[str]) -> None:
    """Run `glassformer train` with the arguments `TASK --out FOLDER [OPTIONS]`: train a model, or print the help."""
    began = time.perf_counter()  # --minutes includes the time to load torch
    wants_help = bool({*HELP, HELP_ALL} & {*arguments})
    if not arguments or arguments[0].startswith("-"):
        _explain_tasks(arguments, wants_help)
        return
    from glassformer.tasks.task_registry import TASKS, unknown_task

    task, *rest = arguments
    if task not in TASKS:
        raise UsageError(f"{unknown_task(task)} (glassformer train --help lists the tasks)")
    if wants_help:
        print(task_help(task, HELP_ALL in rest))
        return
    given, run = read_given(task, rest)
    if run.get("restart") and run.get("accept_changes"):
        raise UsageError("--restart discards the run and --continue keeps it: expected one of them")
    devices, max_restarts = run.pop("devices", 0), run.pop("max_restarts", 0)
    if devices and not is_started():
        launch(["train", *arguments], devices, max_restarts)
    _train(task, given, run, began)


def _explain_tasks(arguments: list[str], wants_help: bool) -> None:
    """Print the list of tasks, for a command without a task. Raise UsageError unless the user asked for help."""
    print(task_list(), file=sys.stdout if wants_help else sys.stderr)
    if not wants_help:
        from glassformer.tasks.task_registry import TASKS

        found = arguments[0] if arguments else "none"
        raise UsageError(f"train needs a task first, but found {found}: expected one of {', '.join(TASKS)}")


def _train(task: str, given: dict[str, Any], run: dict[str, Any], began: float) -> None:
    """Choose the defaults, train the model, and print its scores.

    `given` and `run` are the options that `read_given` returns. `began` is the time at which the command started, by
    `time.perf_counter`; `--minutes` counts from it.
    """
    from glassformer.tasks.train_function import read_request

    dials = {name: run.pop(name) for name in ("recipe", "size", "preset") if name in run}
    try:
        request = read_request(task, given, **dials)
    except TypeError as error:
        raise ValueError(str(error)) from error
    out = run.pop("out")
    with reporting(quiet=run.pop("quiet", False) or is_follower()):
        with Step("loading torch"):
            made = request.make()
        callbacks = _callbacks(run.pop("track", "none"), out, made.config)
        with naming_columns(made.config.data):
            scores = made.train(out, began=began, **run, **callbacks)
    if not is_follower():
        print(f"wrote {out}: {scores}")


def _callbacks(tracker: str, out: Path, config: Any) -> "Callbacks":
    """Return the training callbacks that log to the tracker of --track; none for "none"."""
    if tracker == "none":
        return {}
    from glassformer.training.trackers import TRACKERS

    return TRACKERS[tracker](name=out.name, config=json.loads(json.dumps(asdict(config), default=str)))


def read_given(task: str, arguments: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse the options of `train TASK`. Return two dicts: the options of the config, and those of `RunOptions`.

    The keys of the first are dotted names such as `train.lr`. Options that were not given are missing from both dicts,
    so that their defaults can be chosen later.
    """
    from glassformer.base.dataclass_flags import options_of
    from glassformer.tasks.task_registry import config_named

    kind = config_named(task)
    options, own = options_of(kind), run_options()
    values = parse_options(arguments, {**options, **own}, f"train {task}")
    run = {own[name].path: values.pop(name) for name in own if name in values}
    if "out" not in run:
        raise UsageError("--out is missing: expected a name for the model folder")
    return {options[name].path: value for name, value in values.items()}, run


def run_options() -> dict[str, Any]:
    """Return the options in `RunOptions`, by their names on the command line.

    The names are those of the fields, except that `accept_changes` is `--continue` on the command line, because
    `continue` cannot be a field name in Python.
    """
    from dataclasses import replace

    from glassformer.base.dataclass_flags import field_options

    found = [replace(one, path=one.name, section="Run") for one in field_options(RunOptions, RunOptions(), "")]
    spelled = [replace(one, name="continue") if one.name == "accept_changes" else one for one in found]
    return {one.name: one for one in spelled}


def task_list() -> str:
    """Return the text of `glassformer train --help`: the tasks, and what each trains."""
    from glassformer.tasks.task_registry import TASKS

    lines = "\n".join(f"  {name:16}{entry.about}" for name, entry in TASKS.items())
    usage, more = (
        "usage: glassformer train TASK --out FOLDER [OPTIONS]",
        "glassformer train TASK --help shows its options.",
    )
    return f"{usage}\n\nTasks:\n{lines}\n\n{more}"


def task_help(task: str, everything: bool) -> str:
    """Return the help of `train TASK`, with the most important options, or with all of them if `everything`."""
    from dataclasses import replace

    from glassformer.base.dataclass_flags import options_of
    from glassformer.tasks.configs.defaults import default_minutes
    from glassformer.tasks.configs.task_options import SHOWN_FIRST
    from glassformer.tasks.task_registry import TASKS, config_named

    kind = config_named(task)
    options, own = options_of(kind), run_options()
    minutes = default_minutes(kind, {})
    options["minutes"] = replace(
        options["minutes"], about=f"{options['minutes'].about} (default: {minutes:g}, unless --updates is given)"
    )
    files = [option for option in options.values() if option.name in kind.FIRST_OPTIONS[:2]]
    named = " ".join(f"{option.flag} PATH ..." for option in files if option.name != "valid")
    named = f"--from MODEL {named}" if kind.NEEDS_MODEL else named
    usage = f"glassformer train {task} {named} --out FOLDER [OPTIONS]"
    about = f"Train {TASKS[task].about}. It can be stopped at any time; run the same command again to resume."
    if everything:
        ordered = sorted([*own.values(), *options.values()], key=lambda option: _SECTION_ORDER.index(_top(option)))
        return help_text(usage, about, ordered)
    shown = [own["out"], *(options[name] for name in (*kind.FIRST_OPTIONS, *SHOWN_FIRST))]
    shown += [own[name] for name in (*(() if kind.NEEDS_MODEL else ("size",)), "recipe", "continue")]
    more = f"glassformer train {task} {HELP_ALL} lists all {len(options) + len(own)} options."
    names = options["corpus"].about.partition("instead of files: ")[2] if "corpus" in options else ""
    if names:
        more = f"--corpus NAME trains on a named corpus instead of files: {names} {more}"
    return help_text(usage, about, [replace(option, section="Options") for option in shown], more)


_SECTION_ORDER = ("Run", "Data", "Task", "Training", "Model", "Tokenizer")


def _top(option: Any) -> str:
    return str(option.section).partition(":")[0]
