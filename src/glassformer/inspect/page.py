"""Write one self-contained HTML page that shows a translation model's learning curves and attention.

Text, style and script of the page are in `page.html`; this module fills its placeholders. All text from arguments is
untrusted: it is escaped in markup, and passed to the script as JSON without markup characters.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from itertools import pairwise
from math import ceil, floor, log10
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glassformer.base.write_errors import naming_write_errors
from glassformer.checkpoint.safe_files import write_text

MOST_DOTS = 100
"""Largest number of points of a line. A longer series is drawn as means of consecutive values."""
DIVERGED = 1e100
"""Measurements whose magnitude is at or above this, and NaN, are left out, because no axis could show them."""
UNITS = (("seconds", 1.0, 120.0), ("minutes", 60.0, 7200.0), ("hours", 3600.0, float("inf")))
"""Units of the time axis: name, seconds per unit, and the training time in seconds below which the unit is used."""
WIDTH, HEIGHT = 400, 235
TOP, BOTTOM = 10, 38
LETTER = 7.4
"""Width of one letter of a label in SVG units, in which WIDTH, HEIGHT and the margins are given too."""
LABEL_GAP = 15
LONGEST_LABEL = 16
N_COLORS = 4
"""Number of line styles (`.line-0`, `.line-1`, ...) in the style sheet of `page.html`."""


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """The values that were measured at one training update, by name.

    `seconds` is the time since the start of training. Values whose names contain "loss" share a chart that says that
    lower is better. All others are taken for scores, and their chart says that higher is better.
    """

    update: int
    seconds: float
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """A source sentence, its translation by the model, and the cross-attention weights.

    `weights` is (layers, heads, target tokens, source tokens). Entry t of the third axis shows where the model attended
    when it generated target token t. `reference` is the reference translation, if there is one.
    """

    source: str
    translation: str
    reference: str | None
    source_tokens: Sequence[str]
    target_tokens: Sequence[str]
    weights: np.ndarray[Any, Any]


def write_page(
    path: Path | str,
    *,
    title: str,
    summary: Sequence[tuple[str, str]],
    curve: Sequence[CurvePoint],
    samples: Sequence[Sample],
    notes: Sequence[str] = (),
) -> None:
    """Write the HTML page to `path`: a title, facts, the learning curves and sample translations with their attention.

    Args:
        summary: Facts as pairs of a label and a value.
        curve: Measurements during training. If it is empty, the section of charts is left out.
        samples: Translations to show. If there are none, their section is left out.
        notes: Paragraphs below the facts, such as what each score was computed on.

    The same arguments give the same bytes.
    """
    charts = _charts(curve)
    data = {
        "charts": [chart.data for chart in charts],
        "samples": [_sample_data(number, sample) for number, sample in enumerate(samples)],
    }
    gaps = {
        "title": _text(title),
        "facts": "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in summary),
        "notes": "".join(f'<p dir="auto">{_text(note)}</p>' for note in notes),
        "charts": "".join(chart.markup for chart in charts),
        "samples": "".join(_sample(number, sample) for number, sample in enumerate(samples)),
        "data": _json(data),
    }
    template = resources.files("glassformer.inspect").joinpath("page.html").read_text(encoding="utf-8")
    for section in ("facts", "notes", "charts", "samples"):
        if not gaps[section]:
            template = re.sub(rf"<!-- begin {section} -->.*?<!-- end {section} -->\n", "", template, flags=re.DOTALL)
    path = Path(path)
    with naming_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    # Replace all placeholders in one pass, so that a placeholder's name inside a given text stays text.
    write_text(path, re.sub(r"\{\{(\w+)\}\}", lambda gap: gaps[gap[1]], template))


def _text(text: str) -> str:
    # A lone surrogate cannot be encoded as UTF-8.
    return escape(text.encode("utf-8", "replace").decode("utf-8"))


def _json(value: object) -> str:
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII: U+2028 and the like are escaped already
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _sample_data(number: int, sample: Sample) -> dict[str, object]:
    weights = np.asarray(sample.weights)
    expected = len(sample.target_tokens), len(sample.source_tokens)
    if weights.ndim != 4 or weights.shape[2:] != expected or 0 in weights.shape[:2]:
        raise ValueError(
            f"samples[{number}].weights has shape {weights.shape}: expected (layers, heads, {expected[0]}, "
            f"{expected[1]}), a row for each target token and a column for each source token"
        )
    rounded = weights.astype(np.float64).round(3)  # float32 would print 0.1 with sixteen digits
    strangers = rounded[~((rounded >= 0) & (rounded <= 1))]
    if strangers.size:
        raise ValueError(f"samples[{number}].weights holds {strangers[0]}: expected numbers from 0 to 1")
    return {"source": list(sample.source_tokens), "written": list(sample.target_tokens), "weights": rounded.tolist()}


def _sample(number: int, sample: Sample) -> str:
    texts = {"Source": sample.source, "Translation": sample.translation}
    if sample.reference is not None:
        texts["Reference"] = sample.reference
    lines = "".join(f'<div><dt>{name}</dt><dd dir="auto">{_text(text)}</dd></div>' for name, text in texts.items())
    # Skip samples without tokens on one side.
    place = f'<div class="attention" data-sample="{number}"></div>' if np.asarray(sample.weights).size else ""
    name = f"sentence-{number + 1}"
    return (
        f'<article class="sample" aria-labelledby="{name}"><h3 id="{name}">Sentence {number + 1}</h3>'
        f'<dl class="texts">{lines}</dl>{place}</article>\n'
    )


class _Chart(NamedTuple):
    """The markup of one chart, and the data that the page's script needs to show values under the pointer."""

    markup: str
    data: object


class _Dot(NamedTuple):
    """One point of a line: a value, or the mean and range (`low` to `high`) of consecutive values.

    `where` describes the point in words, such as "update 1,000".
    """

    x: float
    value: float
    low: float
    high: float
    where: str


class _Axis(NamedTuple):
    """The horizontal axis that all charts share: training time, or updates if the times do not increase."""

    name: str
    unit: float
    """Seconds per unit of time; 0 if the axis counts updates."""

    def place(self, point: CurvePoint) -> float:
        return point.seconds / self.unit if self.unit else float(point.update)


def _charts(curve: Sequence[CurvePoint]) -> list[_Chart]:
    points = sorted((point for point in curve if abs(point.seconds) < DIVERGED), key=lambda point: point.update)
    lines: dict[str, list[tuple[CurvePoint, float]]] = {}
    for point in points:
        for name, value in point.values.items():
            if abs(value) < DIVERGED:
                lines.setdefault(name, []).append((point, float(value)))
    axis = _axis([point.seconds for point in points])
    dots = {name: _dots(line, axis) for name, line in lines.items()}
    losses = {name: line for name, line in dots.items() if "loss" in name.lower()}
    scores = {name: line for name, line in dots.items() if name not in losses}
    drawn = []
    if losses:
        drawn.append(_chart("Loss", "lower is better", losses, axis))
    if scores:
        drawn.append(_chart("Scores", "higher is better", scores, axis))
    return drawn


def _axis(seconds: Sequence[float]) -> _Axis:
    if not seconds or seconds[-1] <= 0 or any(after < before for before, after in pairwise(seconds)):
        return _Axis("updates", 0.0)
    name, unit = next((name, unit) for name, unit, most in UNITS if seconds[-1] < most)
    return _Axis(f"{name} of training", unit)


def _dots(line: Sequence[tuple[CurvePoint, float]], axis: _Axis) -> list[_Dot]:
    length = ceil(len(line) / MOST_DOTS)
    dots = []
    for start in range(0, len(line), length):
        points, values = zip(*line[start : start + length], strict=True)
        where = f"update {points[-1].update:,}"
        if len(points) > 1:
            where = f"mean of updates {points[0].update:,} to {points[-1].update:,}"
        x = sum(map(axis.place, points)) / len(points)
        mean = sum(values) / len(values)
        if axis.unit:
            where += f", {_clock(points[-1].seconds)}"
        dots.append(_Dot(x, mean, min(values), max(values), where))
    return dots


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _chart(name: str, better: str, lines: Mapping[str, Sequence[_Dot]], axis: _Axis) -> _Chart:
    """Return the chart `name`: its drawing, and a legend that shows the last value of each line.

    `better` is the text "lower is better" or "higher is better"; `lines` maps the label of each line to its points.
    """
    frame = _Frame(lines, axis, from_zero=name != "Loss")
    label_heights = _spread_labels([frame.down(line[-1].value) for line in lines.values()], HEIGHT - BOTTOM)
    curves, readings, told = "", "", []
    for number, (label, line) in enumerate(lines.items()):
        color, last = f"line-{number % N_COLORS}", line[-1]
        curves += _curve(frame, line, color)
        curves += (
            f'<text class="label {color}" x="{frame.right + 8:.1f}" y="{label_heights[number] + 4:.1f}">'
            f"{_text(_short(label))}</text>"
        )
        readings += (
            f'<li><span class="key {color}"></span><bdi class="name">{_text(label)}</bdi> '
            f'<b class="value">{_value(last.value)}</b> <span class="where">{last.where}</span></li>'
        )
        told.append(f"{label} from {_value(line[0].value)} to {_value(last.value)}")
    description = _text(f"{name}, {better}: " + "; ".join(told))
    note = "<p>The pale band reaches from the lowest to the highest value behind each mean.</p>"
    markup = (
        f"<figure><figcaption><b>{name}</b> <span>{better}</span></figcaption>"
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{description}">{_scales(frame, axis)}{curves}</svg>'
        f'<ul class="readings">{readings}</ul>{note if any(map(_has_spread, lines.values())) else ""}</figure>\n'
    )
    places = [
        [[frame.across(dot.x), frame.down(dot.value), _value(dot.value), dot.where] for dot in line]
        for line in lines.values()
    ]
    return _Chart(markup, {"lines": places})


class _Frame:
    """The coordinate system of one chart: the drawing area inside the margins, and the ticks of both axes.

    With `from_zero` the vertical axis includes 0.
    """

    def __init__(self, lines: Mapping[str, Sequence[_Dot]], axis: _Axis, *, from_zero: bool):
        dots = [dot for line in lines.values() for dot in line]
        low = min(dot.low for dot in dots)
        self.heights = _ticks(min(low, 0.0) if from_zero else low, max(dot.high for dot in dots))
        self.first, self.last = min(0.0, *(dot.x for dot in dots)), max(dot.x for dot in dots)
        marks = [mark for mark in _ticks(self.first, self.last) if self.first <= mark <= self.last]
        self.marks = [mark for mark in marks if axis.unit or mark.is_integer()]
        self.left = 12 + LETTER * max(len(_number(tick)) for tick in self.heights)
        self.right = WIDTH - 12 - LETTER * max(len(_short(label)) for label in lines)

    def across(self, x: float) -> float:
        share = (x - self.first) / ((self.last - self.first) or 1.0)
        return round(self.left + share * (self.right - self.left), 1)

    def down(self, y: float) -> float:
        share = (y - self.heights[0]) / (self.heights[-1] - self.heights[0])
        return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP), 1)


def _scales(frame: _Frame, axis: _Axis) -> str:
    left, right, bottom = frame.left, frame.right, HEIGHT - BOTTOM
    rules = "".join(
        f'<line class="rule" x1="{left:.1f}" x2="{right:.1f}" y1="{frame.down(tick)}" y2="{frame.down(tick)}"/>'
        f'<text x="{left - 6:.1f}" y="{frame.down(tick) + 4:.1f}" text-anchor="end">{_number(tick)}</text>'
        for tick in frame.heights
    )
    notches = "".join(
        f'<line class="notch" x1="{frame.across(mark)}" x2="{frame.across(mark)}" y1="{bottom}" y2="{bottom + 4}"/>'
        f'<text x="{frame.across(mark)}" y="{bottom + 17}" text-anchor="middle">{_number(mark)}</text>'
        for mark in frame.marks
    )
    return (
        f'{rules}{notches}<text x="{(left + right) / 2:.1f}" y="{HEIGHT - 5}" text-anchor="middle">{axis.name}</text>'
        f'<line class="cursor" y1="{TOP}" y2="{bottom}"/>'
    )


def _curve(frame: _Frame, line: Sequence[_Dot], color: str) -> str:
    """Return the SVG of one line: the means, the band of ranges behind them, and a dot that follows the pointer."""
    top_and_back = [(dot.x, dot.high) for dot in line] + [(dot.x, dot.low) for dot in reversed(line)]
    means = [(dot.x, dot.value) for dot in line]
    band, path = (
        " ".join(f"{frame.across(x)},{frame.down(y)}" for x, y in corners) for corners in (top_and_back, means)
    )
    drawn = f'<polygon class="band {color}" points="{band}"/>' if _has_spread(line) else ""
    drawn += f'<polyline class="curve {color}" points="{path}"/>'
    x, y = frame.across(line[-1].x), frame.down(line[-1].value)
    return f'{drawn}<circle class="dot {color}" r="3.5" cx="{x}" cy="{y}"/>'


def _has_spread(line: Sequence[_Dot]) -> bool:
    return any(dot.low < dot.high for dot in line)


def _ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return about `about` round tick values: the first is at or below `low`, the last at or above `high`."""
    room = max(abs(low), abs(high), 1e-6) * 1e-3
    if high - low < room:
        low, high = low - room, high + room
    rough = (high - low) / about
    power = 10.0 ** floor(log10(rough))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)
    return [step * number for number in range(floor(low / step), ceil(high / step) + 1)]


def _number(tick: float) -> str:
    return f"{tick:,.6g}".replace("-", "\N{MINUS SIGN}")


def _value(value: float) -> str:
    return f"{value:.4g}".replace("-", "\N{MINUS SIGN}")


def _short(label: str) -> str:
    return label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"


def _spread_labels(heights: Sequence[float], bottom: float) -> list[float]:
    """Return vertical positions for labels: the wanted positions `heights`, moved apart so that no labels overlap.

    Positions grow downward; none of the result is larger than `bottom`.
    """
    order = sorted(range(len(heights)), key=lambda number: heights[number])
    moved = list(heights)
    for above, below in pairwise(order):
        moved[below] = max(moved[below], moved[above] + LABEL_GAP)
    limit = bottom
    for number in reversed(order):
        moved[number] = min(moved[number], limit)
        limit = moved[number] - LABEL_GAP
    return moved
