"""Synthetic sentences with tagged people, places, organizations and dates, made of templates and syllables.

The splits use different names, so that a model cannot memorize them and must use spelling and context. A split has the
same sentences in every run.
"""

from collections.abc import Callable
from itertools import product
from random import Random
from typing import Literal

from glassformer.data.readers.tagged_sentences import TaggedSentence
from glassformer.text.tags import Entity

Side = Literal["train", "valid", "test"]
SIZES: dict[Side, int] = {"train": 3000, "valid": 300, "test": 500}
SHARES: dict[Side, tuple[int, int]] = {"train": (0, 6), "valid": (6, 8), "test": (8, 10)}
"""The tenths of each shuffled name list that a split uses: (first, end), the end exclusive."""

TEMPLATES = """\
{PERSON} was born in {PLACE} on {DATE} .
{PERSON} , who lives in {PLACE} , joined {ORG} in {DATE} .
On {DATE} {ORG} opened an office in {PLACE} .
{ORG} said that {PERSON} would leave in {DATE} .
{PERSON} and {PERSON} met in {PLACE} .
The mayor of {PLACE} , {PERSON} , thanked {ORG} .
Shares of {ORG} fell after {PERSON} resigned .
{ORG} buys {ORG} , says {PERSON} .
From {PLACE} to {PLACE} it takes three hours by train .
The train from {PLACE} was late on {DATE} .
Nobody at {ORG} wanted to speak about it .
Ask {PERSON} whether the meeting on {DATE} is still on .
" It rains in {PLACE} , " said {PERSON} .
A new bridge was opened near {PLACE} on {DATE} .
{PLACE} : {PERSON} wins again
{DATE} - {ORG} wants to build in {PLACE}
The court in {PLACE} ruled against {ORG} .
Her brother works for {ORG} and his wife for {ORG} .
{PERSON} sold the old house and moved to {PLACE} .
We have not heard from {PERSON} since {DATE} .
The old house was sold for very little .
The market opens again in the spring , the council said .
It rains , and the train is late .
Green apples and a little bread were all they had .
"""

FIRST = (
    "Anna Boris Clara Dora Emil Felix Greta Hugo Ines Jonas Karin Leon Mara Nils Olga Paul Quinn Rosa Simon Tilda "
    "Ulla Viktor Wanda Xenia Yann Zora Albert Berta Conrad Dina Edgar Flora Gustav Helga Ivan Judith Kaspar Lotte "
    "Moritz Nora Oskar Petra Rufus Selma Theo Ursula Vera Willem Yara Zeno"
)
STEMS = "Bar Cald Dorn Eber Fal Gren Hart Ister Kel Lind Mor Nor Ost Pell Rav Sel Tarn Ulm Vex Wint"
PERSONS = "ley man sen ov ini er ski strom well ard"
PLACES = "burg ville ford mouth haven stadt ton dale field minster"
FIRMS = "Bank,Motors,Ltd,Steel,Airways,& Sons,Insurance,Foods,University,Press"
MONTHS = "January February March April May June July August September October November December"
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"


def generate_sentences(side: Side) -> list[TaggedSentence]:
    """Return the tagged sentences of the split `side`: "train", "valid" or "test"."""
    draw = Random(side)
    makers, templates = _makers(side, draw), TEMPLATES.splitlines()
    return [_sentence(draw.choice(templates), makers) for _ in range(SIZES[side])]


def _sentence(template: str, makers: dict[str, Callable[[], str]]) -> TaggedSentence:
    words: list[str] = []
    entities = []
    for part in template.split():
        label = part.strip("{}")
        begin = len(words)
        words += makers[label]().split() if part != label else [part]
        if part != label:
            entities.append(Entity(begin, len(words), label))
    return TaggedSentence(tuple(words), tuple(entities))


def _makers(side: Side, draw: Random) -> dict[str, Callable[[], str]]:
    """Return for each entity label a function that makes a random name from the names of the split `side`."""
    first = _share(FIRST.split(), side)
    last, places, firms = (
        _share([stem + end for stem, end in product(STEMS.split(), ends)], side)
        for ends in (PERSONS.split(), PLACES.split(), ["", "a", "ex", "on"])
    )
    kinds, months, days = FIRMS.split(","), MONTHS.split(), DAYS.split()

    def person() -> str:
        return draw.choice(
            [f"{draw.choice(first)} {draw.choice(last)}", f"{draw.choice('ABCDEFGHJKLM')}. {draw.choice(last)}"]
        )

    def organisation() -> str:
        kind = draw.randrange(4)
        if kind == 0:
            return f"University of {draw.choice(places)}"
        if kind == 1:
            return "".join(draw.choices("ABCDEFGHIKLMNOPRSTUVWZ", k=3))
        return f"{draw.choice(last if kind == 2 else firms)} {draw.choice(kinds)}"

    def date() -> str:
        day, month, year = draw.randint(1, 28), draw.choice(months), draw.randint(1950, 2030)
        return draw.choice([f"{day} {month} {year}", f"{month} {year}", draw.choice(days), f"{year}"])

    return {
        "PERSON": person,
        "PLACE": lambda: draw.choice([draw.choice(places), f"{draw.choice(['New', 'Upper'])} {draw.choice(places)}"]),
        "ORG": organisation,
        "DATE": date,
    }


def _share(names: list[str], side: Side) -> list[str]:
    """Return the names that the split `side` uses.

    The names are shuffled first, so that similar ones are spread over the splits.
    """
    mixed = sorted(names)
    Random(0).shuffle(mixed)
    low, high = SHARES[side]
    return mixed[len(mixed) * low // 10 : len(mixed) * high // 10]
