"""What a model scored: numbers by name, and how they were computed where the library says."""

from collections.abc import Mapping
from dataclasses import dataclass, field

TITLES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "tokenised_bleu": "BLEU, lower-cased and tokenised",
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "micro_f1": "micro-F1",
}
"""How a score is called in a sentence; any other by its own name."""
LOWER_IS_BETTER = frozenset({"loss", "perplexity", "bits_per_byte"})


@dataclass(frozen=True)
class Scores:
    """The first is the one that counts. Shares are in percent."""

    values: Mapping[str, float]
    signatures: Mapping[str, str] = field(default_factory=dict)
    """Of those whose library gives one: without it the number can be compared with nothing."""

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def __str__(self) -> str:
        return ", ".join(f"{title_of(name)} {in_digits(name, value)}" for name, value in self.values.items())


def in_digits(name: str, value: float) -> str:
    """A score's value for people: what is no share has its differences further behind the point."""
    return f"{value:.4f}" if name in LOWER_IS_BETTER else f"{value:.2f}"


def title_of(name: str) -> str:
    """A score's name for people."""
    return TITLES.get(name, name.replace("_", " "))
