"""Ablations on Multi30k: train the recipe with one option changed at a time, with several seeds, and compare BLEU.

    python benchmarks/ledger.py FOLDER --out LEDGER [--updates 3000] [--seeds 3] [--workers 4] [--result-file FILE]

The baseline is `recipes/multi30k.toml` without R-Drop and with an inverse-square-root schedule. Each model translates
the validation set and test2016. Options of the search (averaged weights, beam width, length penalty) are compared with
the baseline's models, without training again. The scores of each run are written to one JSON file in the folder LEDGER,
so the same command resumes a benchmark that was stopped. The table is printed from the files in LEDGER. --result-file
writes it in the format of benchmarks/results too.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer.bench.result_file import check_new, markdown_table, origin, write_result
from glassformer.checkpoint.model_folder import load_parameters, read_tensors
from glassformer.data.corpora.catalog import open_corpus
from glassformer.metrics import score_translations, tokenized_bleu
from glassformer.pipelines.translator import Translator
from glassformer.tasks.recipes import load_recipe
from glassformer.tasks.translation import Translation, TranslationConfig
from glassformer.training.state import checkpoint_path, saved_positions

RECIPE = Path(__file__).parents[1] / "recipes" / "multi30k.toml"
AVERAGED = 10
"""How many checkpoints at the end of training are averaged."""
BASELINE = "baseline"

TRAININGS: dict[str, dict[str, Any]] = {
    BASELINE: {},
    "without label smoothing": {"train.label_smoothing": 0.0},
    "without tied embeddings": {"model.tie": "none"},
    "with R-Drop 5": {"train.r_drop": 5.0},
    "with BPE-dropout 0.1": {"tokenizer.bpe_dropout": 0.1},
    "half as wide: 128, feed-forward 256": {"model.d_model": 128, "model.d_ff": 256, "model.init_std": 128**-0.5},
    "twice as wide: 512, feed-forward 1024, lr 1e-3": {
        "model.d_model": 512,
        "model.d_ff": 1024,
        "model.init_std": 512**-0.5,
        "train.lr": 1e-3,
    },
    "twice as wide, lr 3e-3": {"model.d_model": 512, "model.d_ff": 1024, "model.init_std": 512**-0.5},
    "linear schedule to zero": {"train.schedule": "linear"},
}
SEARCHES: dict[str, dict[str, Any]] = {
    BASELINE: {"beam": 5, "length_penalty": 1.0, "averaged": True},
    "without averaging": {"beam": 5, "length_penalty": 1.0, "averaged": False},
    "greedy, no beam": {"beam": 1, "length_penalty": 1.0, "averaged": True},
    "length penalty 0": {"beam": 5, "length_penalty": 0.0, "averaged": True},
    "length penalty 0.6": {"beam": 5, "length_penalty": 0.6, "averaged": True},
    "length penalty 1.4": {"beam": 5, "length_penalty": 1.4, "averaged": True},
}


def recipe_of(training: str, folder: Path, *, updates: int, seed: int) -> TranslationConfig:
    """Return the config of one run: the recipe with the changes that TRAININGS lists under the name `training`."""
    config = load_recipe(RECIPE, TranslationConfig)
    every = max(updates // 30, 1)
    changes: dict[str, Any] = {
        "data.folder": folder,
        "train.seed": seed,
        "train.updates": updates,
        "train.warmup": min(config.train.warmup, updates // 3),
        "train.r_drop": 0.0,
        "train.schedule": "inverse_sqrt",
        "train.eval_every": updates,
        "train.save_every": every,
        "train.keep_last": AVERAGED,
        "train.average_last": AVERAGED,
        **TRAININGS[training],
    }
    for name, value in changes.items():
        part, key = name.split(".")
        config = replace(config, **{part: replace(getattr(config, part), **{key: value})})
    return config


def train_and_score(training: str, folder: Path, *, updates: int, seed: int) -> dict[str, Any]:
    """Train one model and return the record of the run, with its scores on the validation and test sets.

    A model of the baseline is scored with every search of SEARCHES, any other model with the baseline's search only.
    """
    began = time.perf_counter()
    sides = {name: list(pairs) for name, pairs in open_corpus("multi30k", folder=folder).items()}
    with tempfile.TemporaryDirectory() as work:
        out = Path(work) / "model"
        Translation(recipe_of(training, folder, updates=updates, seed=seed)).train(out)
        seconds = time.perf_counter() - began
        translator = Translator.from_folder(out)
        translator.model.to(_device())
        checkpoints = Path(work) / "model.run" / "checkpoints"
        last = read_tensors(checkpoint_path(checkpoints, saved_positions(checkpoints)[-1]) / "model.safetensors")
    chosen = {name: value.clone() for name, value in translator.model.state_dict().items()}
    searches = SEARCHES if training == BASELINE else {BASELINE: SEARCHES[BASELINE]}
    scores: dict[str, Any] = {}
    for name, search in searches.items():
        if search["averaged"]:
            translator.model.load_state_dict(chosen)
        else:
            load_parameters(translator.model, last, "the last checkpoint")
        translator.generation = replace(
            translator.generation, num_beams=search["beam"], length_penalty=search["length_penalty"]
        )
        scores[name] = {side: _scores(translator, sides[side]) for side in ("valid", "test")}
    return {"training": training, "seed": seed, "updates": updates, "seconds": seconds, "scores": scores}


def _scores(translator: Translator, pairs: Iterable[Any]) -> dict[str, Any]:
    sources, targets = zip(*pairs, strict=True)
    found = translator.translate(sources, batch_tokens=16384)
    cased, tokenized = score_translations(found, targets), tokenized_bleu(found, targets, "de")
    return {
        "cased": cased["bleu"],
        "chrf": cased["chrf"],
        "tokenized": tokenized.bleu,
        "signatures": [cased.signatures["bleu"], tokenized.signature],
    }


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def read_runs(out: Path) -> list[dict[str, Any]]:
    """Return the records of the finished runs in the folder `out`. JSON files that are not records are ignored."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*.json"))]
    return [record for record in records if "training" in record]


COLUMNS = ["change", "test, lower-cased and tokenized", "difference", "test, cased", "validation, cased", "seeds"]


def table_rows(runs: list[dict[str, Any]]) -> list[list[str]]:
    """Return the table's rows, one for each changed option: BLEU, and its difference from the baseline."""
    scores: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        for search, sides in run["scores"].items():
            name = run["training"] if search == BASELINE else search
            scores.setdefault(name, []).append(sides)
    if BASELINE not in scores:
        return []
    baseline = statistics.mean(sides["test"]["tokenized"] for sides in scores[BASELINE])
    rows = []
    for name in [*TRAININGS, *list(SEARCHES)[1:]]:
        if found := scores.get(name):
            test = [sides["test"]["tokenized"] for sides in found]
            cells = [
                _spread(test),
                "" if name == BASELINE else f"{statistics.mean(test) - baseline:+.2f}",
                _spread([sides["test"]["cased"] for sides in found]),
                _spread([sides["valid"]["cased"] for sides in found]),
                str(len(found)),
            ]
            rows.append([name, *cells])
    return rows


def table_notes(runs: list[dict[str, Any]]) -> list[str]:
    """Return the notes below the table: what its numbers are, and the signatures of the metrics."""
    baseline = next(run for run in runs if run["training"] == BASELINE)
    signatures = baseline["scores"][BASELINE]["test"]["signatures"]
    return [
        "BLEU, mean and standard deviation over the seeds. The baseline is the recipe without R-Drop, with an "
        f"inverse-square-root schedule, for {baseline['updates']:,} updates.",
        f"Signatures: {' and '.join(f'`{signature}`' for signature in reversed(signatures))}.",
    ]


def _spread(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def main() -> None:
    """Run the trainings that LEDGER does not have yet, --workers at a time, then print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of Multi30k")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs' scores, one JSON file per run")
    parser.add_argument("--result-file", type=Path, help="also write the table to this new file")
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", nargs=2, metavar=("TRAINING", "SEED"), help="make this run only, in this process")
    arguments = parser.parse_args()
    if arguments.result_file is not None:
        check_new(arguments.result_file)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.only:
        training, seed = arguments.only[0], int(arguments.only[1])
        result = train_and_score(training, arguments.folder, updates=arguments.updates, seed=seed)
        measured = {name: value for name, value in origin().items() if name != "command"}  # the command is the parent's
        record = json.dumps({**result, **measured}, indent=2)
        _file(arguments.out, training, seed).write_text(record, encoding="utf-8")
        return
    jobs = [(training, seed) for seed in range(arguments.seeds) for training in TRAININGS]
    missing = [job for job in jobs if not _file(arguments.out, *job).is_file()]
    running: list[subprocess.Popen[bytes]] = []
    while missing or running:
        running = [process for process in running if process.poll() is None]
        if missing and len(running) < arguments.workers:
            training, seed = missing.pop(0)
            command = [sys.executable, __file__, str(arguments.folder), "--out", str(arguments.out)]
            command += ["--updates", str(arguments.updates), "--only", training, str(seed)]
            log = _file(arguments.out, training, seed).with_suffix(".log")
            with log.open("wb") as stream:
                running.append(subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT))
        time.sleep(0.2)
    runs = read_runs(arguments.out)
    rows = table_rows(runs)
    if not rows:
        sys.exit(f"{arguments.out}: no run of the baseline has finished; its error is in the .log files")
    notes = table_notes(runs)
    print(markdown_table(COLUMNS, rows), *notes, sep="\n\n")
    if arguments.result_file is not None:
        title = "What each part of the recipe is worth"
        write_result(arguments.result_file, title=title, columns=COLUMNS, rows=rows, notes=notes, runs=runs)


def _file(out: Path, training: str, seed: int) -> Path:
    letters = "".join(letter if letter.isalnum() else "-" for letter in training)
    return out / f"{letters}-{seed}.json"


if __name__ == "__main__":
    main()
