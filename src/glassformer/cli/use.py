"""`glassformer run`, `eval` and `info`: use a model folder."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

if TYPE_CHECKING:
    from glassformer.tasks.translator import Translator

CHUNK = 1000
"""Lines translated at a time, so that a long input gives output as it goes and memory stays flat."""


def run(folder: Positional[Path], *, beam: int = 4, int8: bool = False) -> None:
    """Translate stdin to stdout, one line out for each line in; blank lines stay blank.

    Args:
        folder: The model folder.
        beam: Sentences kept at each step of the search; 1 is greedy, and faster.
        int8: Compute with 8-bit weights: several times as fast on most CPUs, and nearly the same.
    """
    translator = _open(folder, int8)
    chunk: list[str] = []
    for line in sys.stdin:
        chunk.append(line.rstrip("\r\n"))
        if len(chunk) == CHUNK or sys.stdin.isatty():
            print(*translator.translate(chunk, beam=beam), sep="\n", flush=True)
            chunk.clear()
    if chunk:
        print(*translator.translate(chunk, beam=beam), sep="\n")


def evaluate(
    folder: Positional[Path],
    *,
    source: Path,
    target: Path | None = None,
    beam: int = 4,
    tokenised: str = "",
    int8: bool = False,
    json_: Annotated[bool, arg(name="json")] = False,
) -> None:
    """BLEU and chrF by sacreBLEU on pairs of your own, greedy and by beam, with signatures.

    Args:
        folder: The model folder.
        source: A text file, or a .tsv, .csv or .jsonl with both sides; .gz too.
        target: The text file aligned with it.
        beam: Width of the beam, scored beside greedy.
        tokenised: The target's language, such as de, for lower-cased tokenised BLEU as older papers report it.
        int8: Compute with 8-bit weights, as `run --int8` would.
        json_: Print one JSON object.
    """
    from glassformer.data.pairs import PairReader
    from glassformer.metrics import score_translations, tokenised_bleu

    pairs = list(PairReader([source], [] if target is None else [target]))
    translator = _open(folder, int8)
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    results: dict[str, dict[str, object]] = {}
    for name, width in (("greedy", 1), (f"beam {beam}", beam)):
        translations = translator.translate(sources, beam=width)
        results[name] = score_translations(translations, references)._asdict()
        if tokenised:
            found = tokenised_bleu(translations, references, tokenised)
            results[name] |= {"tokenised_bleu": found.bleu, "tokenised_bleu_signature": found.signature}
    if json_:
        print(json.dumps(results))
        return
    titles = {"bleu": "BLEU", "chrf": "chrF", "tokenised_bleu": "BLEU, lower-cased and tokenised"}
    for name, scores in results.items():
        for key, title in titles.items():
            if key in scores:
                print(f"{name:8}  {title} {scores[key]:.2f}  {scores[f'{key}_signature']}")


def _open(folder: Path, int8: bool) -> "Translator":
    from glassformer.tasks.translator import Translator

    translator = Translator.from_folder(folder)
    if int8:
        from glassformer.decoding.int8 import quantise

        translator.model = quantise(translator.model)
    return translator


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
