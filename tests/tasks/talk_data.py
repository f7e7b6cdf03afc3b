"""A language of four words as conversations and as preferred answers, and a small model that has learned it."""

import json
import random

import glassformer
from tasks.pretrained_models import save_decoder

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier"}
QUICK = {"context": 64, "max_tokens": 512, "device": "cpu", "precision": "fp32"}


def write_conversations(path, count=120, seed=0):
    """Write conversations of two turns, alternately in OpenAI's and in ShareGPT's shape."""
    draw, lines = random.Random(seed), []
    for number in range(count):
        first, second = draw.choices(list(WORDS), k=2)
        said = [
            ("user", f"{first} {number}"),
            ("assistant", WORDS[first]),
            ("user", second),
            ("assistant", WORDS[second]),
        ]
        if number % 2:
            lines.append({"messages": [{"role": role, "content": text} for role, text in said]})
        else:
            names = {"user": "human", "assistant": "gpt"}
            lines.append({"conversations": [{"from": names[role], "value": text} for role, text in said]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def write_preferences(path, count=200, seed=0):
    """Write pairs of answers, of which the shorter one is preferred."""
    draw, lines = random.Random(seed), []
    for number in range(count):
        words = draw.choices(list(WORDS), k=3)
        texts = [WORDS[word] for word in words]
        lines.append({"prompt": f"{words[0]} {number}", "chosen": texts[0], "rejected": " ".join(texts)})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def train_chat(folder, updates=60, **changes):
    """Fine-tune a random model on conversations, and return its folder."""
    save_decoder(folder / "hf")
    write_conversations(folder / "c.jsonl")
    options = {"updates": updates, "eval_every": updates, "lr": 5e-3, **QUICK, **changes}
    glassformer.train("chat", data=folder / "c.jsonl", start_from=folder / "hf", out=folder / "chat", **options)
    return folder / "chat"
