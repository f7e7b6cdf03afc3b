"""Blind human evaluation: which outputs a rater sees next, in which order, and the file of what raters said.

The file is JSON lines. The first line describes the session: its mode, its systems and a fingerprint of its texts. Each
further line is one answer of one rater, written as soon as it is given. A session goes on where its file ends. If a
rater answers an item twice, the last answer counts.
"""

import hashlib
import json
import os
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from glassformer.base.checks import shown

Mode = Literal["choice", "rating"]
LOWEST, HIGHEST = 1, 5
MAX_RATER = 60
"""The most characters of a rater's name."""


@dataclass(frozen=True)
class Answer:
    """A rater's answer about one item.

    `choice` is the system that was chosen, None for a tie; `ratings` holds the rating of each system. One of the two
    counts, by the mode of the session.
    """

    rater: str
    item: int
    choice: str | None = None
    ratings: Mapping[str, int] | None = None


class RatingSession:
    """Items with the outputs of several systems, and the answers of raters so far.

    Args:
        inputs: The text of each item.
        outputs: For each system, its output for each item.
        path: The file of answers, which is created or continued.
        seed: Decides the order of items and outputs, together with the rater's name.
    """

    def __init__(
        self, inputs: Sequence[str], outputs: Mapping[str, Sequence[str]], path: Path, mode: Mode, *, seed: int = 0
    ):
        self.inputs, self.outputs, self.path, self.mode, self.seed = list(inputs), dict(outputs), path, mode, seed
        self.systems = list(outputs)
        least = 2 if mode == "choice" else 1
        if len(self.systems) < least:
            raise ValueError(f"{len(self.systems)} systems: expected at least {least} for --mode {mode}")
        for name, texts in self.outputs.items():
            if len(texts) != len(self.inputs):
                raise ValueError(f"{name} has {len(texts)} outputs: expected {len(self.inputs)}, one for each input")
        if not self.inputs:
            raise ValueError("there are no inputs: expected at least one")
        self._lock = threading.Lock()
        self._answers = {(one.rater, one.item): one for one in self._open()}

    @property
    def answers(self) -> list[Answer]:
        """The answers so far: the last one of each rater for each item."""
        return list(self._answers.values())

    def next_item(self, rater: str) -> int | None:
        """Return the first item in a rater's own order that has no answer of theirs; None if all have one."""
        items = list(range(len(self.inputs)))
        random.Random(f"{self.seed} items {rater}").shuffle(items)
        return next((item for item in items if (rater, item) not in self._answers), None)

    def n_done(self, rater: str) -> int:
        """Return how many items a rater has answered."""
        return sum(one.rater == rater for one in self._answers.values())

    def order(self, rater: str, item: int) -> list[str]:
        """Return the systems in the order in which a rater sees their outputs, which differs from item to item."""
        systems = list(self.systems)
        random.Random(f"{self.seed} outputs {item} {rater}").shuffle(systems)
        return systems

    def shown_outputs(self, rater: str, item: int) -> list[str]:
        """Return the outputs of an item as a rater sees them: in their order, without names."""
        return [self.outputs[system][item] for system in self.order(rater, item)]

    def answer(self, rater: str, item: int, given: Any) -> None:
        """Store an answer: the place of the chosen output, None for a tie, or a list of ratings by place.

        Raises ValueError if it is none of these.
        """
        if not rater.strip() or len(rater) > MAX_RATER or not rater.isprintable():
            raise ValueError(f"rater={shown(rater)}: expected a name of 1 to {MAX_RATER} characters")
        if not 0 <= item < len(self.inputs):
            raise ValueError(f"item={item}: expected 0 to {len(self.inputs) - 1}")
        order = self.order(rater, item)
        if self.mode == "choice":
            if given is not None and not (type(given) is int and 0 <= given < len(order)):
                raise ValueError(f"answer={shown(given)}: expected 0 to {len(order) - 1}, or null for a tie")
            found = Answer(rater, item, choice=None if given is None else order[given])
        else:
            is_list = isinstance(given, list) and len(given) == len(order)
            if not is_list or not all(type(one) is int and LOWEST <= one <= HIGHEST for one in given):
                raise ValueError(f"answer={shown(given)}: expected {len(order)} numbers from {LOWEST} to {HIGHEST}")
            found = Answer(rater, item, ratings=dict(zip(order, given, strict=True)))
        line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "rater": rater, "item": item, "order": order}
        line |= {"choice": found.choice} if self.mode == "choice" else {"ratings": dict(found.ratings or {})}
        with self._lock:
            self._append(line)
            self._answers[rater, item] = found

    def _open(self) -> list[Answer]:
        """Return the answers in the file, or write the first line of a new one."""
        head = {"session": "glassformer rate", "mode": self.mode, "systems": self.systems, "texts": self._fingerprint()}
        if not self.path.exists() or not self.path.stat().st_size:
            self._append(head)
            return []
        lines = self.path.read_text(encoding="utf-8").split("\n")  # a name may contain another line separator
        try:
            records = [json.loads(line) for line in lines if line.strip()]
        except ValueError as error:
            raise ValueError(f"{self.path} is not a file of ratings: {error}; choose another --out") from error
        if not records or records[0] != head:
            raise ValueError(
                f"{self.path} holds answers about other texts, systems or another --mode: choose another --out"
            )
        return [
            Answer(one["rater"], one["item"], one.get("choice"), one.get("ratings"))
            for one in records[1:]
            if 0 <= one["item"] < len(self.inputs)
        ]

    def _append(self, line: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _fingerprint(self) -> str:
        texts = json.dumps([self.inputs, self.outputs, self.seed], ensure_ascii=False, sort_keys=True)
        return hashlib.sha256(texts.encode("utf-8", "replace")).hexdigest()
