"""`glassformer run`, `eval` and `info`: use a model folder."""

import json
import sys
from pathlib import Path

from tyro.conf import Positional

CHUNK = 1000
"""Lines translated at a time, so that a long input gives output as it goes and memory stays flat."""


def run(folder: Positional[Path], *, beam: int = 4) -> None:
    """Translate stdin to stdout, one line out for each line in; blank lines stay blank.

    Args:
        folder: The model folder.
        beam: Sentences kept at each step of the search; 1 is greedy, and faster.
    """
    from glassformer.tasks.translation import Translator

    translator = Translator.from_folder(folder)
    chunk: list[str] = []
    for line in sys.stdin:
        chunk.append(line.rstrip("\r\n"))
        if len(chunk) == CHUNK or sys.stdin.isatty():
            print(*translator.translate(chunk, beam=beam), sep="\n", flush=True)
            chunk.clear()
    if chunk:
        print(*translator.translate(chunk, beam=beam), sep="\n")


def evaluate(
    folder: Positional[Path], *, source: Path, target: Path | None = None, beam: int = 4, json_: bool = False
) -> None:
    """BLEU and chrF by sacreBLEU on pairs of your own, greedy and by beam, with signatures.

    Args:
        folder: The model folder.
        source: A text file, or a .tsv, .csv or .jsonl with both sides; .gz too.
        target: The text file aligned with it.
        beam: Width of the beam, scored beside greedy.
        json_: Print one JSON object.
    """
    from glassformer.data.pairs import PairReader
    from glassformer.tasks.translation import Translator

    pairs = list(PairReader([source], [] if target is None else [target]))
    translator = Translator.from_folder(folder)
    results = {name: translator.score(pairs, beam=width) for name, width in (("greedy", 1), (f"beam {beam}", beam))}
    if json_:
        print(json.dumps({name: scores._asdict() for name, scores in results.items()}))
        return
    for name, scores in results.items():
        print(f"{name:8}  BLEU {scores.bleu:.2f}  {scores.bleu_signature}")
        print(f"{name:8}  chrF {scores.chrf:.2f}  {scores.chrf_signature}")


def info(folder: Positional[Path]) -> None:
    """What a model folder holds: its kind, its size, and every setting that is not the default.

    Args:
        folder: The model folder.
    """
    from dataclasses import fields

    from glassformer.checkpoint import load_model

    model = load_model(folder)
    print(f"{folder}: {model.kind}, {model.n_parameters():,} parameters")
    for field in fields(model.config):
        value = getattr(model.config, field.name)
        if value != field.default:
            print(f"  {field.name} = {value!r}")
