"""`glassformer demo translation`: train a real translator in minutes, try it, and look inside it."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from glassformer.cli.demo_task import SHARE, Precision, talk
from glassformer.cli.flag_parser import UsageError
from glassformer.cli.run_options import reporting_truncated, set_threads

if TYPE_CHECKING:
    from glassformer.data.readers.pairs import Pair
    from glassformer.inspect.page import Sample
    from glassformer.pipelines.translator import Translator

N_SHOWN = 8
"""Number of held-out texts on the HTML page, in addition to the user's lines."""
VALIDATE_EVERY = 500
"""Number of updates between two validations, which are the points of the learning curve."""
NAMES = {
    "de": "German",
    "fr": "French",
    "es": "Spanish",
    "it": "Italian",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "sv": "Swedish",
    "da": "Danish",
    "nb": "Norwegian",
    "cs": "Czech",
    "ru": "Russian",
    "uk": "Ukrainian",
}


def translation_demo(
    lines: tuple[str, ...] = (),
    *,
    to: str = "de",
    minutes: float = 4.0,
    out: Path = Path("demo"),
    seed: int = 0,
    device: str = "auto",
    precision: Precision = "auto",
    threads: int = 0,
) -> None:
    """Train a Transformer to translate English interface texts, in about four minutes on two CPU cores.

    It downloads the interface texts of Home Assistant (35 MB, once), trains on them, and scores the model on texts that
    it was not trained on. Then it translates LINES, or what you type, and writes one HTML page with the learning curve
    and the attention of some translations. Run it again to resume, or to use the trained model.

    Args:
        lines: English lines to translate, each in quotes. On a terminal you may type more afterwards.
        to: The language to translate into: de, fr, es, nl, pl, ... any of some 60.
        minutes: Minutes to train; more minutes give better translations.
        out: Folder for the model and the page.
        seed: Seed of the random numbers. Two runs still differ, because the number of updates depends on the measured
            speed.
        device: Device to compute on, such as cpu or cuda; auto is a GPU where there is one.
        precision: Floating-point type to train in; auto is bf16 if the device computes it fast, else fp32.
        threads: Threads to compute with on a CPU; 0 is one per core.
    """
    from glassformer.pipelines.load import load
    from glassformer.pipelines.translator import Translator
    from glassformer.tasks.seq2seq_task import MAX_VALID
    from glassformer.tasks.translation import Translation

    if not minutes > 0:
        raise UsageError(f"--minutes {minutes:g}: expected more than 0")
    set_threads(threads)
    task = Translation.with_chosen_defaults(
        {
            "data.corpus": "interface-texts",
            "data.target_language": to,
            "train.minutes": minutes * SHARE,
            "train.seed": seed,
            "train.eval_every": VALIDATE_EVERY,
            "train.save_every": VALIDATE_EVERY,
            "train.device": device,
            "train.precision": precision,
            **({"train.threads": threads} if threads else {}),  # 0 lets training measure which number is fastest
        }
    )
    splits = task.config.data.splits()  # download the corpus and refuse an unknown language first
    folder = out / f"en-{to}"
    if folder.exists():
        print(f"{folder} has been trained already; remove it to train again.")
    else:
        task.train(folder)
    translator = load(folder, device=device)
    assert isinstance(translator, Translator)
    held_out = list(splits.test)
    summary, notes = [], []
    if held_out:  # a language with a few dozen strings may have no test split
        with reporting_truncated(translator, truncate=True):
            scores = translator.score(held_out)
        about = task.scored_on("test", len(held_out), translator.scoring_method())
        print(
            f"test: BLEU {scores['bleu']:.1f}, chrF {scores['chrf']:.1f} ({about}, none of them in the training data)"
        )
        summary = [("test BLEU", f"{scores['bleu']:.1f}"), ("test chrF", f"{scores['chrf']:.1f}")]
        n_valid = sum(1 for _ in islice(splits.valid, MAX_VALID))
        validation = task.scored_on("validation", n_valid, "greedy")
        notes = [
            f"The test scores above are of the finished model: {about}. The validation scores in the chart below are "
            f"of the model while it learned: {validation}. These are two sets of strings and two ways to search, so "
            "the numbers differ; only the test strings were never looked at during the training."
        ]
    with reporting_truncated(translator, truncate=True):
        samples = explain(translator, lines, held_out)
    for sample in samples:
        print(f"\n  {sample.source}\n  {sample.translation}")
        if sample.reference is not None and sample.reference != sample.translation:
            print(f"  ({sample.reference})")
    page = out / f"en-{to}.html"
    write(page, translator, samples, folder, summary, notes)
    print(f"\nwrote {page}: open it in a browser to see how it learned and where it looks")
    talk(
        lambda line: translator.translate([line])[0],
        f"Type an English line to see it in {name_of(to)}; an empty one ends.",
    )


def explain(translator: "Translator", lines: Sequence[str], held_out: "Sequence[Pair]") -> "list[Sample]":
    """Translate the user's lines and some held-out texts, and return them with their cross-attention weights."""
    from glassformer.data.readers.pairs import Pair
    from glassformer.inspect.page import Sample

    # Strings of 4 to 12 words are long enough to be interesting and short enough for a picture.
    shown = [pair for pair in held_out if 4 <= len(pair.source.split()) <= 12][:N_SHOWN]
    samples = []
    for text, reference in [*(Pair(line, "") for line in lines if line.strip()), *shown]:
        found = translator.explain(text)
        samples.append(
            Sample(
                source=text,
                translation=found.text,
                reference=reference or None,
                source_tokens=found.source_pieces,
                target_tokens=found.target_pieces,
                weights=found.weights.numpy(),
            )
        )
    return samples


def write(
    path: Path,
    translator: "Translator",
    samples: "Sequence[Sample]",
    folder: Path,
    summary: list[tuple[str, str]],
    notes: Sequence[str] = (),
) -> None:
    """Write the HTML page of the demo to `path`: a summary, the learning curve, and the attention of the samples.

    `folder` is the model folder; the learning curve is read from the log of its training run.
    """
    from glassformer.inspect.page import CurvePoint, write_page
    from glassformer.training.estimate import clock
    from glassformer.training.journal import read_log

    log = read_log(folder.with_name(f"{folder.name}.run"))
    summary += [("parameters", f"{translator.model.n_parameters():,}")]
    if log:
        summary += [("updates", f"{log[-1].update:,}"), ("training", clock(log[-1].seconds))]
    write_page(
        path,
        title=f"English to {name_of(folder.name.removeprefix('en-'))}: how a small Transformer learned to translate",
        summary=summary,
        curve=[CurvePoint(update=entry.update, seconds=entry.seconds, values=entry.values) for entry in log],
        samples=samples,
        notes=notes,
    )


def name_of(language: str) -> str:
    """Return the English name of a language code, or the code itself if the language is not in NAMES."""
    return NAMES.get(language, language)
