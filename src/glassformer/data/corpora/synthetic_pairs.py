"""Synthetic sentence pairs with a known similarity, which is the share of facts that both sentences state.

A sentence states who does what, to whom, how and where. Every fact can be phrased in several ways and the facts can
come in several orders. So two sentences may mean the same without sharing a word, or share all words and differ in
meaning ("the dog sees the cat", "the cat sees the dog").
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

from glassformer.data.readers.splits import Split, split_of

WHO = (
    *(("dog", "hound", "puppy"), ("cat", "kitten", "feline"), ("child", "kid", "youngster"), ("doctor", "physician")),
    *(("teacher", "instructor", "tutor"), ("thief", "robber", "burglar"), ("sailor", "seaman"), ("king", "monarch")),
)
DOES = (
    *(("sees", "notices", "spots"), ("chases", "pursues", "hunts"), ("helps", "assists", "aids")),
    *(("fears", "dreads"), ("likes", "adores", "loves"), ("calls", "summons"), ("hides", "conceals")),
)
HOW = (
    *(
        ("quickly", "rapidly", "swiftly"),
        ("quietly", "silently", "softly"),
        ("often", "frequently"),
        ("rarely", "seldom"),
    ),
    *(("today", "now"), ("again", "anew")),
)
WHERE = (
    *(("in the forest", "among the trees", "in the woods"), ("at sea", "on the ocean"), ("at home", "in the house")),
    *(("in town", "in the city", "downtown"), ("on the road", "in the street"), ("in class", "at school")),
)
SLOTS = (WHO, DOES, WHO, HOW, WHERE)
ORDERS = ("the {0} {1} the {2} {3} {4}", "{4} the {0} {3} {1} the {2}", "{3} the {0} {1} the {2} {4}")
N_PAIRS = 20_000


class ScoredPair(NamedTuple):
    """Two texts and their similarity, from 0 (unrelated) to 1 (same meaning)."""

    text: str
    second: str
    score: float


def generate_pairs(count: int = N_PAIRS, *, seed: int = 0) -> dict[Split, list[ScoredPair]]:
    """Draw `count` random pairs of all degrees of similarity, and return them as splits.

    A hash of a pair's first text decides its split. Training pairs that contain a text of a validation or test pair are
    dropped.
    """
    sides: dict[Split, list[ScoredPair]] = {"train": [], "valid": [], "test": []}
    for pair in _draw(count, random.Random(seed)):
        sides[split_of(pair.text, valid=0.04, test=0.04)].append(pair)
    held_out = {text for side in ("valid", "test") for pair in sides[side] for text in pair[:2]}
    sides["train"] = [pair for pair in sides["train"] if held_out.isdisjoint(pair[:2])]
    return sides


def _draw(count: int, chance: random.Random) -> Iterator[ScoredPair]:
    for _ in range(count):
        first = [chance.randrange(len(slot)) for slot in SLOTS]
        second = list(first)
        for place in chance.sample(range(len(SLOTS)), chance.randint(0, len(SLOTS))):
            second[place] = chance.randrange(len(SLOTS[place]))
        if chance.random() < 0.2:
            second[0], second[2] = second[2], second[0]
        same = sum(a == b for a, b in zip(first, second, strict=True))
        yield ScoredPair(_say(first, chance), _say(second, chance), same / len(SLOTS))


def _say(meaning: list[int], chance: random.Random) -> str:
    words = [chance.choice(slot[number]) for slot, number in zip(SLOTS, meaning, strict=True)]
    return chance.choice(ORDERS).format(*words)
