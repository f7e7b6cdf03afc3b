"""Compare the training speed of Glassformer with that of torch.nn.Transformer and HF Marian on a CPU.

    python benchmarks/train.py [--size demo|base] [--rounds 7] [--threads 2] [--precision fp32] [--out FILE]

Every trainer gets the same batch, without padding, so that the handling of padding does not matter. A step is forward,
label-smoothed loss, backward, gradient clipping and a fused Adam update, in training mode with the same dropout.
Glassformer's step is one update of its `Trainer`, as `glassformer train` makes it. Steps are measured in float32, and
in bf16 if the CPU has AMX: the peers under torch's autocast, Glassformer as its `Trainer` computes it. In each round,
every trainer makes one step, so that noise affects all of them, and each round begins with another trainer. The table
shows medians over the rounds. Its last column is the model's arithmetic rate divided by the highest rate of a matrix
product measured in the same run.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.bench.result_file import check_new, write_result
from glassformer.data.batching.pair_batches import PairBatch
from glassformer.models import EncoderDecoderModel, ModelConfig
from glassformer.tasks.seq2seq_task import pair_loss
from glassformer.training.cpu_kernels import choose_cpu_kernels
from glassformer.training.precision import Precision
from glassformer.training.train_config import TrainConfig
from glassformer.training.trainer import Trainer

Step = Callable[[Precision], None]


@dataclass(frozen=True)
class Size:
    """The size of the benchmarked model, and of its batch: `batch` sentence pairs of `length` tokens."""

    d_model: int
    n_heads: int
    n_layers: int
    d_ff: int
    vocab_size: int
    batch: int
    length: int
    dropout: float = 0.1

    def flops_a_target_token(self) -> float:
        """Return the floating-point operations of a training step per target token.

        Sources and targets have equal length. A multiply-add counts as two operations, and backward as twice forward.
        """
        attention, ffn = 4 * self.d_model**2, 2 * self.d_model * self.d_ff
        scores = 2 * self.length * self.d_model
        weights = self.n_layers * (attention + ffn + 2 * attention + ffn + 3 * scores) + self.d_model * self.vocab_size
        return 6.0 * weights


SIZES = {
    "demo": Size(d_model=128, n_heads=4, n_layers=1, d_ff=384, vocab_size=5000, batch=42, length=12),
    "small": Size(d_model=160, n_heads=4, n_layers=2, d_ff=640, vocab_size=4000, batch=128, length=14),
    "base": Size(d_model=512, n_heads=8, n_layers=6, d_ff=2048, vocab_size=8000, batch=32, length=30),
}


def glassformer_step(size: Size, source: Tensor, target: Tensor) -> Step:
    """Build Glassformer's model and return a function that makes one training step with this batch."""
    config = ModelConfig(
        vocab_size=size.vocab_size,
        n_encoder_layers=size.n_layers,
        n_decoder_layers=size.n_layers,
        d_model=size.d_model,
        n_heads=size.n_heads,
        d_ff=size.d_ff,
        max_len=256,
        scale_embeddings=True,
        tie="all",
        head="language_model",
        output_bias=False,
        dropout=size.dropout,
        embedding_dropout=size.dropout,
    )
    model = EncoderDecoderModel(config)
    batch = PairBatch(source, target[:, :-1].contiguous(), target[:, 1:].contiguous())

    @cache
    def trainer(precision: Precision) -> Trainer[PairBatch]:
        train = TrainConfig(
            minutes=10, lr=1e-4, schedule="constant", warmup=0, clip=1.0, precision=precision, device="cpu"
        )
        trainer = Trainer(
            model=model,
            config=train,
            batches=SameBatch(batch),
            loss=partial(pair_loss, model, train),
            evaluate=dict,
            folder=Path("unused: no checkpoint is written"),
        )
        for line in choose_cpu_kernels(trainer, size.batch * size.length * size.flops_a_target_token()):
            print(line)
        return trainer

    return lambda precision: trainer(precision)._update()


@dataclass(frozen=True)
class SameBatch:
    """Training data with one batch only."""

    batch: PairBatch

    def __getitem__(self, number: int) -> PairBatch:
        """Return the batch, whatever its number."""
        return self.batch


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with the embeddings and the output projection that it lacks."""

    def __init__(self, size: Size):
        super().__init__()
        self.embedding = nn.Embedding(size.vocab_size, size.d_model)
        self.positions = nn.Embedding(256, size.d_model)
        self.dropout = nn.Dropout(size.dropout)
        self.transformer = nn.Transformer(
            size.d_model, size.n_heads, size.n_layers, size.n_layers, size.d_ff, size.dropout, batch_first=True
        )

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the sum of scaled token embeddings and learned position embeddings, with dropout."""
        positions = self.positions(torch.arange(tokens.shape[1]))
        return self.dropout(self.embedding(tokens) * self.embedding.embedding_dim**0.5 + positions)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of the next token at each position of the target: (B, T, V)."""
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        hidden = self.transformer(self.embed(source), self.embed(target), tgt_mask=causal, tgt_is_causal=True)
        return F.linear(hidden, self.embedding.weight)


def torch_step(size: Size, source: Tensor, target: Tensor) -> Step:
    """Build a `TorchTransformer` and return a function that makes one training step with this batch."""
    model = TorchTransformer(size).train()

    def loss() -> Tensor:
        logits = model(source, target[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1)

    return _step(model, loss)


def marian_step(size: Size, source: Tensor, target: Tensor) -> Step:
    """Build HF's Marian from a config, without downloads, and return a function that makes one training step."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=size.vocab_size,
        d_model=size.d_model,
        encoder_layers=size.n_layers,
        decoder_layers=size.n_layers,
        encoder_attention_heads=size.n_heads,
        decoder_attention_heads=size.n_heads,
        encoder_ffn_dim=size.d_ff,
        decoder_ffn_dim=size.d_ff,
        activation_function="relu",
        dropout=size.dropout,
        max_position_embeddings=256,
        pad_token_id=0,
        eos_token_id=2,
        bos_token_id=1,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        scale_embedding=True,
        use_cache=False,
    )
    model = MarianMTModel(config).train()

    def loss() -> Tensor:
        logits = model(input_ids=source, decoder_input_ids=target[:, :-1]).logits
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1)

    return _step(model, loss)


def _step(model: nn.Module, loss: Callable[[], Tensor]) -> Step:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def step(precision: Precision) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def gemm_rate(precision: Precision) -> float:
    """Measure the product of two 1,024 x 1,024 matrices and return its floating-point operations per second."""
    a, b = torch.randn(2, 1024, 1024, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    seconds = min(_seconds(lambda: a @ b) for _ in range(5))
    return float(2 * 1024**3 / seconds)


def _seconds(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


CONTENDERS = {"glassformer": glassformer_step, "torch.nn.Transformer": torch_step, "HF Marian": marian_step}


def main() -> None:
    """Measure every trainer at every size, print the tables, and write the result file if --out is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=[*SIZES], action="append")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["fp32", "bf16"], action="append")
    parser.add_argument("--out", type=Path, help="also write the seconds of every step to this new JSON file")
    arguments = parser.parse_args()
    if arguments.out is not None:
        check_new(arguments.out)
    rows: list[list[str | float]] = []
    has_units = torch.cpu._is_amx_tile_supported()
    precisions: list[Precision] = arguments.precision or ["fp32", *(["bf16"] if has_units else [])]
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    for name in arguments.size or SIZES:
        size = SIZES[name]
        source = torch.randint(4, size.vocab_size, (size.batch, size.length))
        target = torch.randint(4, size.vocab_size, (size.batch, size.length + 1))
        steps = {label: make(size, source, target) for label, make in CONTENDERS.items()}
        turns = [(label, precision) for precision in precisions for label in steps]
        for label, precision in turns:
            steps[label](precision)  # the first step allocates
        rates = {precision: gemm_rate(precision) for precision in precisions}
        times: dict[tuple[str, Precision], list[float]] = {turn: [] for turn in turns}
        for number in range(arguments.rounds):
            first = number % len(turns)  # what runs before a step decides what it finds in the caches
            for label, precision in turns[first:] + turns[:first]:
                times[label, precision].append(_seconds(partial(steps[label], precision)))
            rates = {precision: max(rate, gemm_rate(precision)) for precision, rate in rates.items()}
        tokens = size.batch * size.length
        products = ", ".join(f"{precision} {rate / 1e9:.0f}" for precision, rate in rates.items())
        print(f"\n{name}: {size}\ntorch {torch.__version__}, {arguments.threads} threads, GFLOP/s of GEMM: {products}")
        print("\n| trainer | ms a step | target tokens/s | ours is faster by | share of GEMM |\n|---|---|---|---|---|")
        for (label, precision), seconds in times.items():
            median, ours = statistics.median(seconds), statistics.median(times["glassformer", precision])
            share = tokens / median * size.flops_a_target_token() / rates[precision]
            speed = f"{median * 1e3:.0f} | {tokens / median:,.0f} | {median / ours:.2f} | {share:.0%}"
            print(f"| {label}, {precision} | {speed} |", flush=True)
            rows.append([name, label, precision, tokens, *seconds])
    if arguments.out is not None:
        rounds = [f"round {number + 1}: seconds" for number in range(arguments.rounds)]
        columns = ["size", "trainer", "precision", "target tokens per step", *rounds]
        write_result(arguments.out, title="Training speed", columns=columns, rows=rows)


if __name__ == "__main__":
    main()
