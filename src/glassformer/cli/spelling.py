"""The demonstration: an encoder-decoder learns to spell backwards, and shows where it looks."""

import string
from pathlib import Path
from random import Random

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from glassformer.data.batches import PairBatch
from glassformer.data.toy import N_SPECIAL, PairTaskData, pad
from glassformer.decoding import translate_greedily
from glassformer.inspect import draw_attention, draw_positions
from glassformer.models import EncoderDecoderModel, ModelConfig
from glassformer.nn import capture_attention
from glassformer.text.tokenizer import BEGIN, END, PAD
from glassformer.training import FitReport, fit, label_smoothed_cross_entropy

LETTERS = string.ascii_lowercase
MAX_LENGTH = 12
N_TEST = 500


def spell_backwards(word: str, *, out: Path, steps: int, seed: int) -> None:
    """Train, test on held-out words, and draw the cross-attention of `word`."""
    if not 1 <= len(word) <= MAX_LENGTH or any(letter not in LETTERS for letter in word):
        raise ValueError(f"word={word!r}: expected 1 to {MAX_LENGTH} letters from a to z")
    if steps < 1:
        raise ValueError(f"steps={steps}: expected at least 1")
    out.mkdir(parents=True, exist_ok=True)  # now rather than after the training
    torch.manual_seed(seed)
    model = EncoderDecoderModel(
        ModelConfig(
            vocab_size=len(LETTERS) + N_SPECIAL,
            n_encoder_layers=2,
            n_decoder_layers=2,
            d_model=64,
            n_heads=4,
            d_ff=128,
            max_len=MAX_LENGTH + 1,
            norm_placement="pre",
            scale_embeddings=True,
            tie="all",
            head="language_model",
            dropout=0.0,
        )
    )
    print(f"An encoder-decoder of {model.n_parameters():,} parameters learns to spell backwards.")
    train(model, steps=steps, seed=seed)
    words = held_out_words(N_TEST, seed=seed + 1)
    right = sum(answer == asked[::-1] for asked, answer in zip(words, write(model, words), strict=True))
    print(f"{right / len(words):.1%} of {len(words)} held-out words are right to the last letter.")
    draw(model, word, out)


def train(model: EncoderDecoderModel, *, steps: int, seed: int) -> None:
    """Show it random letters and their reversal; progress goes to stderr, as a bar on a terminal, else as lines."""

    def loss(batch: PairBatch) -> Tensor:
        logits = model(batch.source, batch.target_in, batch.source_mask, batch.target_mask)
        return label_smoothed_cross_entropy(logits, batch.target_out, ignore=PAD)

    console = Console(stderr=True, highlight=False)
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=steps)

        def show(report: FitReport) -> None:
            text = f"step {report.step:4d}  loss {report.loss:.4f}"
            progress.update(task, advance=1, description=text)
            if not console.is_terminal and report.step % 100 == 0:
                console.print(f"{text}  {report.seconds:.0f} s")

        data = PairTaskData(
            "reverse", len(LETTERS), min_length=1, max_length=MAX_LENGTH, seed=seed, leave_out=is_held_out
        )
        fit(model, data.batches(), loss, steps=steps, lr=2e-3, on_step=show)


def is_held_out(letters: list[int]) -> bool:
    """Every tenth word that there is, by the sum of its letters, is for testing and never trained on."""
    return len(letters) > 2 and sum(letters) % 10 == 0


def held_out_words(count: int, *, seed: int) -> list[str]:
    """Random letters, as long as words are, that no training has seen."""
    random, words = Random(seed), list[str]()
    while len(words) < count:
        letters = [random.randrange(len(LETTERS)) for _ in range(random.randint(3, MAX_LENGTH))]
        if is_held_out(letters):
            words.append("".join(LETTERS[letter] for letter in letters))
    return words


def write(model: EncoderDecoderModel, words: list[str]) -> list[str]:
    """What the model writes for each word."""
    source = pad([[LETTERS.index(letter) + N_SPECIAL for letter in word] for word in words])
    answers = translate_greedily(model, source, source != PAD, begin=BEGIN, end=END, max_new=MAX_LENGTH + 1)
    return ["".join(LETTERS[token - N_SPECIAL] if token >= N_SPECIAL else "?" for token in row) for row in answers]


def draw(model: EncoderDecoderModel, word: str, out: Path) -> None:
    """The cross-attention of every layer and head while it writes `word` backwards, and the positional encoding."""
    with capture_attention(model, kinds=["cross_attn"]) as captured:
        written = write(model, [word])[0]
    print(f"{word} -> {written}")
    for name in captured:
        # The cached decoding leaves one record a step, each of one query: together they are the whole picture.
        weights = torch.cat(captured.steps(name), dim=2)[0]  # (H, T, S)
        picture = out / f"{name}.png"
        rows = [*written, "(end)"][: weights.shape[1]]
        draw_attention(weights, rows, list(word), title=f"What each letter written looks at: {name}", path=picture)
        print(f"wrote {picture}")
    draw_positions(length=60, width=64, path=out / "positions.png")
    print(f"wrote {out / 'positions.png'}")
