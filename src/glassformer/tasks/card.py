"""Write the model card, the `README.md` of a model folder: data, size, scores, use and recipe."""

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from glassformer.base.plurals import counted
from glassformer.metrics.scores import Scores, in_digits, title_of
from glassformer.models import ModelConfig

if TYPE_CHECKING:
    from glassformer.training.state import TrainState

MAX_NAMED = 5
"""Number of names that `in_short` lists; further ones are counted."""


class CardFacts(NamedTuple):
    """The contents of a model card."""

    title: str
    """Heading of the card."""
    task: str
    """Name of the task."""
    facts: Sequence[tuple[str, str]]
    """Rows of the first table, each a name and a value in Markdown."""
    state: "TrainState"
    """Counters at the end of the training run."""
    scores: Scores
    """Final scores."""
    scored_on: str
    """Decoding method and data of the final scores."""
    validation: str
    """Decoding method and data of the validations."""
    is_test: bool
    """Whether the scores are of test examples, which were not used to choose the checkpoint."""
    folder: str
    """The name of the model folder."""
    sample_line: str
    """An example of an input line of the model."""
    recipe: str
    """The config of the training as a TOML recipe."""


def write_card(card: CardFacts) -> str:
    """Return the text of the model card in Markdown."""
    state = card.state
    chosen = (
        "They were held out from the training, and the checkpoint was not chosen by them."
        if card.is_test
        else "The best checkpoint was chosen by them, so the scores are a little too good. Score the model on "
        "other data with `glassformer eval`."
    )
    lines = [
        f"# {card.title}",
        "",
        f"Trained by Glassformer: {counted(state.update, 'updates')}, {counted(state.tokens, 'target tokens')}, "
        f"{state.seconds / 60:.1f} minutes.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {_cell(value)} |" for name, value in card.facts),
        "",
        "## Scores",
        "",
        f"How they were computed: {card.scored_on}. {chosen}",
        "",
        "| score | value | signature |",
        "|---|---|---|",
        *(
            f"| {_cell(title_of(name))} | {in_digits(name, value)} | {_cell(card.scores.signatures.get(name, ''))} |"
            for name, value in card.scores.values.items()
        ),
        "",
        f"How each validation during the training was computed: {card.validation}.",
        "",
        "## Use",
        "",
        f"In the folder that holds {code(card.folder)}, one line of output for each line of input:",
        "",
        *_block(f"printf '%s\\n' {shlex.quote(card.sample_line)} | glassformer run {_argument(card.folder)}", "sh"),
        "",
        *_block(
            "from glassformer.pipelines.load import load\n\n"
            f"model = load({card.folder!r})\nprint(model.run([{card.sample_line!r}]))",
            "python",
        ),
        "",
        "## Recipe",
        "",
        f"In a file `recipe.toml`, this trains such a model again: `glassformer train {card.task} --recipe recipe.toml "
        "--out FOLDER`.",
        "",
        *_block(card.recipe, "toml"),
        "",
    ]
    return "\n".join(lines)


def size_in_words(config: ModelConfig, kind: str, n_parameters: int) -> str:
    """Return a line about a model's kind and size.

    Such as "encoder_decoder, 1,038,208 parameters; 1 + 1 layers, d_model 128, 4 heads, vocabulary 5,000".
    """
    layers = " + ".join(str(n) for n in (config.n_encoder_layers, config.n_decoder_layers) if n)
    experts = f"{config.experts_per_token} of {config.n_experts} experts, " if config.n_experts else ""
    return (
        f"{kind}, {n_parameters:,} parameters; {layers} layers, d_model {config.d_model}, {config.n_heads} heads, "
        f"{experts}vocabulary {config.vocab_size:,}"
    )


def in_short(names: Iterable[str]) -> str:
    """Return names joined with commas; of more than MAX_NAMED names, the first ones and the number of the rest."""
    known = list(names)
    more = [f"and {len(known) - MAX_NAMED:,} more"] if len(known) > MAX_NAMED else []
    return ", ".join([*known[:MAX_NAMED], *more])


def code(text: object) -> str:
    """Return text as Markdown inline code, with enough backticks around it if it contains some."""
    shown = " ".join(str(text).split())
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    space = " " if "`" in shown else ""
    return f"{fence}{space}{shown}{space}{fence}"


def _cell(text: str) -> str:
    """Return text escaped for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def _block(text: str, language: str) -> list[str]:
    """Return the lines of a Markdown code block, with a fence longer than any run of backticks in the text."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return [f"{fence}{language}", text, fence]


def _argument(name: str) -> str:
    """Return a folder name quoted for the shell, with ./ before a leading hyphen, which would start an option."""
    return shlex.quote(f"./{name}" if name.startswith("-") else name)
