"""Tokenize a corpus into shards by several processes: `glassformer prepare`, and `train` on large files.

The folder holds, in the order in which they are written:

- the tokenizer, trained on a sample of bounded size, and `plan.json`: the options and the units of work, each some
  parts of the data files;
- `units/00000` and so on: the shards of a unit, its validation examples and its counts. A unit is renamed when it is
  complete, so that an interrupted command continues with the units that are missing;
- `valid.jsonl`, and `prepared.json`, which lists all shards and which makes the corpus complete.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from glassformer.base.plurals import counted
from glassformer.base.write_errors import naming_write_errors
from glassformer.checkpoint.output_folder import FolderInUseError, lock_folder
from glassformer.checkpoint.safe_files import read_json_object, sha256, write_text
from glassformer.data.batching.token_files import UNITS
from glassformer.data.readers.file_parts import FilePart, group_parts
from glassformer.data.readers.splits import Shares
from glassformer.progress import Step, say
from glassformer.tasks.configs.corpus_size import CorpusSize
from glassformer.tasks.configs.defaults import vocabulary_for
from glassformer.tasks.configs.divided_data import DividedData
from glassformer.tasks.configs.mixture import mix_name, read_mix
from glassformer.tasks.configs.shared import TaskConfig
from glassformer.tasks.configs.task_options import make_config
from glassformer.tasks.prepare_units import UNIT, is_complete, run_units, unit_folder
from glassformer.tasks.prepared import MORE_DATA
from glassformer.tasks.tokenized_corpus import FORMAT, PLAN, VALID, TokenizedCorpus, read_valid_lines
from glassformer.text import Tokenizer
from glassformer.training.fingerprints import PREPARED

UNIT_BYTES = 1 << 26
"""Rough size of a unit of work."""
SAMPLE_CHARACTERS, SAMPLED_UNITS = 1 << 25, 64
"""Number of characters that a tokenizer is trained on, and of units that they are taken from, spread over the data."""
MEASURED_EXAMPLES = 4000
"""Number of examples from which the size of the corpus is estimated before it is tokenized."""
MAX_HELD_OUT, HELD_OUT = 10_000, 0.04
"""Most examples that are held out for validation, about, and the share of a small corpus that is held out."""
OPTIONS = ("data.", "tokenizer.", "model.vocab_size", "model.source_vocab_size", "model.max_len", "train.seed")
"""Options, or prefixes of them, that the tokenized data depends on."""


def prepare_corpus(
    task: str, config: TaskConfig, folder: Path, *, processes: int = 0, part: tuple[int, int] = (1, 1)
) -> TokenizedCorpus | None:
    """Tokenize the data of a config into `folder` and return it; None if other parts are not complete yet.

    A complete or interrupted folder with the same options is continued.

    Args:
        task: The name of the task.
        config: Its config. A `model.vocab_size` of 1 chooses the size of the vocabulary by that of the data.
        folder: A new folder, or one that was interrupted.
        processes: Number of processes; 0 is one per core.
        part: (i, n): tokenize the i-th of n parts of the units, counted from 1.
    """
    if config.base_model is not None:
        raise ValueError(f"{config.base_flag} {config.base_model}: expected none, data is prepared for a new model")
    if folder.exists() and not (folder.is_dir() and ((folder / PLAN).is_file() or not _others(folder))):
        raise ValueError(f"{folder} exists and holds other files: expected a new folder, or one of prepare")
    is_new = not folder.exists()
    try:
        plan = _make_or_read_plan(task, config, folder)
    except BaseException:
        if is_new:
            _remove_unused(folder)
        raise
    index, count = part
    units = range(len(plan["units"]))
    with lock_folder(folder, f"part-{index}-of-{count}.lock"):
        n_made = run_units(folder, [unit for unit in units if unit % count == index - 1], processes=processes)
    if not all(is_complete(folder, unit) for unit in units):
        return None
    if n_made or not _is_intact(folder):
        _complete(folder, plan, make_config(type(config), plan["options"]))
    for lock in folder.glob("*lock"):
        lock.unlink(missing_ok=True)
    return TokenizedCorpus(folder)


def is_prepared(folder: Path) -> bool:
    """Return whether all units of a corpus are in `folder`, and the files that list them."""
    try:
        units = range(len(read_json_object(folder / PLAN)["units"]))
    except (ValueError, KeyError, TypeError):  # no folder of prepare, or damaged
        return False
    return all(is_complete(folder, unit) for unit in units) and _is_intact(folder)


def _is_intact(folder: Path) -> bool:
    try:
        TokenizedCorpus(folder)
    except ValueError:  # not complete, or damaged
        return False
    return True


def estimate_size(data: DividedData[Any], sides: Any) -> CorpusSize:
    """Return the size of a large corpus, from its number of lines and the lengths of some of its examples.

    `sides` returns the source text and the target text of an example.
    """
    parts = data.parts(UNIT_BYTES)
    measured = CorpusSize.measure(sides(example) for example in _spread(data, parts, MEASURED_EXAMPLES))
    n_bytes = sum(part.n_bytes() for part in parts)
    if data.TOKENS == "stream":
        return CorpusSize(sum(part.n_examples for part in parts), 0, n_bytes)
    n_examples = sum(part.n_examples for part in parts)
    share = n_examples / max(measured.examples, 1)
    return CorpusSize(n_examples, *(round(share * side) for side in measured[1:]))


def _spread(data: DividedData[Any], parts: list[FilePart], count: int) -> Iterator[Any]:
    """Yield about `count` examples from parts that are spread over the data."""
    chosen = parts[:: -(-len(parts) // 16)]
    for part in chosen:
        for number, example in enumerate(data.read_part(part)):
            if number * len(chosen) >= count:
                break
            yield example


def _others(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if not file.name.endswith(("lock", ".part", ".json"))]


def _make_or_read_plan(task: str, config: TaskConfig, folder: Path) -> dict[str, Any]:
    """Return the plan of a folder. Exactly one process makes it; others wait for it."""
    options = _options(config)
    with Step("planning"):
        while not (folder / PLAN).is_file():
            with naming_write_errors(folder):  # here, because another part that failed removes it
                folder.mkdir(parents=True, exist_ok=True)
            try:
                with lock_folder(folder):
                    if not (folder / PLAN).is_file():
                        _make_plan(task, config, options, folder)
            except FolderInUseError:  # another part of the same data
                time.sleep(0.5)
    plan = read_json_object(folder / PLAN)
    before = {**plan["options"], "task": plan["task"]}
    for name, value in {**options, "task": task}.items():
        if before.get(name) != value and not (name == "model.vocab_size" and value == 1):
            raise ValueError(
                f"{folder} was prepared with {_difference(name.rpartition('.')[2], before.get(name), value)}: expected "
                "the same options, or another folder"
            )
    if plan.get("files") != _file_versions(plan["units"]):
        raise ValueError(f"the data files have changed since {folder} was begun: choose another folder, or remove it")
    return plan


def _difference(name: str, before: Any, now: Any) -> str:
    """Return a description of an option that has changed; of a list of files, the first that only one of them has."""
    if not isinstance(before, list) or not isinstance(now, list):
        return f"{name} {before} (now {now})"
    more = [file for file in before if file not in now]
    other = more or [file for file in now if file not in before]
    if not other:
        return f"the files of {name} in another order"
    return f"{name} {'with' if more else 'without'} {other[0]}"


def _remove_unused(folder: Path) -> None:
    """Remove a folder in which nothing was planned: only a lock is in it."""
    with suppress(OSError):
        (folder / "lock").unlink(missing_ok=True)
        folder.rmdir()


def _options(config: TaskConfig) -> dict[str, Any]:
    """Return the options that the tokenized data depends on, by dotted name, as JSON values."""
    from glassformer.base.dataclass_flags import options_of

    found = {}
    for option in options_of(type(config)).values():
        if option.path.startswith(OPTIONS):
            part, _, name = option.path.rpartition(".")
            found[option.path] = getattr(getattr(config, part), name)
    values: dict[str, Any] = json.loads(json.dumps(found, default=lambda value: str(Path(value).resolve())))
    return values


def _make_plan(task: str, config: Any, options: dict[str, Any], folder: Path) -> None:
    data: DividedData[Any] = config.data
    parts = data.parts(UNIT_BYTES)
    names = read_mix(data.mix)
    is_one_text = _is_one_text(data, parts)
    valid: list[FilePart] = []
    if not data.validation_files():
        parts, valid = _held_out_ends(data, parts, names)
    by_name: dict[str, list[FilePart]] = {name: [] for name in names or ("",)}
    for part in parts:
        by_name[mix_name(part.files[0], names)].append(part)
    for name, some in by_name.items():
        if not some:
            raise ValueError(f"--mix {data.mix}: no training file belongs to {name}: expected at least one")
    units = [
        {"mix": name, "parts": [_part_record(part) for part in group]}
        for name, some in by_name.items()
        for group in group_parts(some, UNIT_BYTES)
    ]
    valid_from = 2.0  # no hash is so large
    if not valid and not data.validation_files():
        share = min(HELD_OUT, MAX_HELD_OUT / max(1, sum(part.n_examples for part in parts)))
        examples = _held_out_candidates(data, parts)
        valid_from = Shares(examples, lambda example: data.held_out_text(example) or "", share, 0.0).valid_from
    if options["model.vocab_size"] == 1:
        options = {**options, "model.vocab_size": vocabulary_for(estimate_size(data, _sides))}
    config = make_config(type(config), options)
    plan = {
        "format": FORMAT,
        "task": task,
        "options": options,
        "valid_from": valid_from,
        "has_documents": data.TOKENS == "stream" and not is_one_text,
        "valid": [_part_record(part) for part in valid],
        "files": _file_versions(units),
        "units": units,
    }
    plan["tokenizers"] = _train_tokenizers(config, plan, folder)
    write_text(folder / PLAN, json.dumps(plan))


def _held_out_ends(
    data: DividedData[Any], parts: list[FilePart], names: Mapping[str, float]
) -> tuple[list[FilePart], list[FilePart]]:
    """Return the parts without the ends of the texts, and these ends, for validation.

    So it is done if no text can be held out as a whole: each one is the only text of its share of the mix, or is larger
    than a unit. Otherwise nothing changes.
    """
    by_file: dict[Path, list[FilePart]] = {}
    for part in parts:
        by_file.setdefault(part.files[0], []).append(part)
    files = Counter(mix_name(path, names) for path in by_file)
    held_out = getattr(data, "held_out_end", None)
    if held_out is None or any(len(some) == 1 < files[mix_name(path, names)] for path, some in by_file.items()):
        return parts, []
    found = [held_out(some, len(by_file)) for some in by_file.values()]
    if not all(ends for _, ends in found):
        return parts, []
    return [part for kept, _ in found for part in kept], [part for _, ends in found for part in ends]


def _held_out_candidates(data: DividedData[Any], parts: list[FilePart]) -> "_Repeatable":
    return _Repeatable(data, parts)


class _Repeatable:
    """The examples of some parts that may be held out, anew in each pass."""

    def __init__(self, data: DividedData[Any], parts: list[FilePart]):
        self._data, self._parts = data, parts

    def __iter__(self) -> Iterator[Any]:
        for part in self._parts:
            for example in self._data.read_part(part):
                if self._data.held_out_text(example) is not None:
                    yield example


def _is_one_text(data: DividedData[Any], parts: list[FilePart]) -> bool:
    is_one = getattr(data, "is_one_text", None)
    return bool(is_one and is_one(parts))


def _sides(example: Any) -> tuple[str, str]:
    return (example.source, example.target) if hasattr(example, "source") else ("", example.text)


def _part_record(part: FilePart) -> dict[str, Any]:
    return {"files": [str(file.resolve()) for file in part.files], "spans": part.spans}


def _file_versions(units: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Return the size and the time of the last change of each data file; empty for a file that is gone."""
    files = {file for unit in units for part in unit["parts"] for file in part["files"]}
    found = {file: Path(file).stat() if Path(file).is_file() else None for file in sorted(files)}
    return {file: [about.st_size, int(about.st_mtime)] if about else [] for file, about in found.items()}


def _train_tokenizers(config: Any, plan: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Train the tokenizer, or that of each side, on a sample that is spread over the data, and store it.

    Return the SHA-256 of each file.
    """
    model, how = config.model, config.tokenizer
    made: dict[str, tuple[int, Callable[[Any], tuple[str, ...]]]]
    if config.data.TOKENS == "stream":
        made = {"tokenizer.json": (model.vocab_size, lambda one: (one.text,))}
    elif model.source_vocab_size is None:
        made = {"tokenizer.json": (model.vocab_size, lambda one: (one.source, one.target))}
    else:
        made = {
            "source_tokenizer.json": (model.source_vocab_size, lambda one: (one.source,)),
            "target_tokenizer.json": (model.vocab_size, lambda one: (one.target,)),
        }
    for name, (size, texts_of) in made.items():
        texts = (text for example in _sample(config.data, plan) for text in texts_of(example))
        write_text(folder / name, Tokenizer.train(texts, size, how).to_json())
    return {name: sha256(folder / name) for name in made}


def _sample(data: DividedData[Any], plan: Mapping[str, Any]) -> Iterator[Any]:
    from glassformer.tasks.prepare_units import training_examples

    chosen = plan["units"][:: -(-len(plan["units"]) // SAMPLED_UNITS)]
    for unit in chosen:
        room = SAMPLE_CHARACTERS // len(chosen)
        for example in training_examples(data, unit, plan["valid_from"]):
            yield example
            room -= sum(map(len, _sides(example)))
            if room <= 0:
                break


def _complete(folder: Path, plan: Mapping[str, Any], config: Any) -> None:
    """Write the validation examples and `prepared.json`, which lists the shards of all units."""
    data: DividedData[Any] = config.data
    counts, n_long, skipped = CorpusSize(0, 0, 0), 0, Counter[str]()
    by_name = Counter[str]()
    versions: list[list[dict[str, Any]]] = []
    valid: list[str] = []
    for number, unit in enumerate(plan["units"]):
        about = read_json_object(unit_folder(folder, number) / UNIT)
        if about.get("tokenizers") != plan.get("tokenizers"):
            raise ValueError(
                f"{unit_folder(folder, number)} was made with another tokenizer: remove it and run the command again"
            )
        counts = CorpusSize(*(one + more for one, more in zip(counts, about["size"], strict=True)))
        by_name[unit["mix"]] += about["size"][2]
        n_long, skipped = n_long + about["n_long"], skipped + Counter(about["skipped"])
        valid += read_valid_lines(unit_folder(folder, number))
        for version, shards in enumerate(about["versions"]):
            if version == len(versions):
                versions.append([])
            versions[version] += [
                {"folder": f"{UNITS}/{number:05d}/{name}", "mix": unit["mix"], "sizes": sizes}
                for name, sizes in shards.items()
            ]
    if not counts.examples:
        raise ValueError("no examples are left to learn from: expected more data; the files may be empty")
    if empty := [name for name, size in by_name.items() if not size]:
        raise ValueError(
            f"--mix {data.mix}: all texts of {empty[0]} are held out for validation: expected more of them, or --valid"
        )
    # A validation may score the first examples only, which should not all be of the first file.
    valid.sort(key=lambda line: blake2b(line.encode()).digest())
    valid += [json.dumps(data.record_of(example), ensure_ascii=False) for example in _given_valid(data, plan)]
    if not valid:
        raise ValueError(f"no examples are left for validation: {MORE_DATA}")
    write_text(folder / VALID, "".join(f"{line}\n" for line in valid))
    about = {
        "format": FORMAT,
        "task": plan["task"],
        "options": plan["options"],
        "size": counts,
        "n_long": n_long,
        "skipped": skipped,
        "has_documents": plan["has_documents"],
        "tokenizers": plan.get("tokenizers", {}),
        "sizes": {VALID: (folder / VALID).stat().st_size},
        "versions": versions,
    }
    write_text(folder / PREPARED, json.dumps(about))
    said = f"{counted(counts.examples, 'examples')} in {counted(len(versions[0]), 'shards')}"
    say(f"{said}, {len(valid):,} to validate on")


def _given_valid(data: DividedData[Any], plan: Mapping[str, Any]) -> Iterable[Any]:
    """Yield the validation examples of the user's files, or of the end of a single text."""
    from glassformer.tasks.prepare_units import part_of

    for record in plan["valid"]:
        yield from data.read_part(part_of(record))
    if data.validation_files():
        yield from data.splits().valid
