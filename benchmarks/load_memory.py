"""Measure the peak memory of `glassformer.load` with generated models, in each number format.

    python benchmarks/load_memory.py benchmarks/results/load-memory.json
    python tools/results_page.py

The first command writes a new result file; the second writes its table into docs/pretrained.md. Each model is loaded in
a process of its own. The peak is the growth of that process's resident memory during `load`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from glassformer.bench.result_file import check_new, markdown_table, write_result
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.models import DecoderModel, ModelConfig, build_model, preset
from glassformer.pipelines.language_model import LanguageModel
from glassformer.runtime.prepare_model import weight_bytes
from glassformer.text import Tokenizer

Numbers = Literal["float32", "bfloat16", "int8"]
NUMBERS: tuple[Numbers, ...] = ("float32", "bfloat16", "int8")
COLUMNS = ["stored as", "loaded as", "file, MB", "model, MB", "peak, MB", "peak / larger of file and model"]
CHILD = """
import json, sys
from glassformer.pipelines.load import load
from glassformer.base.freed_memory import give_back_freed
from glassformer.training.resident_memory import forget_peak, peak_resident, resident
path, tiny, numbers = sys.argv[1:]
options = {"quantize": "int8"} if numbers == "int8" else {"dtype": numbers}
load(tiny, device="cpu", **options)
give_back_freed()
forget_peak()
before = resident()
pipeline = load(path, device="cpu", **options)
print(json.dumps({"peak": peak_resident() - before, "compiler": "torch._dynamo" in sys.modules}))
"""
"""The program that loads a model and prints the growth of its peak memory in bytes, and if torch's compiler is loaded.

It loads a tiny model first, so that libraries and kernels that are imported on first use do not count.
"""


class LoadMemory(NamedTuple):
    """The memory of one `load` in bytes."""

    file: int
    model: int
    """Size of the loaded model's parameters."""
    peak: int
    """Growth of the process's resident memory, at most."""
    imports_compiler: bool
    """Whether the process has imported torch's compiler, which takes seconds and 80 MB."""

    @property
    def ratio(self) -> float:
        """The peak divided by the larger of the file and the model."""
        return self.peak / max(self.file, self.model)


def gpt2_config(megabytes: int) -> ModelConfig:
    """Return the config of a GPT-2 with about this many megabytes in float32, a sixth of them in its embeddings."""
    width = 768 if megabytes >= 100 else 384
    layer = 12 * width * width * 4 / 1e6
    n_layers = round(megabytes * 5 / 6 / layer)
    vocabulary = round(megabytes / 6 * 1e6 / 4 / width)
    return preset(
        "gpt2", vocab_size=vocabulary, n_decoder_layers=n_layers, d_model=width, d_ff=4 * width, n_heads=width // 64
    )


def save_generated(folder: Path, config: ModelConfig, dtype: torch.dtype = torch.float32, *, as_hf: bool) -> int:
    """Write a language model with random weights, as a Glassformer or HF folder, and return the size of its weights."""
    model = build_model(config).to(dtype).eval()
    assert isinstance(model, DecoderModel)
    tokenizer = Tokenizer.train(["a generated model"], 300)
    if as_hf:
        save_hf_folder(folder, model, texts={"tokenizer.json": tokenizer.to_json()})
    else:
        LanguageModel(model, tokenizer).save(folder, "A generated model.")
    return (folder / "model.safetensors").stat().st_size


def measure_load(folder: Path, tiny: Path, config: ModelConfig, numbers: Numbers) -> LoadMemory:
    """Load a model in another process and return its memory. `numbers` is the number format to load it in.

    `tiny` is another model folder of the same format, which the process loads first.
    """
    # With one thread, the memory of other threads' allocators is not part of the measurement.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHILD, str(folder), str(tiny), numbers]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    size = (folder / "model.safetensors").stat().st_size
    found = json.loads(done.stdout)
    is_int8 = numbers == "int8"
    dtype = torch.bfloat16 if numbers == "bfloat16" else torch.float32
    kept = weight_bytes(config, dtype, "int8" if is_int8 else "none")
    return LoadMemory(size, kept, found["peak"], found["compiler"])


def main() -> None:
    """Measure every combination and write the result file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="new file of results")
    parser.add_argument("--megabytes", type=int, default=300, help="size of the model in float32")
    given = parser.parse_args()
    check_new(given.out)
    config = gpt2_config(given.megabytes)
    rows: list[list[str | float]] = []
    with tempfile.TemporaryDirectory() as work:
        for stored, dtype in (("Glassformer, float32", torch.float32), ("HF, bfloat16", torch.bfloat16)):
            folder, tiny = (Path(work) / f"{stored} {size}" for size in ("large", "tiny"))
            for path, shape in ((folder, config), (tiny, preset("tiny-gpt2"))):
                save_generated(path, shape, dtype, as_hf=stored.startswith("HF"))
            for numbers in NUMBERS:
                found = measure_load(folder, tiny, config, numbers)
                sizes = [f"{size / 1e6:.0f}" for size in (found.file, found.model, found.peak)]
                rows.append([stored, numbers, *sizes, f"{found.ratio:.2f}"])
                print(*rows[-1], sep="\t", flush=True)
    write_result(given.out, title="Peak memory of load", columns=COLUMNS, rows=rows)
    print(markdown_table(COLUMNS, rows))


if __name__ == "__main__":
    main()
