"""`glassformer demo translation`: train a real translator in minutes, try it, and look inside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from glassformer.cli.demo_task import SHARE, Precision, talk
from glassformer.cli.flag_parser import UsageError
from glassformer.cli.run_options import reporting_truncated, set_threads

if TYPE_CHECKING:
    from glassformer.data.readers.pairs import Pair
    from glassformer.pipelines.translator import Translator

N_SHOWN = 8
"""Number of held-out texts that are translated, in addition to the user's lines. The page shows the first text."""
MAX_TOKENS = 40
"""The most tokens of the translation that the page shows."""
KEEP_LAST = 5
"""Number of newest checkpoints that are kept, for the page's view of how the model learned."""
VALIDATE_EVERY = 500
"""Number of updates between two validations, which are the points of the learning curve."""
ARCHITECTURE = {
    "model.positions": "rotary",
    "model.gated": True,
    "model.activation": "silu",
    "model.qk_norm": True,
}
"""Options of the demo's model that `train` does not choose, because CTranslate2 and HF Marian have no such models.
docs/log.md has the scores with and without them."""
SHORT_MINUTES = 8.0
SHORT_RUN = {
    "model.n_decoder_layers": 2,
    "model.dropout": 0.0,
    "model.embedding_dropout": 0.0,
    "train.lr": 0.014,
}
"""Further options of runs of at most SHORT_MINUTES, which docs/log.md compares with others. `train` would choose one
layer, and dropout as if the model saw the texts often enough to learn them by heart."""
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
    it was not trained on. Then it translates LINES, or what you type, and writes one HTML page that shows every step of
    one translation, and how the model learned. Run it again to resume, or to use the trained model.

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
    from glassformer.inspect.output_files import PAGE, check_explanation_file
    from glassformer.pipelines.load import load
    from glassformer.pipelines.translator import Translator
    from glassformer.runtime.devices import choose_device
    from glassformer.tasks.translation import Translation

    if not minutes > 0:
        raise UsageError(f"--minutes {minutes:g}: expected more than 0")
    set_threads(threads)
    choose_device(device)  # refuse a missing one before the download
    folder, page = out / f"en-{to}", out / f"en-{to}.html"
    check_explanation_file(page, PAGE)  # refuse another file of this name before the training
    task = Translation.with_chosen_defaults(
        {
            "data.corpus": "interface-texts",
            "data.target_language": to,
            **ARCHITECTURE,
            **(SHORT_RUN if minutes <= SHORT_MINUTES else {}),
            "train.minutes": minutes * SHARE,
            "train.seed": seed,
            "train.eval_every": VALIDATE_EVERY,
            "train.save_every": VALIDATE_EVERY,
            "train.keep_last": KEEP_LAST,
            "train.device": device,
            "train.precision": precision,
            **({"train.threads": threads} if threads else {}),  # 0 lets training measure which number is fastest
        }
    )
    splits = task.config.data.splits()  # download the corpus and refuse an unknown language first
    if folder.exists():
        print(f"{folder} has been trained already; remove it to train again.")
    else:
        task.train(folder)
    translator = load(folder, device=device)
    assert isinstance(translator, Translator)
    held_out = list(splits.test)
    if held_out:  # a language with a few dozen strings may have no test split
        with reporting_truncated(translator, truncate=True):
            scores = translator.score(held_out)
        about = task.scored_on("test", len(held_out), translator.scoring_method())
        print(
            f"test: BLEU {scores['bleu']:.1f}, chrF {scores['chrf']:.1f} ({about}, none of them in the training data)"
        )
    samples = choose_samples(lines, held_out)
    with reporting_truncated(translator, truncate=True):
        written = translator.translate([sample.source for sample in samples])
    for sample, translation in zip(samples, written, strict=True):
        print(f"\n  {sample.source}\n  {translation}")
        if sample.target not in ("", translation):
            print(f"  ({sample.target})")
    if samples:
        write(page, translator, samples[0].source, folder)
        print(f"\nwrote {page}: open it in a browser to see how it learned, where it looks and what else it considered")
    talk(
        lambda line: translator.translate([line])[0],
        f"Type an English line to see it in {name_of(to)}; an empty one ends.",
    )


def choose_samples(lines: Sequence[str], held_out: "Sequence[Pair]") -> "list[Pair]":
    """Return the user's lines, with empty targets, and some held-out texts."""
    from glassformer.data.readers.pairs import Pair

    # Strings of 4 to 12 words are long enough to be interesting and short enough for a picture.
    shown = [pair for pair in held_out if 4 <= len(pair.source.split()) <= 12][:N_SHOWN]
    return [*(Pair(line, "") for line in lines if line.strip()), *shown]


def write(path: Path, translator: "Translator", text: str, folder: Path) -> None:
    """Write the explorer page of one translation to `path`. `folder` is the model folder, with its run beside it."""
    from glassformer.inspect.explain_options import ExplainOptions
    from glassformer.inspect.explanation import Explanation, build_explanation
    from glassformer.progress import reporting

    options = ExplainOptions(max_tokens=MAX_TOKENS)
    with reporting():
        run = folder.with_name(f"{folder.name}.run")
        name = f"English to {name_of(folder.name.removeprefix('en-'))}"
        Explanation(build_explanation(translator, text, options, name=name, run=run)).save(path)


def name_of(language: str) -> str:
    """Return the English name of a language code, or the code itself if the language is not in NAMES."""
    return NAMES.get(language, language)
