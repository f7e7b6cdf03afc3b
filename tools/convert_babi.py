"""Convert the bAbI tasks (Weston et al. 2015) to JSONL: `python tools/convert_babi.py babi-en.tar.gz FOLDER [COPIES]`.

The script reads the `en/` files of the archive, or of a folder that it was unpacked to. It writes FOLDER/train.jsonl
and FOLDER/test.jsonl, each with all tasks. A line has `question`, `context` (the statements of the story before the
question), `answer`, `evidence` (the statements from which the answer follows, in bAbI's order) and `task`, the number
of the task. The tasks alternate, so that the first lines have examples of every task.

COPIES augments the training data by this many copies of each question, in which words of the same kind are swapped: a
story of Mary and the milk becomes one of John and the apple. The only new information in the copies is which words are
of the same kind.
"""

import json
import random
import re
import sys
import tarfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

WORD = re.compile(r"[A-Za-z]+")
NAME = re.compile(r"(?:^|/)en/qa(\d+)_[^/]*_(train|test)\.txt$")


PEOPLE = [("Mary", "Sandra", "Julie"), ("John", "Daniel", "Fred", "Bill", "Jeff")]
PLACES = [("bathroom", "bedroom", "garden", "hallway", "kitchen", "office"), ("park", "school", "cinema")]
THINGS = [("apple", "football", "milk")]
WAYS = [("went", "moved", "travelled", "journeyed"), ("got", "grabbed", "took"), ("dropped", "discarded", "left")]
STORY = PEOPLE + PLACES + THINGS + WAYS
# Words of the same kind. Swapping them does not change the task: Mary and Sandra are interchangeable.
ALIKE: dict[int, list[tuple[str, ...]]] = {
    4: PLACES,
    15: [("gertrude", "winona", "jessica", "emily"), ("mouse", "wolf", "cat")],
    16: [
        ("bernhard", "brian", "greg", "julius", "lily"),
        ("frog", "lion", "rhino", "swan"),
        ("gray", "green", "white", "yellow"),
    ],
    17: [("blue", "pink", "red", "yellow"), ("rectangle", "square", "triangle", "sphere")],
    18: [("chest", "suitcase", "container")],
    19: PLACES,
    20: [("sumit", "yann", "antoine", "jason"), *WAYS[:2]],
}
PLURALS = {"mouse": "mice", "wolf": "wolves", "cat": "cats"}


def read_files(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file of the archive or folder, without unpacking the archive to disk."""
    if path.is_dir():
        for file in sorted(path.rglob("*.txt")):
            yield file.as_posix(), file.read_text(encoding="utf-8")
        return
    with tarfile.open(path) as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is not None:
                yield member.name, stream.read().decode("utf-8")


def questions(text: str, task: int) -> Iterator[dict[str, object]]:
    """Yield each question in the text of a bAbI file as a JSON object, with the statements before it in its story."""
    story: dict[str, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(" ")
        if number == "1":  # a story begins
            story = {}
        if "\t" in rest:
            question, answer, facts = (cell.strip() for cell in rest.split("\t"))
            yield {
                "question": question,
                "context": " ".join(story.values()),
                "answer": answer,
                "evidence": " ".join(story[fact] for fact in facts.split()),
                "task": task,
            }
        else:
            story[number] = rest.strip()


def renamed(question: dict[str, object], chance: random.Random) -> dict[str, object]:
    """Return a copy of the question and its story in which words of the same kind are randomly swapped."""
    names: dict[str, str] = {}
    for group in ALIKE.get(int(str(question["task"])), STORY):
        words = [word.lower() for word in group]
        names |= dict(zip(words, chance.sample(words, len(words)), strict=True))
    names |= {PLURALS[old]: PLURALS[new] for old, new in names.items() if old in PLURALS}

    def change(match: re.Match[str]) -> str:
        word = match[0]
        new = names.get(word.lower(), word.lower())
        return new.capitalize() if word[0].isupper() else new

    return {key: WORD.sub(change, text) if isinstance(text, str) else text for key, text in question.items()}


def main(source: Path, folder: Path, copies: int) -> None:
    """Convert the bAbI files in `source` to train.jsonl and test.jsonl in `folder`, and print their sizes.

    `copies` is the number of augmented copies of each training question.
    """
    found: dict[str, dict[int, list[dict[str, object]]]] = {"train": {}, "test": {}}
    for name, text in read_files(source):
        match = NAME.search(name)
        if match:
            task, side = int(match[1]), match[2]
            found[side][task] = list(questions(text, task))
    if not found["train"] or not found["test"]:
        sys.exit(f"{source} holds no en/qa*_train.txt and en/qa*_test.txt: expected bAbI's English tasks")
    folder.mkdir(parents=True, exist_ok=True)
    for side, tasks in found.items():
        turns = zip_longest(*(tasks[task] for task in sorted(tasks)))
        asked = [question for turn in turns for question in turn if question is not None]
        if side == "train":
            chance = random.Random(0)
            asked += [renamed(question, chance) for _ in range(copies) for question in asked]
        lines = [json.dumps(question) for question in asked]
        (folder / f"{side}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{folder / side}.jsonl: {len(lines):,} questions of {len(tasks)} tasks")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) == 4 else 0)
