"""What a model scored: numbers by name, and how they were computed where the library says."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from glassformer.metrics.number_table import Table

TITLES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "tokenized_bleu": "BLEU, lower-cased and tokenized",
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "micro_f1": "micro-F1",
    "spearman": "Spearman",
    "pearson": "Pearson",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "f1": "F1",
}
"""How a score is called in a sentence; any other by its own name."""
LOWER_IS_BETTER = frozenset({"loss", "perplexity", "bits_per_byte"})


@dataclass(frozen=True)
class Scores:
    """The first is the one that counts. Shares are in percent."""

    values: Mapping[str, float]
    signatures: Mapping[str, str] = field(default_factory=dict)
    """Of those whose library gives one: without it the number can be compared with nothing."""
    tables: Mapping[str, Table] = field(default_factory=dict)
    """What says more than a number can, where there is such a thing: the confusion matrix of a few classes."""
    about: str = field(default="", compare=False)
    """On what and how they were computed: "beam 4, 511 test pairs of interface-texts"."""

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def __str__(self) -> str:
        told = ", ".join(f"{title_of(name)} {in_digits(name, value)}" for name, value in self.values.items())
        return f"{told} ({self.about})" if self.about else told


def in_digits(name: str, value: float) -> str:
    """A score's value for people: what is no share has its differences further behind the point."""
    return f"{value:.4f}" if name in LOWER_IS_BETTER else f"{value:.2f}"


def title_of(name: str) -> str:
    """A score's name for people."""
    if name.startswith("f1_"):
        return f"F1 of {name.removeprefix('f1_')}"  # a label is called as it is
    return TITLES.get(name, name.replace("_", " "))
