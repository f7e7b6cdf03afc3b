"""Compare the training speed of Glassformer on a GPU with that of compiled peers, in one interleaved run.

    python benchmarks/train_gpu.py [--work gpt2|base|pairs|llama] [--rounds 8] [--gpt-peer FILE] [--pairs SOURCE TARGET]

Glassformer trains through `Trainer`, in bf16 with compiled layers: batches, gradients, clipping, optimizer and counters
included. For gpt2 and llama it trains in fp8, too. The peers get the same batches on the device, bf16 autocast,
`torch.compile`, fused AdamW and clipping. In each round every contender makes a few updates, one after the other. The
table shows medians over the rounds.

- gpt2: 124 M parameters, 32 x 1,024 tokens. Peer: `GPT` of the file --gpt-peer, called with tokens and targets.
- base: Transformer-base, 256 pairs of 64 tokens, vocabulary 32,000. Peers: torch.nn.Transformer and HF Marian.
- pairs: the same model with padded batches of 4,096 tokens of two aligned texts (--pairs), words as tokens.
- llama: 1.1 B parameters, 8 x 2,048 tokens, gradient checkpointing. Peer: HF Llama, whose layers and loss are compiled
  (the whole model takes minutes to compile). Peak memory is printed, too.

Compiling takes longer than measuring. With --wait-for FILE a run prepares, creates FILE.ready, and measures when FILE
exists, so that several runs can prepare at the same time and measure one after the other.
"""

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.bench.result_file import check_new, write_result
from glassformer.data.batching.packed_windows import PackedBatch
from glassformer.data.batching.pair_batches import PairBatch, make_pair_batch
from glassformer.models import ModelConfig, build_model
from glassformer.tasks.seq2seq_task import pair_loss
from glassformer.training.compile_choice import choose_compilation
from glassformer.training.fused_loss import token_loss
from glassformer.training.prefetch import Prefetcher
from glassformer.training.train_config import TrainConfig
from glassformer.training.trainer import Trainer

VOCAB, PAIR_TOKENS = 32000, 4096
GPT2 = ModelConfig(
    vocab_size=50257, n_decoder_layers=12, d_model=768, d_ff=3072, n_heads=12, max_len=1024, positions="learned",
    activation="gelu_tanh", norm_placement="pre", tie="output", head="language_model", output_bias=False, dropout=0.0,
    init="gpt2",
)  # fmt: skip
BASE = ModelConfig(
    vocab_size=VOCAB, n_encoder_layers=6, n_decoder_layers=6, d_model=512, n_heads=8, d_ff=2048, max_len=256,
    scale_embeddings=True, tie="all", head="language_model", output_bias=False, dropout=0.1, embedding_dropout=0.1,
)  # fmt: skip
LLAMA = ModelConfig(
    vocab_size=VOCAB, n_decoder_layers=22, d_model=2048, n_heads=32, n_kv_heads=4, d_ff=5632, max_len=2048,
    positions="rotary", norm="rms", norm_placement="pre", activation="silu", gated=True, ffn_bias=False, qkv_bias=False,
    out_bias=False, head="language_model", output_bias=False, dropout=0.0, init="normal",
)  # fmt: skip

Update = Callable[[int], object]


def ours(config: ModelConfig, batches: Sequence[Any], **options: Any) -> Update:
    """Return a function that makes update number n of a new `Trainer`, with batch n, counted round and round."""

    class Repeated:
        def __getitem__(self, number: int) -> Any:
            return batches[number % len(batches)]

    train = TrainConfig(device="cuda", **{"compile": "on", "precision": "bf16", "optimizer": "adamw", **options})
    model = build_model(config)
    if train.gradient_checkpointing:
        model.set_gradient_checkpointing(True)

    def loss_of(module: nn.Module) -> Callable[[Any], Tensor]:
        return partial(pair_loss if config.n_encoder_layers else _text_loss, module, train)

    trainer: Trainer[Any] = Trainer(
        model=model, config=train, batches=Repeated(), loss=loss_of(model), loss_of=loss_of, evaluate=dict,
        folder=Path(tempfile.mkdtemp()),
    )  # fmt: skip
    choose_compilation(trainer)
    trainer._get_batches = Prefetcher(trainer._update_batches.__getitem__, pin=True).get  # as in `Trainer.run`
    return lambda number: trainer._update()


def _text_loss(model: Any, config: TrainConfig, batch: PackedBatch) -> Tensor:
    return token_loss(model, lambda: model(batch.tokens), batch.targets, smoothing=0.0, ignore=-100)


def theirs(model: nn.Module, batches: Sequence[Any], loss: Callable[[Any], Tensor]) -> Update:
    """Return a function that makes update n of a peer: autocast, clipping, fused AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def update(number: int) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            value = loss(batches[number % len(batches)])
        value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return update


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with the embeddings, the output projection and the loss that it lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(VOCAB, 512), nn.Embedding(256, 512)
        self.dropout = nn.Dropout(0.1)
        self.transformer = nn.Transformer(512, 8, 6, 6, 2048, 0.1, batch_first=True)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return scaled token embeddings and learned positions, with dropout."""
        positions = self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.dropout(self.embedding(tokens) * 512**0.5 + positions)

    def forward(self, source: Tensor, target: Tensor, answers: Tensor, is_padded: bool) -> Tensor:
        """Return the smoothed loss; `is_padded` says whether padding must be masked."""
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        padding = torch.zeros(source.shape, device=source.device).masked_fill(source == 0, -torch.inf)
        masks = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding} if is_padded else {}
        hidden = self.transformer(self.embed(source), self.embed(target), tgt_mask=causal, tgt_is_causal=True, **masks)
        return _smoothed(F.linear(hidden, self.embedding.weight), answers)


def _smoothed(logits: Tensor, answers: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), answers.flatten(), ignore_index=0, label_smoothing=0.1)


def torch_transformer(batches: Sequence[PairBatch], is_padded: bool) -> Update:
    """Return the updates of a compiled `TorchTransformer`."""
    model = TorchTransformer().cuda().train()
    compiled = torch.compile(model, dynamic=True if is_padded else None)
    return theirs(model, batches, lambda batch: compiled(*batch, is_padded))


def marian(batches: Sequence[PairBatch], is_padded: bool) -> Update:
    """Return the updates of HF's Marian, compiled."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=VOCAB, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
        decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, activation_function="relu", dropout=0.1,
        max_position_embeddings=256, pad_token_id=0, eos_token_id=2, bos_token_id=1, decoder_start_token_id=1,
        forced_eos_token_id=None, scale_embedding=True, use_cache=False,
    )  # fmt: skip
    model = MarianMTModel(config).cuda().train()
    compiled: Any = torch.compile(model, dynamic=True if is_padded else None)

    def loss(batch: PairBatch) -> Tensor:
        mask = {"attention_mask": batch.source_mask} if is_padded else {}
        return _smoothed(compiled(input_ids=batch.source, decoder_input_ids=batch.target_in, **mask).logits, batch[2])

    return theirs(model, batches, loss)


def llama(batches: Sequence[PackedBatch]) -> Update:
    """Return the updates of HF's Llama, with gradient checkpointing. One compilation serves all layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
        num_key_value_heads=4, max_position_embeddings=2048, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).cuda().train()
    model.gradient_checkpointing_enable()
    for layer in model.model.layers:
        layer.compile()

    @torch.compile
    def loss(hidden: Tensor, answers: Tensor) -> Tensor:
        return F.cross_entropy(model.lm_head(hidden).float().flatten(0, 1), answers.flatten())

    return theirs(model, batches, lambda batch: loss(model.model(batch.tokens).last_hidden_state, batch.targets))


def gpt_peer(file: Path, batches: Sequence[PackedBatch]) -> Update:
    """Return the updates of the class `GPT` in a file, compiled. It is called with tokens and targets."""
    spec = importlib.util.spec_from_file_location("gpt_peer", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.GPT().cuda()
    compiled = torch.compile(model)
    return theirs(model, batches, lambda batch: compiled(batch.tokens, batch.targets))


def read_pairs(source: Path, target: Path) -> list[PairBatch]:
    """Return padded batches of two aligned texts, with words as tokens, sorted by length, as training has them."""
    numbers: dict[str, int] = {}
    texts = [path.read_text(encoding="utf-8").splitlines() for path in (source, target)]
    rows = [
        [[numbers.setdefault(w, 4 + len(numbers) % (VOCAB - 4)) for w in t.split()] for t in side] for side in texts
    ]
    order = sorted(range(len(rows[0])), key=lambda i: (len(rows[0][i]), len(rows[1][i])))
    batches, chosen, longest = [], [], 0
    for row in order:
        longest = max(longest, len(rows[0][row]) + 1, len(rows[1][row]) + 1)
        if chosen and longest * (len(chosen) + 1) > PAIR_TOKENS:
            batches.append(make_pair_batch([rows[0][i] for i in chosen], [rows[1][i] for i in chosen]))
            chosen, longest = [], max(len(rows[0][row]) + 1, len(rows[1][row]) + 1)
        chosen.append(row)
    return [batches[i] for i in torch.randperm(len(batches), generator=torch.Generator().manual_seed(0))]


def works(arguments: argparse.Namespace) -> dict[str, tuple[list[Any], dict[str, Callable[[Any], Update]]]]:
    """Return the batches, on the CPU, and the contenders of each kind of work."""

    def text(vocab_size: int, rows: int, length: int) -> list[PackedBatch]:
        return [PackedBatch(*torch.randint(4, vocab_size, (2, rows, length)), torch.empty(0, dtype=torch.long))]

    source, target = torch.randint(4, VOCAB, (256, 64)), torch.randint(4, VOCAB, (256, 65))
    even = [PairBatch(source, target[:, :-1].contiguous(), target[:, 1:].contiguous())]
    found: dict[str, tuple[list[Any], dict[str, Callable[[Any], Update]]]] = {
        "gpt2": (
            text(50257, 32, 1024),
            {"glassformer": partial(ours, GPT2), "glassformer, fp8": partial(ours, GPT2, precision="fp8")},
        ),
        "base": (even, {"glassformer": partial(ours, BASE), "torch": partial(torch_transformer, is_padded=False)}),
        "llama": (
            text(VOCAB, 8, 2048),
            {
                "glassformer": partial(ours, LLAMA, gradient_checkpointing=True),
                "glassformer, fp8": partial(ours, LLAMA, gradient_checkpointing=True, precision="fp8"),
            },
        ),
    }
    if arguments.gpt_peer is not None:
        found["gpt2"][1]["plain GPT"] = partial(gpt_peer, arguments.gpt_peer)
    found["base"][1]["HF Marian"] = partial(marian, is_padded=False)
    found["llama"][1]["HF Llama"] = llama
    if arguments.pairs is not None:
        contenders = {"torch": partial(torch_transformer, is_padded=True), "HF Marian": partial(marian, is_padded=True)}
        found["pairs"] = read_pairs(*arguments.pairs), {"glassformer": partial(ours, BASE), **contenders}
    return found


def wait_for(file: Path) -> None:
    """Create FILE.ready, and wait until the file exists."""
    file.with_name(f"{file.name}.ready").touch()
    while not file.exists():
        time.sleep(0.1)


def main() -> None:
    """Measure all contenders of the chosen works, print the tables, and write the result file if --out is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=["gpt2", "base", "pairs", "llama"], action="append")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--updates", type=int, default=4, help="updates of a contender in each round")
    parser.add_argument("--warm-up", type=int, default=3, help="updates before the first round; for pairs, all batches")
    parser.add_argument("--only", action="append", help="measure only this contender; may be given several times")
    parser.add_argument("--gpt-peer", type=Path)
    parser.add_argument("--pairs", type=Path, nargs=2, metavar=("SOURCE", "TARGET"))
    parser.add_argument("--wait-for", type=Path, metavar="FILE", help="measure when this file exists")
    parser.add_argument("--out", type=Path, help="also write the seconds of every round to this new JSON file")
    arguments = parser.parse_args()
    if arguments.out is not None:
        check_new(arguments.out)
    if not torch.cuda.is_available():
        parser.error("no CUDA device was found: expected one")
    torch.set_float32_matmul_precision("high")
    rows: list[list[str | float]] = []
    for name, (batches, contenders) in works(arguments).items():
        if arguments.work and name not in arguments.work:
            continue
        on_device = [batch.to("cuda") for batch in batches]
        updates: dict[str, Update] = {}
        for label, make in contenders.items():
            if arguments.only and label not in arguments.only:
                continue
            began, before = time.perf_counter(), torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            updates[label] = make(batches if label.startswith("glassformer") else on_device)
            for number in range(len(batches) if name == "pairs" else arguments.warm_up):
                updates[label](number)
            torch.cuda.synchronize()
            peak = (torch.cuda.max_memory_allocated() - before) / 2**30
            print(f"{name}, {label}: ready after {time.perf_counter() - began:.0f} s, peak {peak:.1f} GiB", flush=True)
            torch.cuda.empty_cache()
        if arguments.wait_for is not None:
            wait_for(arguments.wait_for)
        seconds: dict[str, list[float]] = {label: [] for label in updates}
        tokens: list[int] = []
        for turn in range(arguments.rounds):
            numbers = range(turn * arguments.updates, (turn + 1) * arguments.updates)
            tokens.append(sum(batches[number % len(batches)].n_target_tokens for number in numbers))
            for label, update in updates.items():
                torch.cuda.synchronize()
                began = time.perf_counter()
                for number in numbers:
                    update(number)
                torch.cuda.synchronize()
                seconds[label].append(time.perf_counter() - began)
        print(f"\n| {name} | target tokens/s | ours is faster by |\n|---|---|---|")
        rates = {
            s: statistics.median(n / t for n, t in zip(tokens, taken, strict=True)) for s, taken in seconds.items()
        }
        for label, rate in rates.items():
            print(f"| {label} | {rate:,.0f} | {rates.get('glassformer', rate) / rate:.2f} |", flush=True)
            rows.append([name, label, rate, *seconds[label]])
    if arguments.out is not None:
        rounds = [f"round {number + 1}: seconds" for number in range(arguments.rounds)]
        columns = ["work", "trainer", "target tokens per second", *rounds]
        write_result(arguments.out, title="Training speed on a GPU", columns=columns, rows=rows)


if __name__ == "__main__":
    main()
