"""A summary of the raters' answers: win rates or mean ratings, confidence intervals, and agreement of the raters."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from glassformer.serve.rating_session import Answer, Mode

N_RESAMPLES = 2000
TIE = "tie"


@dataclass(frozen=True)
class SystemScore:
    """A system's win rate (0 to 1, where a tie counts half) or mean rating, with a 95 % confidence interval."""

    system: str
    score: float
    low: float
    high: float


@dataclass(frozen=True)
class RatingReport:
    """The scores of the systems, best first, and how far the raters agree."""

    mode: Mode
    scores: list[SystemScore]
    n_answers: int
    n_items: int
    n_raters: int
    agreement: float | None
    """Krippendorff's alpha: 1 is full agreement, 0 that of chance. None if no item has answers of two raters."""

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {**vars(self), "scores": [vars(score) for score in self.scores]}

    def as_text(self) -> str:
        """Return the report for a terminal."""
        title = "win rate" if self.mode == "choice" else "mean rating"
        width = max([len(score.system) for score in self.scores] + [len("system")])
        lines = [f"{'system':{width}}  {title:>11}  95 % interval"]
        for one in self.scores:
            lines.append(f"{one.system:{width}}  {one.score:11.3f}  {one.low:.3f} to {one.high:.3f}")
        agreement = "no item was rated twice" if self.agreement is None else f"{self.agreement:.3f}"
        lines.append(f"{self.n_answers} answers of {self.n_raters} raters about {self.n_items} items")
        lines.append(f"agreement of the raters (Krippendorff's alpha): {agreement}")
        return "\n".join(lines)


def report(answers: Sequence[Answer], systems: Sequence[str], mode: Mode, *, seed: int = 0) -> RatingReport:
    """Return the report about some answers.

    The interval is a percentile bootstrap over items: items are drawn with replacement, each with all of its answers,
    because answers about one item are not independent.
    """
    by_item: dict[int, list[Answer]] = defaultdict(list)
    for answer in answers:
        by_item[answer.item].append(answer)
    items = list(by_item.values())
    drawn = np.random.default_rng(seed).integers(max(len(items), 1), size=(N_RESAMPLES, len(items)))
    scores = []
    for system in systems:
        # (items, 2): the sum of the points, and the number of the answers
        points = np.array([_points(own, system, mode) for own in items]).reshape(-1, 2)
        if not items:
            scores.append(SystemScore(system, 0.0, 0.0, 0.0))
            continue
        sums = points[drawn].sum(1)  # (N_RESAMPLES, 2)
        low, high = np.quantile(sums[:, 0] / sums[:, 1], [0.025, 0.975])
        mean = points[:, 0].sum() / points[:, 1].sum()
        scores.append(SystemScore(system, float(mean), float(low), float(high)))
    scores.sort(key=lambda score: -score.score)
    raters = {answer.rater for answer in answers}
    return RatingReport(mode, scores, len(answers), len(items), len(raters), _agreement(items, systems, mode))


def krippendorff_alpha(
    units: Sequence[Sequence[Hashable]], difference: Callable[[Any, Any], float] = lambda a, b: float(a != b)
) -> float | None:
    """Return Krippendorff's alpha for units, each with the values that raters gave it (Krippendorff 2011).

    `difference` of two values is 0 if they are equal; the default is for names, and (a - b)² is for numbers. A unit
    with one value says nothing. None if no unit has two.
    """
    units = [unit for unit in units if len(unit) > 1]
    values = [value for unit in units for value in unit]
    if not values:
        return None
    observed = sum(sum(difference(a, b) for a, b in permutations(unit, 2)) / (len(unit) - 1) for unit in units)
    counts: dict[Hashable, int] = defaultdict(int)
    for value in values:
        counts[value] += 1
    total = sum(counts[a] * counts[b] * difference(a, b) for a in counts for b in counts)
    expected = total / (len(values) - 1)
    return 1.0 if not expected else 1 - observed / expected


def _points(own: Sequence[Answer], system: str, mode: Mode) -> tuple[float, int]:
    """Return the sum of a system's points in the answers about one item, and the number of the answers."""
    if mode == "rating":
        found = [answer.ratings[system] for answer in own if answer.ratings is not None]
        return float(sum(found)), len(found)
    return sum(0.5 if answer.choice is None else float(answer.choice == system) for answer in own), len(own)


def _agreement(items: Sequence[Sequence[Answer]], systems: Sequence[str], mode: Mode) -> float | None:
    if mode == "choice":
        return krippendorff_alpha([[answer.choice or TIE for answer in own] for own in items])
    ratings: list[Mapping[str, int]] = []
    units = []
    for own in items:
        ratings = [answer.ratings for answer in own if answer.ratings is not None]
        units += [[one[system] for one in ratings] for system in systems]
    return krippendorff_alpha(units, lambda a, b: float((a - b) ** 2))
