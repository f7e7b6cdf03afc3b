"""`glassformer demo`: what it takes and says; `spelling.py` does it."""

from pathlib import Path

from tyro.conf import Positional


def demo(word: Positional[str] = "glassformer", *, out: Path = Path("demo"), steps: int = 600, seed: int = 0) -> None:
    """Train a small Transformer to spell words backwards, in under a minute on two CPU cores.

    It learns from random letters alone, is tested on words that were held out, and draws the cross-attention of WORD:
    the anti-diagonal in the picture is the model reading its source from the end.

    Args:
        word: The word to draw, 1 to 12 letters from a to z.
        out: Folder for the pictures.
        steps: Training steps; fewer are faster and worse.
        seed: Makes the run repeatable.
    """
    from glassformer.cli.spelling import spell_backwards  # here, because it loads torch and `--help` should not wait

    spell_backwards(word, out=out, steps=steps, seed=seed)
