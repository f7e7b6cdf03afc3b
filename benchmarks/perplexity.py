"""Measure the perplexity of a decoder on held-out text, as it is stored and with quantized weights.

    python benchmarks/perplexity.py MODEL TEXT --tokens 20000 --out benchmarks/results/perplexity-NAME.json

MODEL is anything that `glassformer.load` reads as a decoder: a folder or a GGUF file. TEXT is a text file, or one
compressed by gzip, that the model was not trained on. It is scored by the functions that `glassformer eval` uses: in
windows of `--context` tokens, each of which begins `--stride` tokens after the one before.
"""

import argparse
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import glassformer as gf
from glassformer.bench.result_file import check_new, markdown_table, write_result
from glassformer.decoding.scoring import score_long_texts
from glassformer.metrics.perplexity import score_perplexity
from glassformer.pipelines.generator import Generator

Weights = Literal["none", "float32", "int8", "int4"]
"""How the weights are computed with: as `load` does by itself, all converted to float32, or quantized."""
COLUMNS = ["weights", "perplexity", "more than as stored", "target"]
TARGETS = {"float32": "0.1 % at most", "int8": "+0.5 % at most", "int4": "+4 % at most"}
BATCH_TOKENS = 2048
"""Tokens of a batch. Its logits have one number for each token of a large vocabulary."""


class ScoredText(NamedTuple):
    """The perplexity of a text, and how many tokens were predicted."""

    perplexity: float
    n_tokens: int


def read_text(path: Path) -> str:
    """Return the contents of a text file in UTF-8, decompressed if its name ends in ".gz"."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def measure(path: Path, text: str, weights: Weights, *, tokens: int, context: int, stride: int) -> ScoredText:
    """Load a decoder on the CPU and score the first tokens of a text, `tokens` of them after the first one.

    A window is at most as long as the model can read, and `stride` at most as long as a window.
    """
    options: dict[str, Any] = {"dtype": "float32"} if weights == "float32" else {"quantize": weights}
    pipeline = gf.load(path, device="cpu", **options)
    if not isinstance(pipeline, Generator):
        raise ValueError(f"{path} holds a {type(pipeline).__name__}: expected a decoder, which continues texts")
    ids = pipeline.read(text)[: tokens + 1]
    window = min(context, pipeline.model.config.max_len or context)
    step = min(stride, window)
    (likelihood,) = score_long_texts(pipeline.model, [ids], context=window, stride=step, batch_tokens=BATCH_TOKENS)
    n_bytes = len(pipeline.tokenizer.decode(ids[1:]).encode())
    scores = score_perplexity(-likelihood, len(ids) - 1, n_bytes)
    return ScoredText(scores["perplexity"], len(ids) - 1)


def table_rows(found: Sequence[tuple[Weights, ScoredText]]) -> list[list[str | float]]:
    """Return a row for each way to store the weights, compared with the perplexity of the weights as stored."""
    stored = dict(found).get("none")
    rows: list[list[str | float]] = []
    names = {"none": "as stored", "float32": "dequantized to float32"}
    for weights, scored in found:
        more = "" if stored is None or weights == "none" else f"{scored.perplexity / stored.perplexity - 1:+.2%}"
        row = [names.get(weights, weights), f"{scored.perplexity:.3f}", more.replace("%", " %")]
        rows.append([*row, TARGETS.get(weights, "")])
    return rows


def main() -> None:
    """Measure each way to store the weights, print the table, and write the result file if the command names one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="model folder or GGUF file")
    parser.add_argument("text", type=Path, help="held-out text, plain or .gz")
    parser.add_argument("--tokens", type=int, default=20_000, help="tokens to predict, from the beginning of the text")
    parser.add_argument("--context", type=int, default=512, help="tokens of a window, if the model can read as many")
    parser.add_argument("--stride", type=int, default=256, help="tokens between two windows; fewer take longer")
    parser.add_argument("--quantize", nargs="+", choices=get_args(Weights), default=["none", "int8", "int4"])
    parser.add_argument("--out", type=Path, help="new file of results")
    options = parser.parse_args()
    for name in ("tokens", "context", "stride"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: expected at least 1")
    if options.out is not None:
        check_new(options.out)
    text, found = read_text(options.text), []
    for weights in dict.fromkeys(options.quantize):
        sizes = {"tokens": options.tokens, "context": options.context, "stride": options.stride}
        scored = measure(options.model, text, weights, **sizes)
        found.append((weights, scored))
        print(weights, *scored, sep="\t", flush=True)
    rows = table_rows(found)
    print(markdown_table(COLUMNS, rows))
    if options.out is not None:
        n_tokens = found[0][1].n_tokens
        note = (
            f"{options.model.name} on the first {n_tokens:,} tokens of {options.text.name}, in windows of at most "
            f"{options.context} tokens every {options.stride}."
        )
        write_result(options.out, title="Perplexity of quantized weights", columns=COLUMNS, rows=rows, notes=[note])


if __name__ == "__main__":
    main()
