"""`glassformer eval FOLDER`: its flags are those that say where the data of the folder's task is."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.metrics import Scores
    from glassformer.metrics.sandbox import SandboxMode

USAGE = """\
usage: glassformer eval FOLDER [OPTIONS]

Score a model that was trained here on data of your own, by its task's metrics. glassformer eval FOLDER --help tells
how its data is named: --data, or for a translator --source and --target."""


def evaluate(arguments: list[str]) -> None:
    """Parse `FOLDER [--any-field-of-the-data ...]` and score."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        sys.exit(0 if arguments else 2)
    import tyro

    from glassformer.tasks.registry import TASK, data_named, read_about

    folder, *rest = arguments
    if not Path(folder).is_dir():
        raise ValueError(f"{folder} is no folder: expected a model that was trained here")
    about = read_about(Path(folder))
    kind = data_named(about["task"])
    try:
        known = {
            key: tuple(value) if isinstance(value, list) else value for key, value in about.get("data", {}).items()
        }
        usual = replace(kind(), **known)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{Path(folder) / TASK} does not say how its data was read: {error}") from error
    options = tyro.cli(
        _options_of(kind),
        args=rest,
        default=_options_of(kind)(data=usual),
        prog=f"glassformer eval {folder}",
        description=f"Score this model ({about['task']}) on data of your own.",
        config=(tyro.conf.OmitArgPrefixes,),
    )
    from glassformer.tasks.load import load
    from glassformer.tasks.task import Tool

    tool = load(folder)
    assert isinstance(tool, Tool)
    if options.int8:
        from glassformer.decoding.int8 import quantise

        tool.model = quantise(tool.model)
    if options.problems is not None:
        results = {"": _problems(tool, options.problems, options.samples, options.sandbox)}
    else:
        examples = options.data.examples()
        if about["task"] == "translation":
            results = _translations(tool, examples, options.beam, options.tokenised)
        else:
            results = {"": tool.score(examples)}
    if options.json:
        told = {name: _as_json(scores) for name, scores in results.items()}
        print(json.dumps(told.get("", told)))
        return
    for name, scores in results.items():
        _show(name, scores)


def _options_of(kind: Any) -> Any:
    """The data's own fields, and what every task's evaluation can be asked for."""
    from dataclasses import dataclass

    from glassformer.metrics.sandbox import SandboxMode

    @dataclass(frozen=True)
    class Options:
        """How to score."""

        data: kind
        int8: bool = False
        """Compute with 8-bit weights, as `run --int8` would."""
        beam: int = 0
        """Of a translator: the width of the beam that is scored beside greedy; 0 is the model's own."""
        tokenised: str = ""
        """Of a translator: the target's language, such as de, for lower-cased tokenised BLEU as older papers report
        it."""
        problems: Path | None = None
        """Of a code model: problems with tests, as MBPP has them (.jsonl; text, test_list), to score by pass@k. What it
        writes is run, in a sandbox."""
        samples: int = 1
        """Of a code model: programs for each problem; one is greedy, more are drawn."""
        sandbox: SandboxMode = "strict"
        """Of a code model: strict refuses to run its programs where the operating system cannot restrict them; weak
        runs them with whatever protections there are."""
        json: bool = False
        """Print one JSON object."""

    return Options


def _problems(tool: Any, path: Path, samples: int, sandbox: "SandboxMode") -> "Scores":
    """The share of problems whose tests its programs pass. Prints the active protections on stderr."""
    from glassformer.data.problems import read_problems
    from glassformer.metrics.sandbox import check_sandbox
    from glassformer.tasks.code_model import CodeModel

    if not isinstance(tool, CodeModel):
        raise ValueError(f"--problems for a model of {tool.task}: expected one that was trained for code")
    problems = read_problems(path)
    print(check_sandbox(sandbox), file=sys.stderr)
    return tool.solve(problems, samples=samples, sandbox=sandbox)


def _translations(tool: Any, pairs: Any, beam: int, tokenised: str) -> "dict[str, Scores]":
    """Greedy beside the beam, and older papers' BLEU where it is asked for."""
    from glassformer.metrics import Scores, score_translations, tokenised_bleu

    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    results = {}
    beam = beam or tool.generation.num_beams
    for name, width in (("greedy", 1), (f"beam {beam}", beam)):
        found = tool.translate(sources, beam=width)
        scores = score_translations(found, references)
        if tokenised:
            old = tokenised_bleu(found, references, tokenised)
            scores = Scores(
                {**scores.values, "tokenised_bleu": old.bleu}, {**scores.signatures, "tokenised_bleu": old.signature}
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
