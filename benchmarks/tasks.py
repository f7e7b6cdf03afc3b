"""Train the recipes of `recipes/` on well-known data sets, with several seeds, and print their scores.

    python benchmarks/tasks.py DATA --out RESULTS [--only sst2 trec] [--seeds 3] [--minilm FOLDER] [--device cpu]
        [--result-file FILE]

DATA holds the folders sst2, trec, conll2003, shakespeare and scitldr with the files that their publishers distribute.
The scores of each run are written to one JSON file in the folder RESULTS, so the same command resumes a benchmark that
was stopped. The table is printed from the files in RESULTS. --result-file writes it in the format of benchmarks/results
too. A recipe's own `minutes` or `updates` say how long it trains.
"""

import argparse
import gzip
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glassformer.bench.result_file import check_new, markdown_table, origin, write_result
from glassformer.data.readers.splits import split_of
from glassformer.tasks.recipes import load_recipe
from glassformer.tasks.task_registry import task_named

RECIPES = Path(__file__).parents[1] / "recipes"
Files = dict[str, Any]
"""Fields of a task's data config, such as the paths of its files, by name."""


@dataclass(frozen=True)
class Work:
    """One entry of the benchmark: a task, the recipe that trains it, its data, and the `target` score in the table."""

    task: str
    recipe: str
    files: Callable[[Path, Path], Files]
    """Function that returns the fields of the data config. Its arguments are DATA and a folder for converted files."""
    from_minilm: bool = False
    """Whether the recipe fine-tunes all-MiniLM-L6-v2, whose folder --minilm names."""
    target: str = ""


def sst2(data: Path, work: Path) -> Files:
    """Return the files of SST-2: phrases of film reviews, with their sentiment."""
    folder = data / "sst2"
    return {"data": (folder / "train.tsv.gz",), "valid": (folder / "dev.tsv.gz",), "text_column": "sentence"}


def trec(data: Path, work: Path) -> Files:
    """Convert TREC (questions, labeled by the kind of their answer) to TSV files in `work`, and return these files.

    A hash of the text decides which tenth of the questions is for validation.
    """
    sides: dict[str, list[str]] = {"train": [], "valid": []}
    with gzip.open(data / "trec" / "train.label.gz", "rt", encoding="iso-8859-1") as lines:
        for line in lines:
            label, _, text = line.strip().replace("\t", " ").partition(" ")
            sides[split_of(text, valid=0.1, test=0.0)].append(f"{text}\t{label.split(':')[0]}\n")
    for side, rows in sides.items():
        (work / f"trec-{side}.tsv").write_text("text\tlabel\n" + "".join(rows), encoding="utf-8")
    return {"data": (work / "trec-train.tsv",), "valid": (work / "trec-valid.tsv",)}


def conll2003(data: Path, work: Path) -> Files:
    """Return the files of CoNLL-2003: news with named entities."""
    folder = data / "conll2003"
    return {"data": (folder / "train.conll.gz",), "valid": (folder / "dev.conll.gz",)}


def shakespeare(data: Path, work: Path) -> Files:
    """Return the file of Shakespeare's plays, 1.1 million characters, of which a tenth is for validation."""
    return {"data": (data / "shakespeare" / "input.txt.gz",), "valid_share": 0.1}


def scitldr(data: Path, work: Path) -> Files:
    """Return the files of SciTLDR: abstracts of papers, with one-sentence summaries."""
    folder = data / "scitldr"
    return {"data": (folder / "train.jsonl.gz",), "valid": (folder / "dev.jsonl.gz",)}


WORKS = {
    "sentiment: sst2 dev, from scratch": Work("classification", "sst2.toml", sst2, target="accuracy >= 83"),
    "sentiment: sst2 dev, from MiniLM": Work("classification", "minilm.toml", sst2, True, "accuracy >= 90"),
    "questions: trec, held-out tenth, from scratch": Work("classification", "trec.toml", trec, target="accuracy >= 88"),
    "questions: trec, held-out tenth, from MiniLM": Work("classification", "minilm.toml", trec, True, "accuracy >= 94"),
    "entities: conll2003 dev, from scratch": Work("tagging", "conll2003.toml", conll2003, target="F1 >= 82"),
    "entities: conll2003 dev, from MiniLM": Work("tagging", "conll2003-minilm.toml", conll2003, True, "F1 >= 92"),
    "characters: shakespeare, two cores": Work("language", "shakespeare-cpu.toml", shakespeare, target="loss <= 1.55"),
    "characters: shakespeare, GPU": Work("language", "shakespeare.toml", shakespeare, target="loss <= 1.45"),
    "summaries: scitldr dev": Work("summarization", "scitldr.toml", scitldr, target="ROUGE-1 above lead-1"),
}


def run(name: str, seed: int, data: Path, out: Path, minilm: Path | None, device: str) -> None:
    """Train and score the entry `name` of WORKS with this seed, and write the model and the record to `out`."""
    work = WORKS[name]
    task = task_named(work.task)
    config: Any = load_recipe(RECIPES / work.recipe, task.Config)
    converted = out / "data"
    converted.mkdir(parents=True, exist_ok=True)
    config = replace(
        config,
        data=replace(config.data, **work.files(data, converted)),
        train=replace(config.train, seed=seed, device=device),
    )
    if work.from_minilm:
        config = replace(config, start_from=minilm)
    began = time.perf_counter()
    scores = task(config).train(out / slug(name, seed))
    seconds = time.perf_counter() - began
    record = {"name": name, "seed": seed, "device": device, "seconds": seconds, "scores": dict(scores.values)}
    record |= origin()
    (out / f"{slug(name, seed)}.json").write_text(json.dumps(record, indent=2), encoding="utf-8")


def slug(name: str, seed: int) -> str:
    """Return the file name of a run, without a suffix, from its name in WORKS and its seed."""
    return "".join(letter if letter.isalnum() else "-" for letter in name) + f"-{seed}"


def read_runs(out: Path) -> list[dict[str, Any]]:
    """Return the records of the finished runs in `out`, in the order of WORKS and of the seeds."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in out.glob("*.json")]
    known = [record for record in records if record.get("name") in WORKS]
    return sorted(known, key=lambda record: (list(WORKS).index(record["name"]), record["seed"]))


COLUMNS = ["task", "scores", "target", "recipe", "device", "seconds", "seeds"]


def table_rows(runs: list[dict[str, Any]]) -> list[list[str]]:
    """Return the table's rows, one for each entry of WORKS with finished runs.

    A row has the first three scores and the seconds of a run, as means over the seeds.
    """
    rows = []
    for name, work in WORKS.items():
        if not (found := [run for run in runs if run["name"] == name]):
            continue
        scores = []
        for key in [*found[0]["scores"]][:3]:
            values = [record["scores"][key] for record in found]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            scores.append(f"{key} {statistics.mean(values):.2f}{spread}")
        devices = ", ".join(dict.fromkeys(record["device"] for record in found))
        seconds = statistics.mean(record["seconds"] for record in found)
        rows.append(
            [
                name,
                ", ".join(scores),
                work.target,
                f"`recipes/{work.recipe}`",
                devices,
                f"{seconds:.0f}",
                str(len(found)),
            ]
        )
    return rows


def main() -> None:
    """Run the trainings that RESULTS does not have yet, then print the table and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs' models and scores")
    parser.add_argument("--result-file", type=Path, help="also write the table to this new file")
    parser.add_argument("--only", nargs="*", default=[], help="run the tasks whose names contain one of these words")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--minilm", type=Path, help="the folder of all-MiniLM-L6-v2")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    if arguments.result_file is not None:
        check_new(arguments.result_file)
    for name, work in WORKS.items():
        if arguments.only and not any(word in name for word in arguments.only):
            continue
        if work.from_minilm and arguments.minilm is None:
            print(f"skipped {name}: it needs --minilm", file=sys.stderr)
            continue
        for seed in range(arguments.seeds):
            if not (arguments.out / f"{slug(name, seed)}.json").is_file():
                run(name, seed, arguments.data, arguments.out, arguments.minilm, arguments.device)
    runs = read_runs(arguments.out)
    rows = table_rows(runs)
    print(markdown_table(COLUMNS, rows))
    if arguments.result_file is not None:
        notes = ["Mean and standard deviation over the seeds, where there are several."]
        title = "The recipes, task by task"
        write_result(arguments.result_file, title=title, columns=COLUMNS, rows=rows, notes=notes, runs=runs)


if __name__ == "__main__":
    main()
