"""`glassformer rate`: blind human evaluation of models."""

import sys
from json import dumps, loads
from pathlib import Path
from typing import Any, Literal

from glassformer.cli.flag_parser import UsageError
from glassformer.cli.run_options import ComputeOptions
from glassformer.cli.serve import import_server
from glassformer.serve.server_options import ListenOptions, RequestLimits

OUTPUT_FIELDS = ("output", "text", "answer", "summary", "translation", "prediction")
INPUT_FIELDS = ("input", "text", "source", "prompt", "question")
OUTPUT_FILES = (".jsonl", ".txt")


def rate(
    systems: tuple[str, ...],
    *,
    data: Path,
    out: Path = Path("ratings.jsonl"),
    mode: Literal["choice", "rating"] = "choice",
    seed: int = 0,
    report: bool = False,
    json: bool = False,
    host: str = "127.0.0.1",
    port: int = 8000,
    compute: ComputeOptions = ComputeOptions(),  # noqa: B008
) -> None:
    """Let people compare or rate the outputs of models, without knowing which model wrote what.

    glassformer rate --data inputs.jsonl my-model other-model, and open the address in a browser. Each rater gives a
    name and sees the items in an order of their own, with the outputs of each item in random order. Mouse and keyboard
    work. Every answer is stored at once. Run the same command again to resume; several raters may work at a time.

    Ctrl-C ends the server and prints the report: win rates or mean ratings with 95 % confidence intervals, and how far
    the raters agree.

    Args:
        systems: Models, which write their outputs first, or files with outputs: .jsonl with a field output or text, or
            .txt with one output per line. NAME=PATH gives a system another name.
        data: Inputs: .jsonl with a field input, text, source, prompt or question (and context), or .txt with one per
            line.
        out: File of answers, as JSON lines. It is created, or continued if it belongs to the same texts and systems.
        mode: choice asks which output is best, or whether they are equally good. rating asks for 1 to 5 for each.
        seed: Decides the random orders.
        report: Print the report about the answers so far, and start no server.
        json: Print the report as JSON.
        host: Address to listen on; the default is this machine only.
        port: Port to listen on; 0 is any free one.
    """
    if not systems:
        raise UsageError("SYSTEMS is missing: glassformer rate --help shows how to use it")
    if not 0 <= port <= 65535:
        raise UsageError(f"--port {port}: expected 0 to 65535")
    import_server("rate")
    from glassformer.serve.rating_report import report as make_report
    from glassformer.serve.rating_session import RatingSession
    from glassformer.serve.served_models import parse_models

    inputs = [_text_of(one, INPUT_FIELDS, place, data) for place, one in enumerate(_records(data))]
    outputs = {name: _outputs(path, inputs, compute) for name, path in parse_models(systems).items()}
    session = RatingSession(inputs, outputs, out, mode, seed=seed)
    if not report:
        from glassformer.serve.http_server import serve
        from glassformer.serve.rating_app import make_rating_app

        def say(address: str) -> None:
            print(f"rate at {address}", flush=True)
            print("Ctrl-C ends and prints the report.", file=sys.stderr)

        serve(make_rating_app(session), ListenOptions(host=host, port=port), RequestLimits(drain=5), on_start=say)
    found = make_report(session.answers, session.systems, mode)
    print(dumps(found.as_json(), ensure_ascii=False) if json else found.as_text())


def _outputs(path: Path, inputs: list[str], compute: ComputeOptions) -> list[str]:
    """Return the outputs of a system for all inputs: those in a file, or what a model writes now."""
    if path.suffix in OUTPUT_FILES and path.is_file():
        return [_text_of(one, OUTPUT_FIELDS, place, path) for place, one in enumerate(_records(path))]
    model = compute.load(path)
    print(f"{path} writes {len(inputs)} outputs ...", file=sys.stderr)
    return [str(line) for line in model.run(inputs)]


def _records(path: Path) -> list[Any]:
    """Return the lines of a file of inputs or outputs: strings, or JSON values. Only a line feed ends a line."""
    from glassformer.data.readers.text_files import BadUtf8Error, check_file, read_lines

    if path.suffix not in OUTPUT_FILES:
        raise UsageError(f"{path}: expected a file that ends in .jsonl or .txt")
    check_file(path)
    found: list[Any] = []
    for text, problem, where in read_lines(path):
        if problem:
            raise BadUtf8Error(where)
        if path.suffix == ".txt":
            found.append(text)
        elif text.strip():
            try:
                found.append(loads(text))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{where} is not JSON: {error}") from error
    return found


def _text_of(record: Any, fields: tuple[str, ...], place: int, path: Path) -> str:
    """Return the text of a record: the record itself, or its first field of these names."""
    if isinstance(record, str):
        return record
    name = next((field for field in fields if isinstance(record, dict) and isinstance(record.get(field), str)), None)
    if name is None:
        raise ValueError(f"{path}: record {place + 1} has no text: expected one of the fields {', '.join(fields)}")
    if name == "question" and isinstance(record.get("context"), str):
        return f"{record['question']}\t{record['context']}"
    return str(record[name])
