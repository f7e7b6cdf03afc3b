"""Configs of tasks that train in a fraction of a second, and the files that they read."""

import json
import random
from dataclasses import replace

from glassformer.tasks.task_registry import task_named
from glassformer.tasks.translation import PairData, TranslationConfig

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}


def write_pairs(folder, seed=0, count=120):
    """Write a.en and a.de: sentences of a language of five words, translated word by word."""
    draw = random.Random(seed)
    sources = [" ".join(draw.choices(list(WORDS), k=draw.randint(1, 4))) for _ in range(count)]
    (folder / "a.en").write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
    lines = (" ".join(WORDS[word] for word in line.split()) for line in sources)
    (folder / "a.de").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def translation(folder, **train):
    """The config of a tiny translator of the pairs in `folder`."""
    usual = TranslationConfig()
    model = replace(
        usual.model, vocab_size=300, d_model=16, n_heads=2, d_ff=16, n_encoder_layers=1, n_decoder_layers=1, max_len=24
    )
    values = {"updates": 4, "warmup": 2, "eval_every": 2, "save_every": 2, "max_tokens": 256, "device": "cpu", **train}
    return TranslationConfig(
        data=PairData(source=(folder / "a.en",), target=(folder / "a.de",)),
        model=model,
        train=replace(usual.train, precision="fp32", **values),
    )


def files_of(folder):
    """The contents of the files of a folder, by name."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def encoder_config(folder, task, **tokenizer):
    """The class of an encoder task and a tiny config, with training and validation files in `folder`."""
    kind, draw = task_named(task), random.Random(0)
    for side, word, count in (("data", "learn", 60), ("valid", "check", 6)):
        lines = []
        for _ in range(count):
            words = [word, *draw.choices(list(WORDS), k=4)]
            label, text = draw.choice("ab"), " ".join(words)
            lines.append(
                {
                    "classification": {"text": text, "label": label},
                    "multi_label": {"text": text, "label": ["a", label]},
                    "similarity": {"text": text, "second": f"{word} {words[1]}", "score": draw.random()},
                    "extraction": {"question": f"{word} {words[1]}", "context": text, "answer": words[2]},
                    "tagging": {"text": text, "spans": [[0, len(word), label]]},
                }["multi_label" if tokenizer.get("multi_label") else task]
            )
        (folder / f"{side}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    usual = kind.Config()
    is_multi = {"multi_label": True} if tokenizer.pop("multi_label", False) else {}
    paths = {side: (folder / f"{side}.jsonl",) for side in ("data", "valid")}
    values = {"updates": 4, "warmup": 1, "max_tokens": 128, "eval_every": 2, "save_every": 2, "device": "cpu"}
    return kind, replace(
        usual,
        data=replace(usual.data, **paths, **is_multi),
        tokenizer=replace(usual.tokenizer, **tokenizer),
        model=replace(usual.model, vocab_size=280, d_model=16, d_ff=16, n_heads=2, max_len=24),
        train=replace(usual.train, precision="fp32", **values),
    )
