"""Sentences about animals, and small models that are pretrained on them."""

import random
from dataclasses import replace

KINDS = {"cow": "moos", "dog": "barks", "hen": "clucks", "cat": "purrs"}


def sentence(draw):
    """A sentence about an animal and its sound."""
    animal = draw.choice([*KINDS])
    return f"the {draw.choice(['old', 'red', 'big'])} {animal} {KINDS[animal]} ."


def quick(config, updates=100, **changes):
    """The config with a tiny model and few updates."""
    train = replace(
        config.train, updates=updates, eval_every=50, save_every=50, warmup=10, max_tokens=512, lr=5e-3, device="cpu"
    )
    sizes = {"vocab_size": 310, "d_model": 32, "d_ff": 48, "n_heads": 4, "max_len": 32, "dropout": 0.0}
    depth = {"n_encoder_layers": 1, "n_decoder_layers": min(config.model.n_decoder_layers, 1)}
    return replace(config, train=train, model=replace(config.model, embedding_dropout=0.0, **sizes, **depth), **changes)


def labeled(folder, count, seed):
    """Write texts that are labeled with the animal whose sound they name."""
    draw = random.Random(seed)
    path = folder / f"labeled-{count}.tsv"
    lines = ["text\tlabel"]
    for _ in range(count):
        animal = draw.choice([*KINDS])
        # The class is the animal, and the text names its sound. Only a pretrained model knows the connection.
        lines.append(f"the {draw.choice(['old', 'red', 'big'])} one {KINDS[animal]} .\t{animal}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
