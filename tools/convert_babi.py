"""bAbI's tasks (Weston et al. 2015) as JSONL: `python tools/convert_babi.py babi-en.tar.gz FOLDER`.

Writes FOLDER/train.jsonl and FOLDER/test.jsonl, all tasks together, from the `en/` files of the archive or of a folder
that it was unpacked to. A line has `question`, `context` (the statements since the story began), `answer` and `task`,
its number. The tasks take turns, so that the first few lines are of all of them. The supporting facts are left behind:
nothing here learns from them.
"""

import json
import re
import sys
import tarfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

NAME = re.compile(r"(?:^|/)en/qa(\d+)_[^/]*_(train|test)\.txt$")


def read_files(path: Path) -> Iterator[tuple[str, str]]:
    """The name and the text of each file of the archive, or folder; nothing is unpacked to the disk."""
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
    """Each question of a file, with the statements that precede it in its story."""
    story: list[str] = []
    for line in text.splitlines():
        number, _, rest = line.partition(" ")
        if number == "1":  # a story begins
            story = []
        if "\t" in rest:
            question, answer, *_ = rest.split("\t")
            yield {"question": question.strip(), "context": " ".join(story), "answer": answer.strip(), "task": task}
        else:
            story.append(rest.strip())


def main(source: Path, folder: Path) -> None:
    """Convert, and say how many questions there were."""
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
        lines = [json.dumps(question) for turn in turns for question in turn if question is not None]
        (folder / f"{side}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{folder / side}.jsonl: {len(lines):,} questions of {len(tasks)} tasks")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
