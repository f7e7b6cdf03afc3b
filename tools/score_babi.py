"""Print the accuracy of a question-answering model on each task of bAbI.

    python tools/score_babi.py MODEL_FOLDER babi/test.jsonl

`tools/convert_babi.py` writes test.jsonl. The last line that is printed is the mean of the tasks' accuracies.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

from glassformer.metrics.exact_match import score_answers
from glassformer.pipelines.answerer import Answerer
from glassformer.training.precision import choose_device


def main(folder: Path, path: Path) -> None:
    """Answer every question in `path` with the model in `folder`, and print the accuracy on each task and the mean."""
    asked = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    answerer = Answerer.from_folder(folder)
    answerer.model.to(choose_device("auto"))
    found = answerer.answers([(one["question"], one["context"]) for one in asked])
    tasks: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for one, answer in zip(asked, found, strict=True):
        tasks[one["task"]].append((answer, one["answer"]))
    shares = []
    for task, answers in sorted(tasks.items()):
        said, true = zip(*answers, strict=True)
        shares.append(score_answers(said, [[one] for one in true])["exact_match"])
        print(f"task {task:2}  {shares[-1]:6.2f}")
    print(f"mean     {sum(shares) / len(shares):6.2f}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
