"""What each trick is worth on Multi30k: one model with it, one without, several seeds.

    python benchmarks/ledger.py FOLDER --out LEDGER [--updates 3000] [--seeds 3] [--workers 4]

Trains `recipes/multi30k.toml` without R-Drop (the base line), and the same with one thing changed at a time, and
translates test2016 with each. What needs no other training (averaging, beam, length penalty) is read off the base
line's own models. Results stand in LEDGER, one JSON file a run, so that a ledger that was stopped goes on; the table
is printed from those that are there.
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

from glassformer.checkpoint.model_folder import load_parameters, read_tensors
from glassformer.data.corpora.catalog import open_corpus
from glassformer.metrics import score_translations, tokenized_bleu
from glassformer.pipelines.translator import Translator
from glassformer.tasks.recipes import load_recipe
from glassformer.tasks.translation import Translation, TranslationConfig
from glassformer.training.state import checkpoint_path, saved_positions

RECIPE = Path(__file__).parents[1] / "recipes" / "multi30k.toml"
AVERAGED = 10

TRAININGS: dict[str, dict[str, Any]] = {
    "base line": {},
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
    "learning rate falls linearly to zero": {"train.schedule": "linear"},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "base line": {"beam": 5, "length_penalty": 1.0, "averaged": True},
    "without averaging": {"beam": 5, "length_penalty": 1.0, "averaged": False},
    "greedy, no beam": {"beam": 1, "length_penalty": 1.0, "averaged": True},
    "length penalty 0": {"beam": 5, "length_penalty": 0.0, "averaged": True},
    "length penalty 0.6": {"beam": 5, "length_penalty": 0.6, "averaged": True},
    "length penalty 1.4": {"beam": 5, "length_penalty": 1.4, "averaged": True},
}


def recipe_of(training: str, folder: Path, *, updates: int, seed: int) -> TranslationConfig:
    """The recipe of one row."""
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
    """One run: its scores by each way of searching (only the usual one where the training is the trick)."""
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
    searches = SEARCHES if training == "base line" else {"base line": SEARCHES["base line"]}
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
    found = translator.translate(sources, max_batch_tokens=16384)
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


def table(out: Path) -> str:
    """The ledger in Markdown, from the files that are there."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*.json"))]
    rows: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        for search, sides in run["scores"].items():
            name = run["training"] if search == "base line" else search
            rows.setdefault(name, []).append(sides)
    if "base line" not in rows:
        return "the base line is not there yet"
    base = statistics.mean(row["test"]["tokenized"] for row in rows["base line"])
    lines = [
        "| | test, lower-cased and tokenized | against the base line | test, cased | validation, cased | seeds |",
        "|---|---|---|---|---|---|",
    ]
    for name in [*TRAININGS, *list(SEARCHES)[1:]]:
        if found := rows.get(name):
            test = [row["test"]["tokenized"] for row in found]
            cells = [
                _spread(test),
                "" if name == "base line" else f"{statistics.mean(test) - base:+.2f}",
                _spread([row["test"]["cased"] for row in found]),
                _spread([row["valid"]["cased"] for row in found]),
                str(len(found)),
            ]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    signatures = " and ".join(f"`{x}`" for x in reversed(rows["base line"][0]["test"]["signatures"]))
    return "\n".join([*lines, "", f"Signatures: {signatures}."])


def _spread(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def main() -> None:
    """Run what is missing, several at a time, each in a process of its own; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", nargs=2, metavar=("TRAINING", "SEED"), help="one run, in this process")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.only:
        training, seed = arguments.only[0], int(arguments.only[1])
        result = train_and_score(training, arguments.folder, updates=arguments.updates, seed=seed)
        _file(arguments.out, training, seed).write_text(json.dumps(result, indent=2), encoding="utf-8")
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
    print(table(arguments.out))


def _file(out: Path, training: str, seed: int) -> Path:
    letters = "".join(letter if letter.isalnum() else "-" for letter in training)
    return out / f"{letters}-{seed}.json"


if __name__ == "__main__":
    main()
