"""Measure training with several processes, and FSDP2 on one GPU.

    python benchmarks/many_devices.py cpu [--rounds 3]     2 processes on 2 cores against 1 process on 1 core
    python benchmarks/many_devices.py gpu [--tiny]         FSDP2 of one process against plain training, both compiled
    python benchmarks/many_devices.py offload [--tiny]     a Llama of 3 billion parameters, with and without offload
    python benchmarks/many_devices.py load                 memory of 2 processes that load and shard a model

A measurement makes updates of the `Trainer`, as `glassformer train` does, on random tokens. On a CPU the fastest update
counts, because other programs disturb the slower ones; on a GPU the median. `--tiny` tries the program on any machine.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from glassformer.checkpoint import load_model
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.checkpoint.model_folder import fill_parameters
from glassformer.checkpoint.unread_weights import reading_later
from glassformer.data.batching.labeled_batches import IGNORED
from glassformer.data.batching.packed_windows import PackedBatch
from glassformer.models import ModelConfig, build_model, preset
from glassformer.models.factory import build_on_meta
from glassformer.pipelines.load import load
from glassformer.text import Tokenizer, TokenizerConfig
from glassformer.training.fused_loss import token_loss
from glassformer.training.parallel import Parallel
from glassformer.training.processes import Processes, joined
from glassformer.training.resident_memory import resident
from glassformer.training.train_config import TrainConfig
from glassformer.training.trainer import Trainer

TRAIN = TrainConfig(
    lr=1e-4, schedule="constant", warmup=0, optimizer="adamw", threads=1, device="cpu", precision="fp32"
)


@dataclass(frozen=True)
class Windows:
    """Training data with one batch of random windows."""

    batch: PackedBatch

    def __getitem__(self, number: int) -> PackedBatch:
        """Return the batch, whatever its number."""
        return self.batch


def make_trainer(shape: ModelConfig, train: TrainConfig, rows: int, length: int, parallel: Parallel) -> Trainer[Any]:
    """Return the trainer of a new language model with one batch of `rows` windows."""
    model = build_on_meta(shape)
    noise = torch.randn(2**20, generator=torch.Generator().manual_seed(0)) * 0.02

    def values(size: torch.Size) -> torch.Tensor:  # drawing billions of random numbers would take minutes
        return noise.repeat(-(-size.numel() // len(noise)))[: size.numel()].view(size)

    # Unlike `to_empty`, this leaves tied parameters tied.
    named = list(model.named_parameters())
    fill_parameters(model, ((name, values(parameter.shape)) for name, parameter in named), torch.float32)
    model.set_gradient_checkpointing(train.gradient_checkpointing)
    tokens = torch.randint(0, shape.vocab_size, (rows, length + 1), generator=torch.Generator().manual_seed(0))
    batch = PackedBatch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), torch.empty(0, dtype=torch.long))

    def loss(module: Any, part: PackedBatch) -> torch.Tensor:
        return token_loss(module, lambda: module(part.tokens), part.targets, smoothing=0.0, ignore=IGNORED)

    return Trainer(
        model=model,
        config=train,
        batches=Windows(batch),
        loss=partial(loss, model),
        loss_of=lambda module: partial(loss, module),
        evaluate=dict,
        folder=Path("unused: no checkpoint is written"),
        parallel=parallel,
    )


def seconds_of(trainer: Trainer[Any], updates: int, *, apart: bool = False) -> list[float]:
    """Return the seconds of each of some updates. In training, one is started before the numbers of the last are read.

    With `apart` each one waits for a GPU to end the last one.
    """
    found = []
    for _ in range(updates):
        began = time.perf_counter()
        trainer._update()
        if apart and trainer.device.type == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return found


def measure_cpu(rounds: int) -> None:
    """Print the speed of two processes on two cores, relative to one process on one core, for the same batch."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    one: list[list[float]] = []
    two: list[list[float]] = []
    for _ in range(rounds):  # in turn, so that noise affects both
        for found, command, places in ((one, [sys.executable], cores[:1]), (two, torchrun, cores)):
            pinned = ["taskset", "-c", ",".join(map(str, places)), *command, __file__, "cpu-worker"]
            result = subprocess.run(pinned, env=environment, capture_output=True, text=True, check=True)
            found.append(json.loads(result.stdout.splitlines()[-1]))
    for kind, name in enumerate(("fastest update", "processor time")):
        before, now = min(times[kind] for times in one), min(times[kind] for times in two)
        print(f"{name}: 1 process {before:.1f} ms, 2 processes {now:.1f} ms each, ratio {before / now:.2f}")


def cpu_worker() -> None:
    """Make some updates in this process, or in those that torchrun started, and print two times in milliseconds.

    They are the wall time of the fastest update, and the mean processor time of an update in the busiest process. The
    latter hardly depends on other programs, but leaves out what the processes wait for each other.
    """
    torch.set_num_threads(1)
    shape = preset("llama", vocab_size=8000, d_model=256, n_heads=4, n_kv_heads=4, d_ff=704, n_decoder_layers=6)
    with joined("cpu") as processes:
        if processes.size > 1:  # each on a core
            os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[processes.rank]})
        trainer = make_trainer(shape, TRAIN, 16, 128, Parallel(TRAIN, processes))
        seconds_of(trainer, 2)
        began = time.process_time()
        seconds = seconds_of(trainer, 10)
        busy = max(processes.gather(time.process_time() - began)) / len(seconds)
        if processes.is_leader:
            print(json.dumps([1e3 * min(seconds), 1e3 * busy]))


def measure_gpu(tiny: bool) -> None:
    """Print the time of an update by FSDP2 of one process, relative to training without it; layers are compiled."""
    size: dict[str, Any] = {"d_model": 1536, "n_heads": 12, "n_kv_heads": 12, "d_ff": 4096, "n_decoder_layers": 16}
    size |= {"vocab_size": 32000}
    if tiny:
        size |= {"d_model": 64, "n_heads": 4, "n_kv_heads": 4, "d_ff": 128, "n_decoder_layers": 2, "vocab_size": 500}
    train = replace(TRAIN, device="cpu" if tiny else "cuda", precision="bf16", compile="on", threads=0)
    medians = {}
    for layout in ("", "shard=1"):
        config = replace(train, parallel=layout)
        with joined(config.device, is_needed=bool(layout)) as processes:
            rows, length = (2, 32) if tiny else (8, 2048)
            trainer = make_trainer(preset("llama", **size), config, rows, length, Parallel(config, processes))
            trainer.setup.set_compiled(True)
            trainer.gradients = trainer.setup.gradients()
            seconds_of(trainer, 3)
            count = 3 if tiny else 30
            seconds, waiting = seconds_of(trainer, count), seconds_of(trainer, count, apart=True)
        medians[layout] = statistics.median(seconds), statistics.median(waiting)
        one, other = (1e3 * median for median in medians[layout])
        print(f"{layout or 'plain':8} {one:7.1f} ms an update, {spread(seconds)}; apart {other:.1f}", flush=True)
        del trainer
        torch._dynamo.reset()
    ratios = [after / before for before, after in zip(medians[""], medians["shard=1"], strict=True)]
    print(f"FSDP2 takes {ratios[0]:.3f} times as long, and {ratios[1]:.3f} times if each update waits for the last one")


def spread(seconds: list[float]) -> str:
    """Return the middle half of some durations in words."""
    low, _, high = statistics.quantiles(seconds, n=4)
    return f"half of them between {1e3 * low:.1f} and {1e3 * high:.1f}"


def measure_offload(tiny: bool) -> None:
    """Print peak memory and time of an update of a large model, with the parameters on the GPU and on the CPU.

    Each runs in a new process, because memory that the first leaves behind would count for the second.
    """
    peaks = []
    for kind in ("on-gpu", "offload"):
        command = [sys.executable, __file__, "offload-worker", "--kind", kind, *["--tiny"] * tiny]
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        *told, peak = result.stdout.splitlines()
        print(*told, sep="\n", flush=True)
        peaks.append(int(peak))
    print(f"peak with offload: {peaks[1] / peaks[0]:.1%} of that without")


def offload_worker(kind: str, tiny: bool) -> None:
    """Make some updates of a large model in this process; print a line about them, and the peak memory in bytes."""
    size: dict[str, Any] = {"d_model": 3072, "n_heads": 24, "n_kv_heads": 8, "d_ff": 8192, "n_decoder_layers": 28}
    size |= {"vocab_size": 32000}
    if tiny:
        size |= {"d_model": 64, "n_heads": 4, "n_kv_heads": 4, "d_ff": 128, "n_decoder_layers": 2, "vocab_size": 500}
    config = replace(TRAIN, device="cpu" if tiny else "cuda", precision="bf16", parallel="shard=1", threads=0)
    config = replace(config, offload=kind == "offload" and not tiny, gradient_checkpointing=True)
    with joined(config.device, is_needed=True) as processes:
        rows, length = (2, 32) if tiny else (2, 2048)
        trainer = make_trainer(preset("llama", **size), config, rows, length, Parallel(config, processes))
        parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
        if not tiny:
            torch.cuda.reset_peak_memory_stats()
        losses: list[float] = []
        trainer.on_update = lambda update: losses.append(update.loss)
        seconds = seconds_of(trainer, 3, apart=True)
        peak = 1 if tiny else torch.cuda.max_memory_allocated()
    print(
        f"{kind:7} {parameters / 1e9:.2f} billion parameters, peak {peak / 2**30:5.1f} GiB, "
        f"{seconds[-1]:.2f} s an update, losses {losses[0]:.3f} to {losses[-1]:.3f}\n{peak}"
    )


def measure_load() -> None:
    """Print how much memory each of two processes takes at most to load its part: for use, and for training."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Tokenizer.train(["what color is it? it is red. the old cat"], 300, TokenizerConfig())
        size = {"d_model": 1024, "n_heads": 8, "n_kv_heads": 8, "d_ff": 2816, "n_decoder_layers": 8}
        model = build_model(preset("llama", vocab_size=tokenizer.vocab_size, max_len=64, **size))
        save_hf_folder(Path(folder) / "model", model, texts={"tokenizer.json": tokenizer.to_json()})
        print(f"model of {sum(parameter.nbytes for parameter in model.parameters()) / 1e6:.0f} MB in float32")
        del model
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        for what in ("load-worker", "shard-worker"):
            command = [*torchrun, __file__, what, "--folder", str(Path(folder) / "model")]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            print(result.stdout.strip())


def load_worker(folder: Path) -> None:
    """Load a divided model, and print how far the memory of this process rose, and what it has afterwards."""
    with joined("cpu") as processes:
        before = settled_memory()
        pipeline = load(folder, device="cpu", parallel=f"tensor={processes.size}")
        print_memory("load", processes, before)
        assert pipeline.model.config.n_heads == 8 // processes.size


def shard_worker(folder: Path) -> None:
    """Read this process's shards of a model, as `train --from` does, and print how far its memory rose."""
    with joined("cpu") as processes:
        before = settled_memory()
        config = replace(TRAIN, parallel=f"shard={processes.size}")
        parallel = Parallel(config, processes)
        with reading_later():
            model = load_model(folder)
        trained = parallel.apply(model, torch.device("cpu"))
        parallel.wrap(trained, lambda batch: torch.zeros(()), config, "fp32", None)
        print_memory("shard", processes, before)


def settled_memory() -> int:
    """Return the resident memory of this process, after the modules that the workers need were imported."""
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel  # noqa: F401

    return resident() or 0


def print_memory(what: str, processes: Processes, before: int) -> None:
    """Print the growth of resident memory of all processes since it was `before`, in MB: at most, and now."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = processes.gather((peak - before, settled_memory() - before))
    if processes.is_leader:
        told = ", ".join(f"at most {most / 1e6:.0f} MB, then {now / 1e6:.0f} MB" for most, now in found)
        print(f"{what}: {told}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ("cpu", "cpu-worker", "gpu", "offload", "offload-worker", "load", "load-worker", "shard-worker")
    parser.add_argument("what", choices=kinds)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--kind", choices=("on-gpu", "offload"), default="on-gpu", help="of offload-worker")
    parser.add_argument("--folder", type=Path, help="of load-worker and shard-worker")
    options = parser.parse_args()
    if options.what == "cpu":
        measure_cpu(options.rounds)
    elif options.what == "cpu-worker":
        cpu_worker()
    elif options.what == "load":
        measure_load()
    elif options.what == "load-worker":
        load_worker(options.folder)
    elif options.what == "shard-worker":
        shard_worker(options.folder)
    elif options.what == "gpu":
        measure_gpu(options.tiny)
    elif options.what == "offload":
        measure_offload(options.tiny)
    else:
        offload_worker(options.kind, options.tiny)
