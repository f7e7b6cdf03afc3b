"""Translators by default options beside hand-set ones: `python benchmarks/defaults.py DATA [--minutes 2 5 15]`.

DATA has `multi30k/` (train, val and test2016 as .de.gz and .en.gz) and `tatoeba/deu-eng.tsv.gz`. Each line of the table
is a corpus and a time. The first column is the BLEU (beam 4, held-out pairs) of

    glassformer train translation --source ... --target ... --out ... --minutes ...

and the others are those of three hand-set configs with the same files and minutes. Runs follow one another, each in a
process of its own, so that `--minutes` and the time that was taken can be compared too.
"""

import argparse
import gzip
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

RECIPE = Path(__file__).parent.parent / "recipes" / "multi30k-two-cores.toml"
COMMON = "--vocab-size 6000 --dropout 0.1 --embedding-dropout 0.1 --schedule linear --max-tokens 1024"
HAND_SET = {
    "recipe": f"--recipe {RECIPE} --corpus=",
    "AdamW, 192 wide, 2+2 layers": "--n-encoder-layers 2 --n-decoder-layers 2 --d-model 192 --d-ff 384 --n-heads 4 "
    f"--optimizer adamw --lr 3e-3 --weight-decay 0.1 {COMMON}",
    "Muon, 192 wide, 1+1 layers": "--n-encoder-layers 1 --n-decoder-layers 1 --d-model 192 --d-ff 576 --n-heads 6 "
    f"--optimizer muon --lr 1e-2 --weight-decay 0.3 {COMMON}",
}
HELD_OUT = 1000


class PairFiles(NamedTuple):
    """A corpus as files: pairs to learn from and pairs to score on."""

    name: str
    train: tuple[Path, Path]
    test: tuple[Path, Path]


class Run(NamedTuple):
    """What one training gave."""

    bleu: float
    seconds: float


def corpora(data: Path, work: Path) -> Iterator[PairFiles]:
    """The corpora of the table, each written to `work`."""
    german, english = (_lines(data / "multi30k" / f"train.{language}.gz") for language in ("de", "en"))
    tests = tuple(_lines(data / "multi30k" / f"test2016.{language}.gz") for language in ("de", "en"))
    pairs, test = list(zip(german, english, strict=True)), list(zip(*tests, strict=True))
    shuffled = random.Random(0).sample(pairs, len(pairs))
    yield _write(work, "Multi30k de-en, 29,000", pairs, test)
    yield _write(work, "Multi30k en-de, 29,000", [pair[::-1] for pair in pairs], [pair[::-1] for pair in test])
    for count in (1000, 5000):
        yield _write(work, f"Multi30k de-en, {count:,}", shuffled[:count], test)
    from glassformer.data.corpora.catalog import open_corpus

    texts = open_corpus("interface-texts", folder=None, source="en", target="de")
    sides = {side: [(pair.source, pair.target) for pair in some] for side, some in texts.items()}
    yield _write(work, "interface texts en-de, 12,783", [*sides["train"], *sides["valid"]], sides["test"])
    rows = [tuple(line.split("\t")) for line in _lines(data / "tatoeba" / "deu-eng.tsv.gz")]
    rows = random.Random(0).sample([row for row in rows if len(row) == 2], len(rows))
    yield _write(work, "Tatoeba en-de, 169,197", rows[HELD_OUT:], rows[:HELD_OUT])


def train(files: PairFiles, options: str, minutes: float) -> Run:
    """Train by the command line and score the held-out pairs."""
    with tempfile.TemporaryDirectory() as work:
        out = f"{work}/m"
        command = [sys.executable, "-m", "glassformer", "train", "translation", "--out", out]
        command += ["--source", str(files.train[0]), "--target", str(files.train[1]), "--minutes", str(minutes)]
        began = time.perf_counter()
        subprocess.run([*command, *options.split()], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        seconds = time.perf_counter() - began
        scoring = [sys.executable, "-m", "glassformer", "eval", out, "--json"]
        scoring += ["--source", str(files.test[0]), "--target", str(files.test[1])]
        told = json.loads(subprocess.run(scoring, check=True, capture_output=True, text=True).stdout)
        return Run(told["beam 4"]["bleu"], seconds)


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return stream.read().splitlines()


def _write(work: Path, name: str, train: list[tuple[str, ...]], test: list[tuple[str, ...]]) -> PairFiles:
    folder = work / name.replace(" ", "-").replace(",", "")
    folder.mkdir()
    for side, pairs in (("train", train), ("test", test)):
        for place, end in enumerate(("source", "target")):
            text = "".join(" ".join(pair[place].split()) + "\n" for pair in pairs)
            (folder / f"{side}.{end}").write_text(text, encoding="utf-8")
    train_files, test_files = ((folder / f"{side}.source", folder / f"{side}.target") for side in ("train", "test"))
    return PairFiles(name, train_files, test_files)


def main() -> None:
    """Print the table, line by line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--minutes", type=float, nargs="+", default=[2.0, 5.0, 15.0])
    parser.add_argument("--only", nargs="*", default=[], help="corpora whose names contain one of these")
    parser.add_argument("--hand-set", nargs="*", default=list(HAND_SET), help=f"of {', '.join(HAND_SET)}")
    options = parser.parse_args()
    print(f"| corpus | minutes | default: BLEU (took) | {' | '.join(options.hand_set)} | share of the best |")
    print("|---" * (4 + len(options.hand_set)) + "|")
    with tempfile.TemporaryDirectory() as work:
        for files in corpora(options.data, Path(work)):
            if options.only and not any(part in files.name for part in options.only):
                continue
            for minutes in options.minutes:
                ours = train(files, "", minutes)
                others = [train(files, HAND_SET[name], minutes) for name in options.hand_set]
                best = max((other.bleu for other in others), default=float("nan"))
                cells = [f"{other.bleu:.1f}" for other in others]
                took = f"{ours.seconds / 60:.2f} min"
                print(f"| {files.name} | {minutes:g} | {ours.bleu:.1f} ({took}) | ", end="")
                print(" | ".join([*cells, f"{ours.bleu / best:.0%}"]) + " |", flush=True)


if __name__ == "__main__":
    main()
