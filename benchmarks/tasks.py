"""What the recipes of `recipes/` come to on well-known data: one row a task, several seeds.

    python benchmarks/tasks.py DATA --out RESULTS [--only sst2 trec] [--seeds 3] [--minilm FOLDER] [--device cpu]

DATA holds sst2/, trec/, conll2003/, shakespeare/, babi/ and scitldr/ as their publishers lay them out. Results stand in
RESULTS, one JSON file a run, so that a benchmark that was stopped goes on; the table is printed from those that are
there. A recipe's own `minutes` or `updates` say how long it trains.
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

from glassformer.data.readers.splits import split_of
from glassformer.tasks.recipes import load_recipe
from glassformer.tasks.task_registry import task_named

RECIPES = Path(__file__).parents[1] / "recipes"
Files = dict[str, Any]
"""Fields of a task's data."""


@dataclass(frozen=True)
class Work:
    """A task on a corpus."""

    task: str
    recipe: str
    files: Callable[[Path, Path], Files]
    """Fields of the task's data, from the folder of all data and a folder to convert into."""
    from_minilm: bool = False
    bar: str = ""
    words: str = ""
    """The recipe by which a model first learns to guess words of the same texts, hidden from it."""


def sst2(data: Path, work: Path) -> Files:
    """Phrases of film reviews."""
    folder = data / "sst2"
    return {"data": (folder / "train.tsv.gz",), "valid": (folder / "dev.tsv.gz",), "text_column": "sentence"}


def trec(data: Path, work: Path) -> Files:
    """Questions by what they ask for; a tenth is held out, by a hash of the text."""
    sides: dict[str, list[str]] = {"train": [], "valid": []}
    with gzip.open(data / "trec" / "train.label.gz", "rt", encoding="iso-8859-1") as lines:
        for line in lines:
            label, _, text = line.strip().replace("\t", " ").partition(" ")
            sides[split_of(text, valid=0.1, test=0.0)].append(f"{text}\t{label.split(':')[0]}\n")
    for side, rows in sides.items():
        (work / f"trec-{side}.tsv").write_text("text\tlabel\n" + "".join(rows), encoding="utf-8")
    return {"data": (work / "trec-train.tsv",), "valid": (work / "trec-valid.tsv",)}


def conll2003(data: Path, work: Path) -> Files:
    """Named entities in news."""
    folder = data / "conll2003"
    return {"data": (folder / "train.conll.gz",), "valid": (folder / "dev.conll.gz",)}


def shakespeare(data: Path, work: Path) -> Files:
    """A million characters; the last tenth is held out."""
    return {"data": (data / "shakespeare" / "input.txt.gz",), "valid_share": 0.1}


def scitldr(data: Path, work: Path) -> Files:
    """Abstracts and their one-sentence summaries."""
    folder = data / "scitldr"
    return {"data": (folder / "train.jsonl.gz",), "valid": (folder / "dev.jsonl.gz",)}


WORKS = {
    "sentiment: sst2 dev, from scratch": Work("classification", "sst2.toml", sst2, bar="accuracy >= 83"),
    "sentiment: sst2 dev, from MiniLM": Work("classification", "minilm.toml", sst2, True, "accuracy >= 90"),
    "questions: trec, held-out tenth, from scratch": Work(
        "classification", "trec.toml", trec, bar="accuracy >= 86", words="trec-words.toml"
    ),
    "questions: trec, held-out tenth, from MiniLM": Work("classification", "minilm.toml", trec, True, "accuracy >= 94"),
    "entities: conll2003 dev, from scratch": Work("tagging", "conll2003.toml", conll2003, bar="F1 >= 78"),
    "entities: conll2003 dev, from MiniLM": Work("tagging", "conll2003-minilm.toml", conll2003, True, "F1 >= 92"),
    "characters: shakespeare, two cores": Work("language", "shakespeare-cpu.toml", shakespeare, bar="loss <= 1.55"),
    "characters: shakespeare, GPU": Work("language", "shakespeare.toml", shakespeare, bar="loss <= 1.45"),
    "summaries: scitldr dev": Work("summarization", "scitldr.toml", scitldr, bar="ROUGE-1 above lead-1"),
}


def run(name: str, seed: int, data: Path, out: Path, minilm: Path | None, device: str) -> None:
    """One run, noted in `out`."""
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
    if work.words:
        config = replace(config, start_from=learn_words(work.words, config, out / f"{slug(name, seed)}-words"))
    scores = task(config).train(out / slug(name, seed))
    seconds = time.perf_counter() - began
    record = {"name": name, "seed": seed, "device": device, "seconds": seconds, "scores": dict(scores.values)}
    (out / f"{slug(name, seed)}.json").write_text(json.dumps(record, indent=2), encoding="utf-8")


def learn_words(recipe: str, config: Any, folder: Path) -> Path:
    """A model that guesses words of the texts that `config` is to learn classes of."""
    masking = task_named("masking")
    words: Any = load_recipe(RECIPES / recipe, masking.Config)
    texts = replace(words.data, data=config.data.data, valid=config.data.data)
    train = replace(words.train, seed=config.train.seed, device=config.train.device)
    masking(replace(words, data=texts, train=train)).train(folder)
    return folder


def slug(name: str, seed: int) -> str:
    """A run's name on disk."""
    return "".join(letter if letter.isalnum() else "-" for letter in name) + f"-{seed}"


def table(out: Path) -> str:
    """All results there are, in Markdown."""
    lines = ["| task | scores | bar | recipe | seconds | seeds |", "|---|---|---|---|---|---|"]
    for name, work in WORKS.items():
        found = [
            json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob(f"{slug(name, 0)[:-2]}-*.json"))
        ]
        if not found:
            continue
        told = []
        for key in [*found[0]["scores"]][:3]:
            values = [record["scores"][key] for record in found]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            told.append(f"{key} {statistics.mean(values):.2f}{spread}")
        seconds = statistics.mean(record["seconds"] for record in found)
        lines.append(f"| {name} | {', '.join(told)} | {work.bar} | `{work.recipe}` | {seconds:.0f} | {len(found)} |")
    return "\n".join(lines)


def main() -> None:
    """Make the runs that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[], help="words of the names of the tasks to run")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--minilm", type=Path, help="the folder of all-MiniLM-L6-v2")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    for name, work in WORKS.items():
        if arguments.only and not any(word in name for word in arguments.only):
            continue
        if work.from_minilm and arguments.minilm is None:
            print(f"passing over {name}: it needs --minilm", file=sys.stderr)
            continue
        for seed in range(arguments.seeds):
            if not (arguments.out / f"{slug(name, seed)}.json").is_file():
                run(name, seed, arguments.data, arguments.out, arguments.minilm, arguments.device)
    print(table(arguments.out))


if __name__ == "__main__":
    main()
