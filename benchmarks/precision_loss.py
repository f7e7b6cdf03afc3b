"""Compare the loss that training in several precisions reaches, for several seeds: GPT-2 on Python's standard library.

    python benchmarks/precision_loss.py [--precision bf16 fp8] [--seeds 3] [--updates 500] [--rows 12] [--out FILE]

The text is the source of the standard library, with one file in 20 held out, in 16,384 kinds of tokens (BPE). Every run
makes the same number of updates of `--rows` windows of 1,024 tokens with AdamW. A seed decides the first weights and
the windows. The loss is that of the float32 weights on held-out windows, computed in bf16 for all runs.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor, nn

from glassformer.bench.result_file import check_new, write_result
from glassformer.data.batching.packed_windows import PackedBatch
from glassformer.data.corpora.standard_library import standard_library
from glassformer.models import ModelConfig, build_model
from glassformer.training.compile_choice import choose_compilation
from glassformer.training.fused_loss import token_loss
from glassformer.training.state import TrainState
from glassformer.training.train_config import TrainConfig
from glassformer.training.trainer import Trainer

VOCAB, LENGTH, HELD_OUT = 16384, 1024, 64
GPT2 = ModelConfig(
    vocab_size=50257, n_decoder_layers=12, d_model=768, d_ff=3072, n_heads=12, max_len=LENGTH, positions="learned",
    activation="gelu_tanh", norm_placement="pre", tie="output", head="language_model", output_bias=False, dropout=0.0,
    init="gpt2",
)  # fmt: skip


def read_tokens() -> tuple[Tensor, Tensor]:
    """Return the token ids of the training files and of the held-out files, each as one text."""
    documents = standard_library("code")
    texts = [[document.text for document in part] for part in (documents.train, documents.valid)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts[0], trainers.BpeTrainer(vocab_size=VOCAB, initial_alphabet=alphabet))
    train, valid = (
        torch.tensor([token for one in tokenizer.encode_batch(part) for token in one.ids]) for part in texts
    )
    return train, valid


def windows(tokens: Tensor, starts: Tensor, length: int) -> PackedBatch:
    """Return the windows of `length` tokens that begin at `starts`, and the tokens that follow."""
    rows = tokens[starts[:, None] + torch.arange(length + 1)]
    return PackedBatch(rows[:, :-1].contiguous(), rows[:, 1:].contiguous(), torch.empty(0, dtype=torch.long))


class RandomWindows:
    """Batches of random windows; `seed` and a batch's number decide which."""

    def __init__(self, tokens: Tensor, rows: int, length: int):
        self.tokens, self.rows, self.length = tokens, rows, length
        self.seed = 0

    def __getitem__(self, number: int) -> PackedBatch:
        """Return the batch with this number."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        starts = torch.randint(len(self.tokens) - self.length - 1, (self.rows,), generator=generator)
        return windows(self.tokens, starts, self.length)


class Runs:
    """Training runs in one precision. They share compiled code: each begins by replacing the weights of the last."""

    def __init__(self, config: ModelConfig, train: TrainConfig, batches: RandomWindows):
        self.config, self.batches = config, batches
        model = build_model(config)
        self.trainer: Trainer[Any] = Trainer(
            model=model, config=train, batches=batches, loss=_loss_of(model), loss_of=_loss_of, evaluate=dict,
            folder=Path(tempfile.mkdtemp()), on_update=lambda update: self.losses.append(update.loss),
        )  # fmt: skip
        choose_compilation(self.trainer)
        self.losses: list[float] = []

    def run(self, seed: int, updates: int) -> tuple[Tensor, float]:
        """Train with this seed. Return the loss of every update, and the seconds of the whole run."""
        trainer = self.trainer
        began = time.perf_counter()
        torch.manual_seed(seed)
        self.batches.seed, self.losses = seed, []
        with torch.no_grad(), trainer.device:
            for parameter, first in zip(trainer.model.parameters(), build_model(self.config).parameters(), strict=True):
                parameter.copy_(first)
        trainer.optimizer.state.clear()
        trainer.state = TrainState()
        trainer.setup.pull()
        for _ in range(updates):
            trainer._update()
        trainer._finish_started()
        return torch.tensor(self.losses), time.perf_counter() - began

    def held_out_loss(self, batch: PackedBatch) -> float:
        """Return the mean loss of held-out windows, computed by the model itself in bf16."""
        self.trainer.model.eval()
        device = self.trainer.device
        total = 0.0
        for first in range(0, len(batch.tokens), 8):
            part = batch.slice_rows(first, first + 8).to(device)
            with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
                logits = self.trainer.model(part.tokens)
            total += nn.functional.cross_entropy(logits.float().flatten(0, 1), part.targets.flatten()).item()
        return total / -(-len(batch.tokens) // 8)


def _loss_of(model: Any) -> Callable[[PackedBatch], Tensor]:
    return partial(_loss, model)


def _loss(model: Any, batch: PackedBatch) -> Tensor:
    return token_loss(model, lambda: model(batch.tokens), batch.targets, smoothing=0.0, ignore=-100)


def main() -> None:
    """Make all runs, print the table, and write the result file if --out is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", nargs="+", default=["bf16", "fp8"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=500)
    parser.add_argument("--rows", type=int, default=12, help="windows of 1,024 tokens in each update")
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and short windows, to try this program")
    parser.add_argument("--out", type=Path, help="also write the losses to this new JSON file")
    arguments = parser.parse_args()
    if arguments.out is not None:
        check_new(arguments.out)
    torch.set_float32_matmul_precision("high")
    config, length = (replace(GPT2, n_decoder_layers=1, d_model=48), 32) if arguments.tiny else (GPT2, LENGTH)
    began = time.perf_counter()
    train, valid = read_tokens()
    print(f"{len(train):,} tokens, {len(valid):,} held out, after {time.perf_counter() - began:.0f} s", flush=True)
    held_out = windows(valid, torch.linspace(0, len(valid) - length - 2, HELD_OUT).long(), length)
    rows: list[list[str | float]] = []
    runs: dict[str, Runs] = {}
    for seed in range(arguments.seeds):
        for precision in arguments.precision:
            if precision not in runs:
                options = TrainConfig(
                    updates=arguments.updates, warmup=arguments.updates // 10, lr=arguments.lr, schedule="cosine",
                    beta2=0.95, optimizer="adamw", weight_decay=0.1, device=arguments.device, precision=precision,
                    compile="off" if arguments.tiny else "on",
                )  # fmt: skip
                runs[precision] = Runs(config, options, RandomWindows(train, arguments.rows, length))
            losses, seconds = runs[precision].run(seed, arguments.updates)
            last, loss = losses[-20:].mean().item(), runs[precision].held_out_loss(held_out)
            rows.append([precision, seed, loss, last, seconds])
            numbers = f"held-out loss {loss:.4f}, training {last:.4f}"
            print(f"{precision}, seed {seed}: {numbers}, {seconds:.0f} s", flush=True)
    if arguments.out is not None:
        columns = ["precision", "seed", "held-out loss", "training loss, last 20 updates", "seconds"]
        write_result(arguments.out, title="Loss after training in several precisions", columns=columns, rows=rows)


if __name__ == "__main__":
    main()
