"""Compare models trained for some minutes with default options to models with hand-set options and to baselines.

    python benchmarks/defaults.py DATA --out RUNS.jsonl [--minutes 2 5] [--only Multi30k] [--seeds 3]
    python benchmarks/defaults.py DATA --out RUNS.jsonl --table --result-files benchmarks/results/defaults

DATA holds `multi30k/` (train and test2016 as .de.gz and .en.gz), `tatoeba/deu-eng.tsv.gz`, `sst2/`, `trec/`,
`conll2003/`, `shakespeare/` and `babi/` with the files that their publishers distribute. The corpus
`interface-texts/{train,test}.{en,de}` is read if it exists, otherwise it is downloaded. Each run is the command

    glassformer train TASK (files) --out ... --minutes ...

in its own process on its own `--cores-per-run` cores. Translators are compared with hand-set options, other tasks with
the baseline that `glassformer demo TASK` prints. Each run appends one line to RUNS.jsonl, and the same command resumes
a benchmark that was stopped: runs in the file are not repeated. `--table` makes no runs and prints the tables of the
file. `--result-files PREFIX` writes them in the format of benchmarks/results too: PREFIX-translation.json for the
translators and PREFIX-tasks.json for the other tasks.
"""

import argparse
import gzip
import json
import os
import queue
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from glassformer.bench.result_file import check_new, markdown_table, origin, write_result

ROOT = Path(__file__).parents[1]
COMMON = "--vocab-size 6000 --dropout 0.1 --embedding-dropout 0.1 --schedule linear --max-tokens 1024"
HAND_SET = {
    "recipe": f"--recipe {ROOT / 'recipes' / 'multi30k-two-cores.toml'} --corpus=",
    "AdamW, 192 wide, 2+2 layers": "--n-encoder-layers 2 --n-decoder-layers 2 --d-model 192 --d-ff 384 --n-heads 4 "
    f"--optimizer adamw --lr 3e-3 --weight-decay 0.1 {COMMON}",
    "Muon, 192 wide, 1+1 layers": "--n-encoder-layers 1 --n-decoder-layers 1 --d-model 192 --d-ff 576 --n-heads 6 "
    f"--optimizer muon --lr 1e-2 --weight-decay 0.3 {COMMON}",
}
DEFAULT = "default"
"""The `Run.settings` of a run with default options: only its files, its minutes and its seed are given."""
HELD_OUT = 1000
"""Number of sentence pairs of Tatoeba that are held out to score translators on."""
SCORING = """
import json, sys
from pathlib import Path
from glassformer.tasks.configs.task_options import make_config
from glassformer.pipelines.load import load
from glassformer.tasks.task_registry import task_named

folder, name, fields = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
kind = task_named(name)
given = {f"data.{key}": tuple(map(Path, v)) if isinstance(v, list) else v for key, v in fields.items()}
task = kind(make_config(type(kind.demo()), given))
splits = task.config.data.splits()
about, baseline = task.baseline(splits)
scores = load(folder, truncate=True).score(list(splits.test) or list(splits.valid))
print(json.dumps({"scores": scores.values, "baseline": baseline.values, "baseline_is": about}))
"""
"""A Python program that prints the scores of a model and of its task's baseline as JSON. They are scored on the test
examples, or if the task has none, on the validation examples."""


class Corpus(NamedTuple):
    """A corpus to train on: its name in the tables, its task, and the options that name its files."""

    name: str
    task: str
    train: dict[str, Any]
    """Options of `glassformer train` that name the training files, by their field names."""
    test: dict[str, Any]
    """Options of `glassformer eval` that name the test files; empty for tasks that are compared with a baseline."""


class Run(NamedTuple):
    """One training run: its corpus, how long it trains, its options (DEFAULT or a key of HAND_SET), and its seed."""

    corpus: Corpus
    minutes: float
    settings: str
    seed: int

    def key(self) -> dict[str, Any]:
        """Return the fields that identify this run in RUNS.jsonl."""
        return {"corpus": self.corpus.name, "minutes": self.minutes, "settings": self.settings, "seed": self.seed}


def corpora(data: Path, work: Path) -> Iterator[Corpus]:
    """Yield every corpus of the benchmark, read from the folder `data`. Converted files are written to `work`."""
    yield from _translation(data, work)
    yield from _sentiment(data / "sst2", work)
    yield _questions(data / "trec" / "train.label.gz", work)
    names = data / "conll2003"
    seen = set(_sentences(names / "train.conll.gz"))
    new = [sentence for sentence in _sentences(names / "dev.conll.gz") if sentence not in seen]
    (work / "names.conll").write_text("\n\n".join(new) + "\n", encoding="utf-8")
    files = {"data": [str(names / "train.conll.gz")], "valid": [str(work / "names.conll")]}
    yield Corpus("CoNLL-2003, 14,041 sentences", "tagging", files, {})
    files = {"data": [str(data / "shakespeare" / "input.txt.gz")]}
    yield Corpus("Shakespeare, 1.1 million characters", "language", files, {})
    yield Corpus("docstrings", "summarization", {"corpus": "docstrings"}, {})
    tool = [sys.executable, str(ROOT / "tools" / "convert_babi.py"), str(data / "babi" / "babi-en.tar.gz")]
    subprocess.run([*tool, str(work / "stories")], check=True, stdout=subprocess.DEVNULL)
    files = {key: [str(work / "stories" / f"{side}.jsonl")] for key, side in (("data", "train"), ("valid", "test"))}
    yield Corpus("bAbI, 20 kinds of questions", "answering", files, {})
    yield Corpus("made stories", "extraction", {"corpus": "made-stories"}, {})
    yield Corpus("Python's standard library", "code", {"corpus": "standard-library"}, {})


def run(one: Run, cores: Sequence[int]) -> dict[str, Any]:
    """Train a model with `glassformer train` on these CPU cores, and return the run's record for RUNS.jsonl.

    The record has the scores on held-out examples and the seconds that training took.
    """

    def call(*command: str) -> str:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
            check=False,
        )
        if result.returncode:
            raise RuntimeError(f"{' '.join(command)}: {result.stderr[-2000:]}")
        return result.stdout

    with tempfile.TemporaryDirectory() as work:
        out, program = f"{work}/m", [sys.executable, "-m", "glassformer"]
        settings = HAND_SET.get(one.settings, "").split()
        options = ["--out", out, "--minutes", str(one.minutes), "--seed", str(one.seed), *settings]
        began = time.perf_counter()
        call(*program, "train", one.corpus.task, *_options(one.corpus.train), *options)
        seconds = time.perf_counter() - began
        if one.corpus.test:
            printed = json.loads(call(*program, "eval", out, "--json", *_options(one.corpus.test)))
            scores: dict[str, Any] = {"scores": {"bleu": printed["beam 4"]["bleu"]}}
        else:
            fields = json.dumps(one.corpus.train)
            scores = json.loads(call(sys.executable, "-c", SCORING, out, one.corpus.task, fields))
        return {**one.key(), "seconds": seconds, **scores, "cores": len(cores), **origin()}


TITLES = {
    "translation": "Default options beside hand-set ones: translation",
    "tasks": "Default options beside baselines: other tasks",
}


def show_tables(results: list[dict[str, Any]], prefix: str | None) -> None:
    """Print the tables of translation and of the other tasks, and with a `prefix` also write them to result files."""
    runs = {
        "translation": [result for result in results if "baseline" not in result],
        "tasks": [result for result in results if "baseline" in result],
    }
    tables = {"translation": translation_table(runs["translation"]), "tasks": task_table(runs["tasks"])}
    what = {"translation": "BLEU with beam 4 on held-out pairs, the mean over the seeds. ", "tasks": ""}
    for name, (columns, rows) in tables.items():
        if not rows:
            continue
        print(markdown_table(columns, rows), end="\n\n")
        if prefix is not None:
            cores = ", ".join(sorted({str(run.get("cores", "an unrecorded number of")) for run in runs[name]}))
            notes = [f"{what[name]}Each run had {cores} cores to itself."]
            path = Path(f"{prefix}-{name}.json")
            write_result(path, title=TITLES[name], columns=columns, rows=rows, notes=notes, runs=runs[name])


def translation_table(results: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of the table of translation: mean BLEU of default and of hand-set options."""
    columns = ["corpus", "minutes", DEFAULT, "took, minutes", *HAND_SET, "share of the best", "seeds"]
    rows = []
    for corpus, minutes in dict.fromkeys((result["corpus"], result["minutes"]) for result in results):
        found = [result for result in results if (result["corpus"], result["minutes"]) == (corpus, minutes)]
        of_settings = {name: [one for one in found if one["settings"] == name] for name in (DEFAULT, *HAND_SET)}
        bleu = {
            name: statistics.mean(one["scores"]["bleu"] for one in ones) for name, ones in of_settings.items() if ones
        }
        shown = {name: f"{bleu[name]:.1f}" if name in bleu else "not run" for name in of_settings}
        best = max((bleu[name] for name in bleu if name != DEFAULT), default=None)
        share = f"{bleu[DEFAULT] / best:.0%}" if best and DEFAULT in bleu else ""
        seconds = [one["seconds"] for one in of_settings[DEFAULT]]
        took = f"{statistics.mean(seconds) / 60:.2f}" if seconds else ""
        seeds = " to ".join(map(str, sorted({len(ones) for ones in of_settings.values() if ones})))
        hand_set = [shown[name] for name in HAND_SET]
        rows.append([corpus, f"{minutes:g}", shown[DEFAULT], took, *hand_set, share, seeds])
    return columns, rows


def task_table(results: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of the table of the other tasks: the scores of each run and of its baseline."""
    rows = []
    for result in results:
        scores, baseline = (", ".join(f"{k} {v:.3g}" for k, v in result[s].items()) for s in ("scores", "baseline"))
        took = f"{result['seconds'] / 60:.2f}"
        cells = [result["corpus"], f"{result['minutes']:g}", took, str(result["seed"]), scores, baseline]
        rows.append([*cells, result["baseline_is"]])
    return ["corpus", "minutes", "took, minutes", "seed", "scores", "baseline", "which baseline"], rows


def _translation(data: Path, work: Path) -> Iterator[Corpus]:
    german, english = (_lines(data / "multi30k" / f"train.{language}.gz") for language in ("de", "en"))
    tests = tuple(_lines(data / "multi30k" / f"test2016.{language}.gz") for language in ("de", "en"))
    pairs, test = list(zip(german, english, strict=True)), list(zip(*tests, strict=True))
    shuffled = random.Random(0).sample(pairs, len(pairs))
    yield _pair_files(work, "Multi30k de-en, 29,000", pairs, test)
    yield _pair_files(work, "Multi30k en-de, 29,000", [pair[::-1] for pair in pairs], [pair[::-1] for pair in test])
    for count in (1000, 5000):
        yield _pair_files(work, f"Multi30k de-en, {count:,}", shuffled[:count], test)
    texts = data / "interface-texts"
    sides: dict[str, list[tuple[str, ...]]] = {}
    if texts.is_dir():
        for side in ("train", "test"):
            lines = [(texts / f"{side}.{end}").read_text(encoding="utf-8").splitlines() for end in ("en", "de")]
            sides[side] = list(zip(*lines, strict=True))
    else:
        from glassformer.data.corpora.catalog import open_corpus

        opened = open_corpus("interface-texts", folder=None, source="en", target="de")
        sides["test"] = [(pair.source, pair.target) for pair in opened["test"]]
        sides["train"] = [(pair.source, pair.target) for side in ("train", "valid") for pair in opened[side]]
    yield _pair_files(work, "interface texts en-de, 12,783", sides["train"], sides["test"])
    rows = [tuple(line.split("\t")) for line in _lines(data / "tatoeba" / "deu-eng.tsv.gz")]
    rows = random.Random(0).sample([row for row in rows if len(row) == 2], len(rows))
    yield _pair_files(work, "Tatoeba en-de, 169,197", rows[HELD_OUT:], rows[:HELD_OUT])


def _questions(path: Path, work: Path) -> Corpus:
    """Return trec's questions: four fifths to train on, one fifth to score. A repeated question stays on one side."""
    with gzip.open(path, "rt", encoding="iso-8859-1") as stream:
        labels = {text: label for label, _, text in (line.strip().partition(" ") for line in stream)}
    texts = random.Random(0).sample(sorted(labels), len(labels))
    fifth = len(texts) // 5
    for name, side in (("train", texts[fifth:]), ("valid", texts[:fifth])):
        lines = [f"{text}\t{labels[text].partition(':')[0]}" for text in side]
        (work / f"trec-{name}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
    files = {"data": [str(work / "trec-train.tsv")], "valid": [str(work / "trec-valid.tsv")]}
    return Corpus(f"trec, {len(texts) - fifth:,} questions", "classification", files, {})


def _sentiment(folder: Path, work: Path) -> Iterator[Corpus]:
    """Yield three corpora of SST-2, with 500, 5,000 and 60,000 phrases, for sentiment classification.

    They are validated on whole sentences, whose phrases `tools/split_phrases.py` keeps out of the training data.
    """
    tool = [sys.executable, str(ROOT / "tools" / "split_phrases.py"), str(work / "sst2")]
    files = [str(folder / "train.tsv.gz"), str(folder / "dev.tsv.gz")]
    subprocess.run([*tool, *files], check=True, stdout=subprocess.DEVNULL)
    header, *rows = (work / "sst2" / "train.tsv").read_text(encoding="utf-8").splitlines()
    for count in (500, 5000, 60000):
        path = work / f"sst2-{count}.tsv"
        chosen = random.Random(0).sample(rows, min(count, len(rows)))
        path.write_text("\n".join([header, *chosen]) + "\n", encoding="utf-8")
        files_of = {"data": [str(path)], "valid": [str(work / "sst2" / "valid.tsv")], "text_column": "sentence"}
        yield Corpus(f"sst2, {len(chosen):,} phrases", "classification", files_of, {})


def _sentences(path: Path) -> list[str]:
    return [block for block in "\n".join(_lines(path)).split("\n\n") if block.strip()]


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return stream.read().splitlines()


def _pair_files(work: Path, name: str, train: list[tuple[str, ...]], test: list[tuple[str, ...]]) -> Corpus:
    folder = work / name.replace(" ", "-").replace(",", "")
    folder.mkdir()
    for side, pairs in (("train", train), ("test", test)):
        for place, end in enumerate(("source", "target")):
            text = "".join(" ".join(pair[place].split()) + "\n" for pair in pairs)
            (folder / f"{side}.{end}").write_text(text, encoding="utf-8")
    files = [{end: str(folder / f"{side}.{end}") for end in ("source", "target")} for side in ("train", "test")]
    return Corpus(name, "translation", *files)


def _options(fields: dict[str, Any]) -> list[str]:
    words = []
    for name, value in fields.items():
        words += [f"--{name.replace('_', '-')}", *(value if isinstance(value, list) else [value])]
    return words


def main() -> None:
    """Run the trainings that RUNS.jsonl does not have yet, then print the tables and write the result files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the corpora")
    parser.add_argument("--out", type=Path, required=True, help="file of the runs, one JSON object per line")
    parser.add_argument("--minutes", type=float, nargs="+", default=[2.0])
    parser.add_argument("--only", nargs="*", default=[], help="corpora whose names contain one of these words")
    names = "; ".join(HAND_SET)
    parser.add_argument("--hand-set", nargs="*", default=list(HAND_SET), help=f"hand-set options to compare: {names}")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--cores", type=int, nargs="*", default=sorted(os.sched_getaffinity(0)), help="cores to use")
    parser.add_argument("--cores-per-run", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="make no runs, print the tables of --out")
    parser.add_argument("--result-files", metavar="PREFIX", help="also write the tables to new files of this prefix")
    options = parser.parse_args()
    if options.result_files is not None:
        for name in TITLES:
            check_new(Path(f"{options.result_files}-{name}.json"))
    results = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    if options.table:
        show_tables(results, options.result_files)
        return
    free: queue.Queue[list[int]] = queue.Queue()
    for first in range(0, len(options.cores) - options.cores_per_run + 1, options.cores_per_run):
        free.put(options.cores[first : first + options.cores_per_run])
    done = [{name: result[name] for name in ("corpus", "minutes", "settings", "seed")} for result in results]
    with tempfile.TemporaryDirectory() as work, options.out.open("a", encoding="utf-8") as stream:
        waiting = []
        for corpus in corpora(options.data, Path(work)):
            if not options.only or any(part in corpus.name for part in options.only):
                settings = [DEFAULT, *(options.hand_set if corpus.task == "translation" else [])]
                for minutes in options.minutes:
                    seeds = range(options.seeds)
                    waiting += [Run(corpus, minutes, name, seed) for name in settings for seed in seeds]
        waiting = [one for one in waiting if one.key() not in done]

        def work_off(one: Run) -> dict[str, Any]:
            cores = free.get()
            try:
                return run(one, cores)
            except RuntimeError as error:
                return {**one.key(), "error": str(error)}
            finally:
                free.put(cores)

        with ThreadPoolExecutor(free.qsize()) as pool:
            for future in as_completed([pool.submit(work_off, one) for one in waiting]):
                result = future.result()
                if "error" in result:
                    print(result["error"], file=sys.stderr)
                    continue
                results.append(result)
                stream.write(json.dumps(result) + "\n")
                stream.flush()
    show_tables(results, options.result_files)


if __name__ == "__main__":
    main()
