"""Named scores of an evaluation, with the signatures of the libraries that computed them."""

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
"""Display names of scores. Scores that are not listed are displayed under their own name."""
LOWER_IS_BETTER = frozenset({"loss", "perplexity", "bits_per_byte"})


@dataclass(frozen=True)
class Scores:
    """The named scores of one evaluation. The first is the main one. Ratios, such as accuracy, are in percent."""

    values: Mapping[str, float]
    signatures: Mapping[str, str] = field(default_factory=dict)
    """How a score was computed, for scores whose library says so. Only scores with equal signatures are comparable."""
    tables: Mapping[str, Table] = field(default_factory=dict)
    """Tables in addition to the scores, such as a confusion matrix."""
    about: str = field(default="", compare=False)
    """Data and settings of the evaluation: "beam 4, 511 test pairs of interface-texts"."""

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def __str__(self) -> str:
        values = ", ".join(f"{title_of(name)} {in_digits(name, value)}" for name, value in self.values.items())
        return f"{values} ({self.about})" if self.about else values


def in_digits(name: str, value: float) -> str:
    """Return a score's value as text: four decimals for loss, perplexity and bits per byte, two for others."""
    return f"{value:.4f}" if name in LOWER_IS_BETTER else f"{value:.2f}"


def title_of(name: str) -> str:
    """Return the display name of a score, such as "ROUGE-L" for `rougeL`."""
    if name.startswith("f1_"):
        return f"F1 of {name.removeprefix('f1_')}"  # label names are shown unchanged
    return TITLES.get(name, name.replace("_", " "))
