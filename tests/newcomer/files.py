"""The reader's own files that the README and the docs speak of, generated and small."""

import gzip
import itertools
import json
import random

WORDS = (("one", "eins"), ("two", "zwei"), ("three", "drei"), ("four", "vier"), ("five", "fünf"))
PLACES = [f"{first}{last}" for first in ("Ro", "Li", "Pa") for last in ("me", "ma", "ris", "lo", "na", "do", "ta")]
TEXTS = [
    f"the {animal} {verb} {n}" for n in range(15) for animal in ("cat", "dog", "bird") for verb in ("sleeps", "sits")
]


def write_files(folder):
    """Write every file that a command of the README or of the docs reads."""
    for name, count in (("train", 120), ("val", 20), ("test", 20), ("test2016", 20)):
        write_pairs(folder, name, count)
    write_lines(folder / "in.txt", ["one two", "", "three"])
    write_lines(folder / "lines.txt", ["it is good", "the cat sleeps"])
    write_lines(folder / "texts.txt", TEXTS)
    for name in ("reviews.tsv", "test.tsv"):
        write_lines(folder / name, ["text\tlabel", *labeled()])
    same = [
        f"the {a} sleeps {n}\tthe {b} rests {n}\tsame"
        for n in range(15)
        for a, b in (("cat", "feline"), ("dog", "hound"))
    ]
    different = [f"the cat sleeps {n}\tthe hound rests {n + 1}\tdifferent" for n in range(30)]
    write_lines(folder / "paraphrases.tsv", ["text\tsecond\tlabel", *same, *different])
    tagged = [f"{name} I-PERSON\nsaw O\n{place} I-PLACE\n" for name in ("Ada", "Bo", "Cy") for place in PLACES]
    write_lines(folder / "names.conll", tagged)
    write_task_files(folder)
    talks = [[{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}] for text in TEXTS]
    write_lines(folder / "talks.jsonl", [json.dumps({"messages": talk}) for talk in talks])
    for name in ("train.tsv.gz", "dev.tsv.gz"):
        write_lines(folder / name, ["sentence\tlabel", *labeled()])


def write_task_files(folder):
    """Write the files of the guides in docs/tasks."""
    write_lines(folder / "book.txt", TEXTS * 4)
    places = [(name, place) for name in ("Ada", "Bo", "Cy") for place in PLACES]
    answers = [{"question": f"where is {name}", "context": f"{name} is in {place}."} for name, place in places]
    records = [{**one, "answer": place} for one, (_, place) in zip(answers, places, strict=True)]
    write_lines(folder / "questions.jsonl", [json.dumps(one) for one in records])
    choices = {"question": "where is Ada", "choices": ["in Rome", "in Lima"], "answer": "A"}
    write_lines(folder / "choices.jsonl", [json.dumps(choices)])
    write_lines(folder / "questions.txt", [f"{one['question']}\t{one['context']}" for one in answers[:3]])
    articles = [{"source": f"{text} on the mat all day", "target": text} for text in TEXTS]
    write_lines(folder / "articles.jsonl", [json.dumps(one) for one in articles])
    pairs = [f"{text}\t{other}\t{(n % 10) / 10}" for n, (text, other) in enumerate(itertools.pairwise(TEXTS))]
    write_lines(folder / "pairs.tsv", ["text\tsecond\tscore", *pairs])
    write_lines(folder / "pairs.txt", ["the cat sleeps\tthe cat sits", "the dog sits\tthe bird sleeps"])
    (folder / "my-project").mkdir()
    for name in ("first", "second", "third"):
        lines = [f"def {name}_{n}(value):\n    return value + {n}\n" for n in range(60)]
        write_lines(folder / "my-project" / f"{name}.py", lines)


def write_pairs(folder, name, count=120):
    """NAME.en and NAME.de, plain and as .gz, with `count` pairs of numerals."""
    chance = random.Random(name)
    rows = [chance.choices(WORDS, k=5) for _ in range(count)]
    for side, language in enumerate(("en", "de")):
        for ending in ("", ".gz"):
            write_lines(folder / f"{name}.{language}{ending}", [" ".join(word[side] for word in row) for row in rows])


def labeled():
    """Rows of text and label."""
    return [f"it is {word} {n}\t{word}" for n in range(20) for word in ("good", "bad")]


def write_lines(path, lines):
    """Write lines of text, compressed if the name ends in .gz."""
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
