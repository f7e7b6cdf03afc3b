"""Measure a growing batch (`--batch-ramp`) and a growing model (`--grow-from`) at equal arithmetic.

    python benchmarks/growing.py multi30k FOLDER results.jsonl --seeds 0 1 --updates 1500
    python benchmarks/growing.py shakespeare FOLDER/input.txt.gz results.jsonl --seeds 0 1 --updates 600

`--updates` is the number of updates of the plain run. A run whose batch grows makes more, smaller updates with the same
number of tokens. The grown model gets SMALL_SHARE of the arithmetic as a small model and the rest at its full size; it
is compared with a model of the full size from scratch. Each run is one line of the results, with its final scores.
`--variants` chooses among the runs. A second call does not repeat runs that are in the file.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
RAMP = "0.25:0.3"
SMALL_SHARE = 0.4
"""Fraction of the arithmetic that the small model is trained with before it grows."""
LARGE: dict[str, dict[str, Any]] = {
    "multi30k": {"n_encoder_layers": 4, "n_decoder_layers": 4, "d_ff": 960},
    "shakespeare": {"n_decoder_layers": 6, "d_ff": 512},
}
"""The options of the full size, for each corpus; the small model has those of the recipe."""
VARIANTS = ("plain", "ramp", "large", "grown")


def settings(corpus: str, data: Path, seed: int) -> dict[str, Any]:
    """Return the arguments of `glassformer.train` that all runs on a corpus share."""
    common = {"seed": seed, "minutes": 0.0, "threads": 1, "eval_every": 10**6, "save_every": 10**6, "device": "cpu"}
    common["warmup"] = 0.1
    if corpus == "multi30k":
        recipe = RECIPES / "multi30k-two-cores.toml"
        return {"task": "translation", "recipe": recipe, "folder": data, **common}
    return {"task": "language", "recipe": RECIPES / "shakespeare-cpu.toml", "data": data, **common}


def ramped_updates(updates: int) -> int:
    """Return how many updates of a growing batch have as many tokens as `updates` full ones."""
    from glassformer.training.schedules import make_ramp

    count = updates
    while make_ramp(RAMP, count).full_updates(count) < updates:
        count += 1
    return count


def cost_ratio(corpus: str) -> float:
    """Return the arithmetic of an update of the full size, divided by that of an update of the small model."""
    from glassformer.models.costs import training_flops
    from glassformer.tasks.configs.task_options import given_options, make_config
    from glassformer.tasks.recipes import read_recipe
    from glassformer.tasks.task_registry import config_named

    given = settings(corpus, Path("."), 0)
    kind = config_named(given["task"])
    small = read_recipe(given["recipe"], kind)
    large = {**small, **given_options(kind, LARGE[corpus])}
    lengths = {"source_length": 16, "target_length": 16} if corpus == "multi30k" else {"target_length": 128}
    vocabulary = 6000 if corpus == "multi30k" else 70
    costs = []
    for values in (large, small):
        model = make_config(kind, {**values, "model.vocab_size": vocabulary}).model
        costs.append(training_flops(model, batch=1, **lengths))
    return costs[0] / costs[1]


def run(corpus: str, data: Path, variant: str, seed: int, updates: int, work: Path) -> dict[str, float]:
    """Train one variant and return its final scores."""
    import glassformer as gf

    given = settings(corpus, data, seed)
    if variant == "plain":
        return dict(gf.train(out=work / "plain", updates=updates, **given).values)
    if variant == "ramp":
        return dict(gf.train(out=work / "ramp", updates=ramped_updates(updates), batch_ramp=RAMP, **given).values)
    if variant == "large":
        return dict(gf.train(out=work / "large", updates=updates, **given, **LARGE[corpus]).values)
    small = round(SMALL_SHARE * updates * cost_ratio(corpus))
    gf.train(out=work / "small", updates=small, **given)
    rest = round((1 - SMALL_SHARE) * updates)
    grown = gf.train(out=work / "grown", updates=rest, grow_from=work / "small", **given, **LARGE[corpus])
    return dict(grown.values)


def main() -> None:
    """Run all variants and seeds, and append each result to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=tuple(LARGE))
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    options = parser.parse_args()
    lines = options.results.read_text(encoding="utf-8").splitlines() if options.results.exists() else []
    known = [json.loads(line) for line in lines]
    for seed in options.seeds:
        for variant in options.variants:
            job = {"corpus": options.corpus, "variant": variant, "seed": seed, "updates": options.updates}
            if any(job.items() <= one.items() for one in known):
                continue
            began = time.perf_counter()
            with tempfile.TemporaryDirectory() as work:
                scores = run(options.corpus, options.data, variant, seed, options.updates, Path(work))
            line = json.dumps({**job, **scores, "seconds": round(time.perf_counter() - began)})
            print(line, flush=True)
            with options.results.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
