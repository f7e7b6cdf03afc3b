"""Compare the estimated memory of training with the measured one, and find the largest GPT that trains on a device.

    python benchmarks/train_memory.py --device cpu
    python benchmarks/train_memory.py --device cuda --largest --length 1024 --rows 1

Each shape is trained for a few updates in a separate process, without and with gradient checkpointing. A line has the
estimate that `glassformer train` prints, the measured peak, their ratio and the seconds of an update: by the clock and
of the processor, which other programs change less. With `--largest` the shapes of LADDER are tried, with gradient
checkpointing, until one does not fit into the memory.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHAPES = (
    {"n_layers": 2, "d_model": 128, "vocab_size": 8000, "rows": 8, "length": 128},
    {"n_layers": 6, "d_model": 128, "vocab_size": 1000, "rows": 16, "length": 128},
    {"n_layers": 6, "d_model": 256, "vocab_size": 1000, "rows": 16, "length": 128},
    {"n_layers": 4, "d_model": 512, "vocab_size": 16000, "rows": 2, "length": 256},
)
"""Shapes that are dominated by the logits, by activations and by the weights."""
LADDER = (
    (768, 12),
    (1600, 48),
    (2560, 32),
    (3072, 32),
    (3584, 32),
    (4096, 32),
    (4096, 36),
    (4096, 40),
    (4352, 38),
    (4608, 36),
    (4608, 40),
    (5120, 36),
    (5120, 40),
)
"""Width and number of layers of the GPTs that `--largest` tries, by rising number of parameters."""
UPDATES = 3


def measure(shape: dict[str, Any], device: str, precision: str, checkpointing: bool) -> dict[str, Any]:
    """Train a GPT of this shape on random tokens for a few updates, and return its estimated and measured memory."""
    import torch

    from glassformer.data.batching.packed_windows import PackedBatch
    from glassformer.models import build_model, preset
    from glassformer.models.costs import training_flops
    from glassformer.training.estimate import MemoryWatch, estimate_run
    from glassformer.training.fused_loss import token_loss
    from glassformer.training.train_config import TrainConfig
    from glassformer.training.trainer import Trainer

    rows, length, width = shape["rows"], shape["length"], shape["d_model"]
    config = preset(
        "gpt2",
        vocab_size=shape["vocab_size"],
        n_decoder_layers=shape["n_layers"],
        d_model=width,
        n_heads=width // 64,
        d_ff=4 * width,
        max_len=length,
    )
    with torch.device(device):
        model = build_model(config)
    model.set_gradient_checkpointing(checkpointing)

    class Batches:
        def __getitem__(self, number: int) -> PackedBatch:
            generator = torch.Generator().manual_seed(number)
            tokens = torch.randint(config.vocab_size, (rows, length + 1), generator=generator)
            return PackedBatch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), torch.empty(0).long())

    def loss_of(module: Any) -> Callable[[PackedBatch], Any]:
        return lambda batch: token_loss(module, lambda: module(batch.tokens), batch.targets, smoothing=0.0, ignore=-100)

    with tempfile.TemporaryDirectory() as work:
        trainer = Trainer(
            model=model,
            config=TrainConfig(
                updates=UPDATES,
                optimizer="adamw",
                eval_every=10**6,
                save_every=10**6,
                device=device,
                precision=precision,  # type: ignore[arg-type]
                gradient_checkpointing=checkpointing,
            ),
            batches=Batches(),
            loss=loss_of(model),
            loss_of=loss_of,
            evaluate=lambda: {"loss": 0.0},
            folder=Path(work),
        )
        estimate = estimate_run(trainer, lambda batch: training_flops(config, batch=rows, target_length=length))
        watch = MemoryWatch(trainer)
        began = time.process_time()
        for _ in range(UPDATES):
            trainer._update()
        processor_seconds = (time.process_time() - began) / UPDATES
        measured = watch.peak_bytes()
    return {
        "parameters": estimate.parameters,
        "estimated": estimate.peak_bytes,
        "for_training": estimate.memory_bytes,
        "measured": measured,
        "ratio": None if measured is None else round(estimate.peak_bytes / measured, 3),
        "seconds": round(trainer.state.seconds / UPDATES, 3),
        "processor_seconds": round(processor_seconds, 3),
    }


def in_own_process(shape: dict[str, Any], options: argparse.Namespace, checkpointing: bool) -> dict[str, Any] | None:
    """Return what `measure` returns, from a new process; None if the shape does not fit into the memory."""
    job = json.dumps([shape, options.device, options.precision, checkpointing])
    done = subprocess.run([sys.executable, __file__, "--job", job], capture_output=True, text=True, check=False)
    if done.returncode:
        if "out of memory" in done.stderr.lower() or done.returncode < 0:
            return None
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print one line of JSON per shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--largest", action="store_true")
    parser.add_argument("--least-width", type=int, default=0, help="skip narrower GPTs of the ladder")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(measure(*json.loads(options.job))))
        return
    if options.largest:
        for width, depth in (one for one in LADDER if one[0] >= options.least_width):
            shape = {"n_layers": depth, "d_model": width, "vocab_size": 50304, "rows": options.rows}
            shape["length"] = options.length
            found = in_own_process(shape, options, checkpointing=True)
            print(json.dumps({**shape, **(found or {"fits": False})}), flush=True)
            if found is None:
                return
    for shape in () if options.largest else SHAPES:
        for checkpointing in (False, True):
            found = in_own_process(shape, options, checkpointing)
            print(json.dumps({**shape, "checkpointing": checkpointing, **(found or {"fits": False})}), flush=True)


if __name__ == "__main__":
    main()
