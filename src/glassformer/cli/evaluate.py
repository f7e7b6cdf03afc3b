"""`glassformer eval MODEL`: score a model. The flags are the data options of the model's task."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from glassformer.base.dataclass_flags import Option, field_options
from glassformer.base.names import path_suggestion
from glassformer.cli.evaluate_pretrained import choose_task, evaluate_pretrained, for_task
from glassformer.cli.flag_parser import (
    HELP,
    HELP_ALL,
    UsageError,
    call_function,
    help_text,
    naming_columns,
    parse_options,
)
from glassformer.cli.process import computing_for_long
from glassformer.cli.run_options import ComputeOptions, reporting_truncated
from glassformer.pipelines.pipeline_registry import PIPELINES
from glassformer.progress import Step, reporting

if TYPE_CHECKING:
    from glassformer.metrics import Scores

USAGE = """\
usage: glassformer eval MODEL --data PATH ... [OPTIONS]
       glassformer eval MODEL --choices PATH ... [OPTIONS]
       glassformer eval MODEL --source PATH ... --target PATH ... [OPTIONS]

Score a model on your own data.

A model trained with Glassformer is scored by the metrics of its task. Columns
are read as in training. A pretrained decoder is scored by the perplexity of
texts or by multiple choice, a pretrained encoder by the task of its head, and a
pretrained encoder-decoder as a translator, unless --task names another task.

For pretrained encoder-decoders:
  --task NAME             Task to score: translation, summarization or
                          answering. (default: translation)

glassformer eval MODEL --help shows the options for that model."""


@dataclass(frozen=True, kw_only=True)
class ScoringOptions(ComputeOptions):
    """Flags of `eval` that every task has, in addition to those about the data.

    A task may have further flags (`Task.EvalOptions`).
    """

    truncate: bool = False
    """Read only the beginning of a text that is longer than the model's limit, and report at the end how many were
    cut. Without it, such a text is an error."""
    json: bool = False
    """Print one JSON object."""
    quiet: bool = False
    """Show no progress."""


def evaluate(arguments: list[str]) -> None:
    """Run `glassformer eval` with the arguments `FOLDER [OPTIONS]`: score the model in FOLDER and print the scores."""
    if not arguments or arguments[0].startswith("-"):
        is_asked = bool({*HELP, HELP_ALL} & {*arguments})
        print(USAGE, file=sys.stdout if is_asked else sys.stderr)
        if is_asked:
            return
        raise UsageError("eval needs a model folder first: expected one that was trained here")
    from glassformer.checkpoint.download_cache import find_model
    from glassformer.checkpoint.external_formats import is_external, read_origin
    from glassformer.checkpoint.safe_files import SealedFolder
    from glassformer.checkpoint.summary import summarize
    from glassformer.pipelines.pipeline_registry import TASK, read_about
    from glassformer.tasks.task_registry import task_named

    folder, *rest = arguments
    allow_pickle = "--allow-pickle" in rest
    path = find_model(folder)
    if not path.exists():
        raise ValueError(f"{folder} is no folder: expected a model that was trained here; {path_suggestion(path)}")
    if not (path / TASK).is_file() and (is_external(path) or read_origin(path) is not None):
        config = summarize(path, allow_pickle=allow_pickle).config
        if config.kind == "decoder":
            call_function(evaluate_pretrained, [str(path), *rest], "eval")
            return
        about, rest = choose_task(folder, config, rest)
    else:
        SealedFolder(path)  # raises if the folder is not a model
        about = read_about(path)
    task = task_named(about["task"])
    try:
        usual = task.data_class()(**about.get("data", {}))
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path / TASK} does not say how its data was read: {error}") from error
    options = eval_options(about["task"], usual)
    if {*HELP, HELP_ALL} & {*rest}:
        print(eval_help(folder, about["task"], usual, options))
        return
    for flag in rest:
        _check_own(flag, about["task"], options)
    values = parse_options(rest, options, f"eval {folder}")
    data = replace(usual, **_values_of(type(usual), values))
    own = task.EvalOptions(**_values_of(task.EvalOptions, values))
    asked = ScoringOptions(**_values_of(ScoringOptions, values))
    if own.needs_data and not data.is_given():
        raise UsageError(f"eval needs data: expected {_files(usual, options)} after {folder}")
    with reporting(quiet=asked.quiet), Step("loading torch"):
        pipeline = for_task(asked.load(path, allow_pickle=allow_pickle), about["task"], data)
    with reporting_truncated(pipeline, truncate=asked.truncate), computing_for_long():
        with reporting(quiet=asked.quiet), naming_columns(data):
            results, scored_on = task.evaluate(pipeline, data, own)
        _print(results, scored_on, as_json=asked.json)


def _print(results: "Mapping[str, Scores]", scored_on: str, *, as_json: bool) -> None:
    if as_json:
        record: dict[str, Any] = {name: _as_json(scores) for name, scores in results.items()}
        print(json.dumps({**record.get("", record), "scored_on": scored_on}))
        return
    for name, scores in results.items():
        _show(name, scores)
    print(f"scored on {scored_on}")


def _values_of(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Select from `values`, the option values by name, those that are fields of the dataclass `kind`."""
    return {field.name: values[field.name] for field in fields(kind) if field.name in values}


def eval_options(task: str, usual: Any) -> dict[str, Option]:
    """Return the options of `eval` for a model of this task, by name.

    `usual` is the config with which the model's training data was read. Its values are the defaults of the options
    about the data.
    """
    from glassformer.tasks.task_registry import task_named

    own = task_named(task).EvalOptions
    scoring = [*field_options(own, own(), ""), *field_options(ScoringOptions, ScoringOptions(), "")]
    if "writing" not in PIPELINES[task].takes:  # encoders cut long texts without being asked to
        scoring = [option for option in scoring if option.name != "truncate"]
    data = [option for option in field_options(type(usual), usual, "data") if not option.name.startswith("valid")]
    return {option.name: option for option in (*data, *(replace(option, section="Scoring") for option in scoring))}


def eval_help(folder: str, task: str, usual: Any, options: Mapping[str, Option]) -> str:
    """Return the text of `glassformer eval MODEL --help`, which depends on the task of the model in the folder."""
    about = f"Score the model in {folder} ({task}) on your own data. Columns are read as in training."
    return help_text(f"glassformer eval {folder} {_files(usual, options)} [OPTIONS]", about, options.values())


def _files(data: Any, options: Mapping[str, Option]) -> str:
    """Return the flags that name the files to score on, such as "--source PATH ... --target PATH ..."."""
    return " ".join(f"{options[name].flag} PATH ..." for name in data.FILE_FIELDS if name in options)


def _check_own(flag: str, task: str, options: Mapping[str, Option]) -> None:
    """Raise UsageError if only another task has this flag, in its `EvalOptions`. `options` are those of `task`."""
    from glassformer.tasks.task_registry import TASKS, task_named

    name = flag.partition("=")[0].removeprefix("--").replace("-", "_")
    if not flag.startswith("--") or name in options:
        return
    for other in TASKS:
        if name in (field.name for field in fields(task_named(other).EvalOptions)):
            raise UsageError(f"{flag} is for models of {other}: this one was trained for {task}")


def _as_json(scores: "Scores") -> dict[str, Any]:
    tables = {name: table.to_dict() for name, table in scores.tables.items()}
    return {**scores.values, "signatures": dict(scores.signatures), **tables}


def _show(name: str, scores: "Scores") -> None:
    from glassformer.metrics.scores import in_digits, title_of

    for key, value in scores.values.items():
        line = f"{name:8}  " * bool(name) + f"{title_of(key)} {in_digits(key, value)}  {scores.signatures.get(key, '')}"
        print(line.rstrip())
    for table in scores.tables.values():
        print(f"\n{table.about}:\n{table}")
