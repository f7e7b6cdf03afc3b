"""`glassformer eval FOLDER`: score a model. The flags are the data options of the model's task."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.base.dataclass_flags import Option, field_options
from glassformer.base.fields import Count
from glassformer.base.names import path_suggestion
from glassformer.cli.flag_parser import HELP, HELP_ALL, UsageError, help_text, naming_columns, parse_options
from glassformer.metrics.sandbox import SandboxMode
from glassformer.progress import Step, reporting

if TYPE_CHECKING:
    from glassformer.metrics import Scores

USAGE = """\
usage: glassformer eval FOLDER --data PATH ... [OPTIONS]
       glassformer eval FOLDER --source PATH ... --target PATH ... [OPTIONS]

Score a model that was trained here on data of your own, by the metrics of its task. Columns are read as in training.

glassformer eval FOLDER --help shows the options for the model in FOLDER."""


@dataclass(frozen=True)
class EvalOptions:
    """Flags of `eval`, beside those of the data."""

    int8: bool = False
    """Compute with 8-bit weights, as run --int8 does."""
    beam: Count | None = None
    """Beam width that is scored beside greedy search (default: the model's own)."""
    tokenized: str = ""
    """Language of the target, such as de, to add lower-cased tokenized BLEU as older papers report it."""
    problems: Path | None = None
    """Problems with tests (.jsonl with text and test_list, as MBPP), to score by pass@k; programs run in a sandbox."""
    samples: Count = 1
    """Programs per problem; one is greedy, more are sampled."""
    sandbox: SandboxMode = "strict"
    """Protection of programs: strict refuses to run them where the system cannot restrict them, weak runs them."""
    json: bool = False
    """Print one JSON object."""
    quiet: bool = False
    """Show no progress."""


ONLY = {"translation": ("beam", "tokenized"), "code": ("problems", "samples", "sandbox")}
"""Flags that only models of one task have."""


def evaluate(arguments: list[str]) -> None:
    """Parse `FOLDER [--any-field-of-the-data ...]` and score."""
    if not arguments or arguments[0].startswith("-"):
        is_asked = bool({*HELP, HELP_ALL} & {*arguments})
        print(USAGE, file=sys.stdout if is_asked else sys.stderr)
        if is_asked:
            return
        raise UsageError("eval needs a model folder first: expected one that was trained here")
    from glassformer.checkpoint.external_formats import is_external, read_origin
    from glassformer.checkpoint.safe_files import SealedFolder
    from glassformer.pipelines.pipeline_registry import TASK, read_about
    from glassformer.tasks.task_registry import data_named

    folder, *rest = arguments
    if not Path(folder).is_dir():
        hint = "" if Path(folder).exists() else f"; {path_suggestion(Path(folder))}"
        raise ValueError(f"{folder} is no folder: expected a model that was trained here{hint}")
    if is_external(Path(folder)) or read_origin(Path(folder)) is not None:
        raise ValueError(
            f"{folder} is in another library's format and names no task: expected a folder that train wrote. "
            f"glassformer run {folder} --input FILE --output NEW_FILE writes its answers"
        )
    SealedFolder(Path(folder))  # raises if the folder is not a model
    about = read_about(Path(folder))
    kind = data_named(about["task"])
    try:
        usual = kind(**about.get("data", {}))
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{Path(folder) / TASK} does not say how its data was read: {error}") from error
    options = eval_options(about["task"], usual)
    if {*HELP, HELP_ALL} & {*rest}:
        print(eval_help(folder, about["task"], options))
        return
    for flag in rest:
        _check_own(flag, about["task"], options)
    values = parse_options(rest, options, f"eval {folder}")
    names = {field.name for field in fields(usual)}
    data = replace(usual, **{name: value for name, value in values.items() if name in names})
    asked = EvalOptions(**{name: value for name, value in values.items() if name not in names})
    if asked.problems is None and not _has_data(data):
        raise UsageError(f"eval needs data: expected {_files(options)} after {folder}")
    with reporting(quiet=asked.quiet):
        results, scored_on = _scored(folder, about["task"], data, asked)
    if asked.json:
        record: dict[str, Any] = {name: _as_json(scores) for name, scores in results.items()}
        print(json.dumps({**record.get("", record), "scored_on": scored_on}))
        return
    for name, scores in results.items():
        _show(name, scores)
    print(f"scored on {scored_on}")


def _scored(folder: str, task: str, data: Any, asked: EvalOptions) -> "tuple[dict[str, Scores], str]":
    """Return the scores by the name of the search, and a description of what was scored."""
    with Step("loading torch"):
        from glassformer.pipelines.load import load
        from glassformer.pipelines.trained_pipeline import TrainedPipeline
        from glassformer.tasks.task_registry import task_named

        tool = load(folder)
    assert isinstance(tool, TrainedPipeline)
    if asked.int8:
        from glassformer.runtime.quantized_model import quantize

        tool.model = quantize(tool.model)
    if asked.problems is not None:
        results = {"": _problems(tool, asked.problems, asked.samples, asked.sandbox)}
        how = "greedy" if asked.samples == 1 else f"{asked.samples} samples for each problem"
        scored_on = f"{how}, the problems of {asked.problems}"
    else:
        with naming_columns(data):
            examples = data.examples()
        if task == "translation":
            results = _translations(tool, examples, asked.beam, asked.tokenized)
        else:
            results = {"": tool.score(examples)}
        scored_on = _about(task_named(task), data, tool, len(examples))
    return results, scored_on


def _about(task: Any, data: Any, tool: Any, count: int) -> str:
    """Describe what was scored and how: "beam 4, 1,000 pairs from test.en, test.de"."""
    from glassformer.tasks.card import in_short

    corpus = getattr(data, "corpus", "")
    origin = f"of {corpus}" if corpus else f"from {in_short(str(path) for path in data.training_files())}"
    # The score lines of a translator already name the search.
    method = "" if task.name == "translation" else tool.scoring_method()
    return f"{method}, " * bool(method) + f"{count:,} {task.unit} {origin}"


def eval_options(task: str, usual: Any) -> dict[str, Option]:
    """Return the options for a model of this task, by name. The data options have the defaults of `usual`."""
    own = field_options(EvalOptions, EvalOptions(), "")
    others = {name for other, names in ONLY.items() if other != task for name in names}
    scoring = [replace(option, section="Scoring") for option in own if option.name not in others]
    data = [option for option in field_options(type(usual), usual, "data") if not option.name.startswith("valid")]
    return {option.name: option for option in (*data, *scoring)}


def eval_help(folder: str, task: str, options: Mapping[str, Option]) -> str:
    """Return the help for the model in this folder."""
    about = f"Score the model in {folder} ({task}) on data of your own. Columns are read as in training."
    return help_text(f"glassformer eval {folder} {_files(options)} [OPTIONS]", about, options.values())


def _files(options: Mapping[str, Option]) -> str:
    return " ".join(f"{options[name].flag} PATH ..." for name in ("data", "source", "target") if name in options)


def _has_data(data: Any) -> bool:
    """Return whether files or a corpus are named."""
    return any(getattr(data, name, None) for name in ("data", "source", "corpus"))


def _check_own(flag: str, task: str, options: Mapping[str, Option]) -> None:
    """Raise if the flag is for models of another task."""
    name = flag.partition("=")[0].removeprefix("--").replace("-", "_")
    for other, names in ONLY.items():
        if flag.startswith("--") and name in names and name not in options:
            raise UsageError(f"{flag} is for models of {other}: this one was trained for {task}")


def _problems(tool: Any, path: Path, samples: int, sandbox: SandboxMode) -> "Scores":
    """Return pass@k of the model's programs for the problems. Prints the active protections on stderr."""
    from glassformer.data.readers.code_problems import read_problems
    from glassformer.metrics.sandbox import check_sandbox
    from glassformer.pipelines.code_model import CodeModel

    if not isinstance(tool, CodeModel):
        raise ValueError(f"--problems for a model of {tool.task}: expected one that was trained for code")
    problems = read_problems(path)
    print(check_sandbox(sandbox), file=sys.stderr)
    return tool.solve(problems, samples=samples, sandbox=sandbox)


def _translations(tool: Any, pairs: Any, beam: int | None, tokenized: str) -> "dict[str, Scores]":
    """Return the scores of greedy and beam search, with tokenized BLEU if `tokenized` names a language."""
    from glassformer.metrics import Scores, score_translations, tokenized_bleu

    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    results = {}
    beam = beam or tool.generation.num_beams
    for name, width in (("greedy", 1), (f"beam {beam}", beam)):
        found = tool.translate(sources, beam=width)
        scores = score_translations(found, references)
        if tokenized:
            old = tokenized_bleu(found, references, tokenized)
            scores = Scores(
                {**scores.values, "tokenized_bleu": old.bleu}, {**scores.signatures, "tokenized_bleu": old.signature}
            )
        results[name] = scores
    return results


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
