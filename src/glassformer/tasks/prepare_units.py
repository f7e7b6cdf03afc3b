"""Tokenize units of a large corpus (`prepare_corpus.py`), each in a separate process. Imports no torch.

A process is `python -m glassformer.tasks.prepare_units FOLDER`, with the numbers of its units as JSON on stdin. It
writes an error as one line to stdout. It ends if the process that started it has ended.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from glassformer.checkpoint.output_folder import lock_folder
from glassformer.checkpoint.safe_files import CorruptFolderError, read_json_object
from glassformer.data.batching.pair_shards import write_pair_shards
from glassformer.data.batching.token_files import UNITS, EncodeBatch, new_token_folder
from glassformer.data.batching.token_stream import write_stream
from glassformer.data.readers.file_parts import FilePart
from glassformer.data.readers.splits import is_held_out
from glassformer.data.readers.text_files import Span
from glassformer.progress import Step
from glassformer.tasks.configs.divided_data import DividedData
from glassformer.tasks.configs.task_options import make_config
from glassformer.tasks.tokenized_corpus import PLAN, VALID, check_digests
from glassformer.text import BpeDropout, Tokenizer
from glassformer.text.tokenizer import UNKNOWN

PREPARED_TASKS = ("translation", "language")
"""Tasks whose data can be prepared."""
PAUSE_SECONDS = 0.1
UNIT = "unit.json"
"""The file of a unit that lists its shards and counts its examples."""


def unit_folder(folder: Path, number: int) -> Path:
    """Return the folder of a unit."""
    return folder / UNITS / f"{number:05d}"


def is_complete(folder: Path, number: int) -> bool:
    """Whether a unit is there, and its shards have the sizes that it lists."""
    place = unit_folder(folder, number)
    try:
        versions = read_json_object(place / UNIT)["versions"]
    except CorruptFolderError:
        return False
    sizes = {
        place / shard / name: size
        for shards in versions
        for shard, files in shards.items()
        for name, size in files.items()
    }
    return (place / VALID).is_file() and all(
        file.is_file() and file.stat().st_size == size for file, size in sizes.items()
    )


def run_units(folder: Path, units: Sequence[int], *, processes: int = 0) -> int:
    """Tokenize these units of the plan in `folder`, except those that are complete. Return how many were not.

    With one process, or one unit, it is done here; otherwise by new processes. 0 processes is one per core.
    """
    todo = [unit for unit in units if not is_complete(folder, unit)]
    processes = min(processes or len(os.sched_getaffinity(0)), len(todo))
    ended: list[int | None] = []
    with Step("tokenizing", len(todo)) as step:
        if processes <= 1:
            for unit in todo:
                write_unit(folder, unit)
                step.advance()
            return len(todo)
        workers = [_start(folder, todo[place::processes]) for place in range(processes)]
        try:
            while any(worker.poll() is None for worker in workers) and not any(worker.poll() for worker in workers):
                step.show(sum(unit_folder(folder, unit).is_dir() for unit in todo))
                time.sleep(PAUSE_SECONDS)
        finally:
            ended = [worker.poll() for worker in workers]
            for worker in workers:
                if worker.poll() is None:
                    worker.terminate()
            outputs = [worker.communicate()[0] for worker in workers]
    for code, output in zip(ended, outputs, strict=True):
        if code and output:
            raise ValueError(output.strip())
    for code in filter(None, ended):  # those that ended by themselves
        how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
        raise OSError(f"a process that tokenized data {how}: run the command again; complete units are kept")
    return len(todo)


def _start(folder: Path, units: Sequence[int]) -> "subprocess.Popen[str]":
    package = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    # Each process has one thread: together they use the cores.
    environment = {**os.environ, "PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "glassformer.tasks.prepare_units", str(folder), str(os.getpid())]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert worker.stdin is not None
    worker.stdin.write(json.dumps(list(units)))
    worker.stdin.close()
    worker.stdin = None  # so that communicate() does not flush it
    return worker


def main(folder: Path, parent: int) -> int:
    """Tokenize the units whose numbers are on stdin, and return the exit code."""
    try:
        for unit in json.load(sys.stdin):
            if os.getppid() != parent:
                return 0
            write_unit(folder, unit)
    except (ValueError, OSError) as error:
        print(error)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def part_of(record: Mapping[str, Any]) -> FilePart:
    """Return a part of the data files from its record in a plan."""
    return FilePart(tuple(map(Path, record["files"])), tuple(Span(*span) for span in record["spans"]))


def training_examples(
    data: DividedData[Any],
    unit: Mapping[str, Any],
    valid_from: float,
    held_out: list[Any] | None = None,
    skipped: Counter[str] | None = None,
) -> Iterator[Any]:
    """Yield the training examples of a unit. Validation examples are added to `held_out`, bad records to `skipped`."""
    for record in unit["parts"]:
        examples = data.read_part(part_of(record))
        for example in examples:
            text = data.held_out_text(example)
            if text is None or not is_held_out(text, valid_from):
                yield example
            elif held_out is not None:
                held_out.append(example)
        if skipped is not None:
            skipped.update(getattr(examples, "skipped", {}))


def write_unit(folder: Path, number: int) -> None:
    """Tokenize a unit into its folder, which appears when it is complete.

    Raises FolderInUseError if another process does so, such as one of another `--part` with another number of parts.
    """
    lock = f"unit-{number:05d}.lock"
    with lock_folder(folder, lock):
        try:
            if not is_complete(folder, number):
                _write_unit(folder, number)
        finally:
            (folder / lock).unlink(missing_ok=True)


def _write_unit(folder: Path, number: int) -> None:
    plan = read_json_object(folder / PLAN)
    config = _config_of(plan)
    data, unit = config.data, plan["units"][number]
    sizes, n_long = [0, 0, 0], 0
    held_out: list[Any] = []
    skipped = Counter[str]()
    shards: list[dict[str, dict[str, int]]] = []
    check_digests(folder, plan.get("tokenizers", {}))

    def examples(*, is_first: bool) -> Iterator[Any]:
        found = (held_out, skipped) if is_first else (None, None)
        for example in training_examples(data, unit, plan["valid_from"], *found):
            if is_first:
                sides = (example.source, example.target) if data.TOKENS == "pairs" else ("", example.text)
                sizes[0] += getattr(example, "starts", True)
                sizes[1] += len(sides[0])
                sizes[2] += len(sides[1])
            yield example

    with new_token_folder(unit_folder(folder, number)) as work:
        for version, encoders in enumerate(_encoders(folder, config)):
            place = work / f"v{version}"
            some = examples(is_first=not version)
            if data.TOKENS == "pairs":
                max_len = (config.model.max_len or 10**9) - 1
                found, n_long = write_pair_shards(place, some, *encoders, max_len=max_len)
            else:
                found = [place / "00000"]
                write_stream(
                    found[0],
                    some,
                    partial(_encode_texts, encoders[0]),
                    has_documents=plan["has_documents"],
                    unknown=UNKNOWN,
                    size=lambda one: len(one.text.encode()),
                    ends=False,
                    starts=lambda one: one.starts,
                )
            names = {str(one.relative_to(work)): {f.name: f.stat().st_size for f in one.iterdir()} for one in found}
            shards.append(names)
        lines = (json.dumps(data.record_of(example), ensure_ascii=False) for example in held_out)
        (work / VALID).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        about = {
            "size": sizes,
            "n_long": n_long,
            "skipped": skipped,
            "tokenizers": plan.get("tokenizers"),
            "versions": shards,
        }
        (work / UNIT).write_text(json.dumps(about), encoding="utf-8")


def _config_of(plan: Mapping[str, Any]) -> Any:
    """Return the config of a plan. (`task_registry.py` would import the module that starts these processes.)"""
    task = plan["task"]
    if task not in PREPARED_TASKS:
        raise ValueError(f"{PLAN} is for the task {task}: expected one of {', '.join(PREPARED_TASKS)}")
    return make_config(getattr(import_module(f"glassformer.tasks.{task}"), task.capitalize()).Config, plan["options"])


def _encode_texts(encode: EncodeBatch, documents: list[Any]) -> list[list[int]]:
    return encode([document.text for document in documents])


def _encoders(folder: Path, config: Any) -> list[list[EncodeBatch]]:
    """Return the encoding functions of source and target, or of the text, for each version of the corpus."""
    if config.model.source_vocab_size is None or config.data.TOKENS == "stream":
        joint = Tokenizer.load(folder / "tokenizer.json")
        tokenizers = [joint, joint] if config.data.TOKENS == "pairs" else [joint]
    else:
        tokenizers = [Tokenizer.load(folder / f"{side}_tokenizer.json") for side in ("source", "target")]
    chance = config.tokenizer.bpe_dropout
    if not chance:
        return [[tokenizer.encode_batch for tokenizer in tokenizers]]
    droppers = [BpeDropout(tokenizer, chance, config.train.seed) for tokenizer in tokenizers]
    numbers = range(config.tokenizer.bpe_versions)
    return [[partial(dropper.encode_batch, version=number) for dropper in droppers] for number in numbers]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
