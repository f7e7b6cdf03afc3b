"""Time `glassformer run` on a file of sentences beside a script that uses CTranslate2 or HF Transformers.

    python benchmarks/translate_file.py MODEL SOURCE --peer ctranslate2 --threads 2
    python benchmarks/translate_file.py MODEL SOURCE --peer hf --device cuda

MODEL is a translator that `glassformer train translation` wrote, SOURCE a text file with one sentence per line (plain
or gzip). The peer runs the same weights, which `glassformer convert` writes for it. Every program starts in a process
of its own, and its whole time counts; the time for the first line alone shows what the start takes. Programs take
turns.
"""

import argparse
import gzip
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import sacrebleu

from glassformer.bench.result_file import check_new, markdown_table, write_result
from glassformer.pipelines.conversion import convert

COLUMNS = [
    "program",
    "beam",
    "all lines, s",
    "first line alone, s",
    "lines/s",
    "as fast as the peer",
    "BLEU to the peer",
]
PEERS = Path(__file__).parent / "peers"
Command = Callable[[Path, Path], list[str]]
"""A function of the source and target file that returns the command line of a program."""


def main() -> None:
    """Measure both programs with each beam width and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="folder of a translator")
    parser.add_argument("source", type=Path, help="text file, one sentence per line, plain or gzip")
    parser.add_argument("--peer", choices=("ctranslate2", "hf"), default="ctranslate2")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--beam", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of each program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--options", help="further options of run in one word, such as '--quantize int8 --compile on'")
    parser.add_argument("--out", type=Path, help="new result file")
    given = parser.parse_args()
    if given.out:
        check_new(given.out)
    usual = "--quantize int8" if given.device == "cpu" else "--dtype bfloat16"  # as the peers compute
    options = shlex.split(usual if given.options is None else given.options)
    with tempfile.TemporaryDirectory() as scratch:
        rows = measure(given, options, Path(scratch))
    notes = [
        f"`glassformer run` with {' '.join(options) or 'no further option'}; {given.source.name}; "
        f"the median of {given.rounds} rounds.",
        "BLEU to the peer compares our lines with the peer's: it shows that both do the same work.",
    ]
    print(markdown_table(COLUMNS, rows))
    if given.out:
        title = f"`glassformer run` on a file beside {given.peer}"
        write_result(given.out, title=title, columns=COLUMNS, rows=rows, notes=notes)


def measure(given: argparse.Namespace, options: list[str], scratch: Path) -> list[list[str]]:
    """Return a row for each program and beam width."""
    content = given.source.read_bytes()
    source, one_line = scratch / "source.txt", scratch / "one.txt"
    source.write_bytes(gzip.decompress(content) if given.source.suffix == ".gz" else content)
    lines = source.read_text(encoding="utf-8").splitlines()
    one_line.write_text(lines[0] + "\n", encoding="utf-8")
    convert(given.model, scratch / "peer", to="ct2" if given.peer == "ctranslate2" else "hf")
    rows = []
    for beam in given.beam:
        programs: dict[str, Command] = {
            "glassformer run": ours(given, options, beam),
            given.peer: peer(given, scratch / "peer", beam),
        }
        seconds: dict[tuple[str, Path], list[float]] = {}
        for _ in range(given.rounds):
            for text in (one_line, source):
                for name, command in programs.items():
                    target = scratch / f"{name.replace(' ', '-')}-{text.name}"
                    target.unlink(missing_ok=True)
                    began = time.perf_counter()
                    subprocess.run(command(text, target), check=True, stderr=subprocess.DEVNULL)
                    seconds.setdefault((name, text), []).append(time.perf_counter() - began)
                    print(name, text.name, f"{seconds[name, text][-1]:.2f} s", file=sys.stderr, flush=True)
        answers = [
            (scratch / f"{name.replace(' ', '-')}-source.txt").read_text(encoding="utf-8").splitlines()
            for name in programs
        ]
        likeness = sacrebleu.corpus_bleu(answers[0], [answers[1]]).score
        median = {key: statistics.median(values) for key, values in seconds.items()}
        for name in programs:
            ratio = median[given.peer, source] / median[name, source]
            whole = median[name, source]
            cells = [name, str(beam), f"{whole:.1f}", f"{median[name, one_line]:.2f}", f"{len(lines) / whole:,.0f}"]
            rows.append([*cells, f"{ratio:.2f}x", f"{likeness:.1f}"])
    return rows


def ours(given: argparse.Namespace, options: list[str], beam: int) -> Command:
    """Return the command `glassformer run`."""
    fixed = ["--device", given.device, "--threads", str(given.threads), "--beam", str(beam), "--quiet", *options]
    program = [sys.executable, "-m", "glassformer", "run", str(given.model)]
    return lambda source, target: [*program, "--input", str(source), "--output", str(target), *fixed]


def peer(given: argparse.Namespace, folder: Path, beam: int) -> Command:
    """Return the command of the peer's script."""
    program = [sys.executable, str(PEERS / f"translate_{given.peer}.py"), str(folder)]
    if given.peer == "hf":
        return lambda source, target: [*program, str(source), str(target), str(beam)]
    tokenizer = str(given.model / "tokenizer.json")
    return lambda source, target: [*program, tokenizer, str(source), str(target), str(beam), str(given.threads)]


if __name__ == "__main__":
    main()
