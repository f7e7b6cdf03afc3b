"""Measure the decoding speed of engines: Glassformer and other libraries, each in one number format.

Glassformer is measured through `load` and the call that `glassformer run` makes, and as the command itself.
A round runs every engine once. Rounds are repeated, so that noise of the machine affects all engines.
"""

import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from glassformer.bench import peers
from glassformer.bench.workloads import Workload, Write, tokens_of
from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.pipelines.load import load
from glassformer.runtime.step_runner import TextModel
from glassformer.training.resident_memory import forget_peak, peak_resident

Numbers = Literal["float32", "bfloat16", "float16", "int8", "int4"]
BYTES: dict[Numbers, float] = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "int4": 0.5}
FloatType = Literal["auto", "float32", "bfloat16", "float16"]
Quantized = Literal["auto", "none", "int8", "int4"]


@dataclass(frozen=True)
class LoadOptions:
    """How Glassformer loads the model, by the options of `glassformer run`; `auto` measures the usual choices."""

    dtype: FloatType = "auto"
    quantize: Quantized = "auto"
    batch_tokens: int | None = None

    def formats(self, device: str) -> dict[Numbers, dict[str, str]]:
        """Return the options of `load` for each number format to measure, by its name. The first is the reference."""
        floats: Numbers = ("bfloat16" if device == "cuda" else "float32") if self.dtype == "auto" else self.dtype
        options: dict[str, str] = {} if floats == "float32" else {"dtype": floats}
        if self.quantize == "int8" or self.quantize == "int4":
            return {self.quantize: {"quantize": self.quantize, **({} if self.dtype == "auto" else options)}}
        found = {floats: options}
        if self.quantize == "auto" and self.dtype == "auto" and device == "cpu":
            found["int8"] = {"quantize": "int8"}
            if torch.cpu._is_amx_tile_supported():
                found["bfloat16"] = {"dtype": "bfloat16"}
        return found


@dataclass
class Contender:
    """An engine (a library in one configuration and number format) and its measurements."""

    name: str
    numbers: Numbers
    write: Write
    """Runs the engine once."""
    weights: int
    """Size of the engine's parameters in bytes."""
    in_this_process: bool = True
    """Whether the engine runs in this process. The memory of another process is not measured."""
    memory: int = 0
    """Peak memory in bytes, weights included. On a CPU, the growth of the process if the system reports it."""
    texts: list[list[int]] = field(default_factory=list)
    """The tokens generated for each input, from the first warm-up run."""
    seconds: list[float] = field(default_factory=list)
    """The time of each round."""

    @property
    def title(self) -> str:
        """The engine's name and number format."""
        return f"{self.name}, {self.numbers}"

    @property
    def is_ours(self) -> bool:
        """Whether this engine is Glassformer."""
        return self.name.startswith("glassformer")


@dataclass(frozen=True)
class MachineLimits:
    """The machine's measured rates of matrix products and memory copies, which bound the speed of an engine."""

    flops: dict[Numbers, float]
    """FLOP/s of a 2048 x 2048 x 2048 matrix product, by number format."""
    bandwidth: float
    """Memory bandwidth of a copy in bytes per second, counting reads and writes."""


def measure(
    work: Workload,
    *,
    batch: int,
    beam: int,
    rounds: int,
    device: str,
    compiled: bool,
    only: Sequence[str] = (),
    options: LoadOptions = LoadOptions(),  # noqa: B008 - it is frozen
) -> list[Contender]:
    """Return the engines that are installed, each with its time in `rounds` rounds.

    Args:
        work: The model, and the lengths of inputs and outputs.
        batch: The number of inputs.
        beam: The width of beam search; 1 is greedy search.
        device: "cuda" or "cpu".
        compiled: Whether to measure the compiled variants of engines, too.
        only: Measure only engines whose title contains one of these strings. A string that matches none raises.
        options: The number formats of Glassformer and the size of its batches. Other libraries ignore them.
    """
    with tempfile.TemporaryDirectory() as folder:
        contenders, titles = [], []
        for one in _contenders(work, batch, beam, device, compiled, folder, options):
            titles.append(one.title)
            if not only or any(part in one.title for part in only):
                contenders.append(one)
        for part in only:
            if not any(part in title for title in titles):
                known = "; ".join(titles)
                raise ValueError(f"--only {part!r} matches no engine: expected a part of one of these names: {known}")
        for contender in contenders:
            _warm_up(contender, device)
        for _ in range(rounds):
            for contender in contenders:
                if device == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
                contender.write()
                if device == "cuda":
                    torch.cuda.synchronize()
                contender.seconds.append(time.perf_counter() - began)
    return contenders


def _warm_up(contender: Contender, device: str) -> None:
    """Run an engine before it is timed, twice in this process; set its `texts` and `memory`.

    The first run allocates and compiles.
    """
    if not contender.in_this_process:
        contender.texts = tokens_of(contender.write())
        return
    if device != "cuda":
        forget_peak()
        before = peak_resident()
        contender.texts = tokens_of(contender.write())
        contender.write()
        peak = peak_resident()
        contender.memory = 0 if before is None or peak is None else contender.weights + peak - before
        return
    before = torch.cuda.memory_allocated()
    contender.texts = tokens_of(contender.write())
    between = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    contender.write()
    used = torch.cuda.max_memory_allocated() - between
    contender.memory = contender.weights + (between - before) + used


def _size(model: torch.nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def _contenders(
    work: Workload, batch: int, beam: int, device: str, compiled: bool, folder: str, options: LoadOptions
) -> Iterator[Contender]:
    model, inputs = work.model(), work.inputs(batch)
    size = _size(model)
    saved = Path(folder) / "model"
    work.save(saved, model)
    if work.is_ragged:
        yield from _with_engine(work, model, inputs, beam, device, saved, options)
        return
    theirs = peers.hf_model(work, model) if peers.is_installed("transformers") else None

    def ours(name: str, numbers: Numbers, **chosen: str) -> Contender:
        pipeline: Any = load(saved, device=device, batch_tokens=options.batch_tokens, **chosen)  # type: ignore[arg-type]
        return Contender(name, numbers, work.ours(pipeline, inputs, beam), int(size * BYTES[numbers] / 4))

    def as_command(numbers: Numbers, chosen: dict[str, str]) -> Contender:
        flags = ["--device", device, "--threads", str(torch.get_num_threads())]
        if options.batch_tokens is not None:
            flags += ["--batch-tokens", str(options.batch_tokens)]
        for name, value in chosen.items():
            flags += [f"--{name}", value]
        write = work.as_command(saved, inputs, beam, flags)
        title = "glassformer run, process start included"
        return Contender(title, numbers, write, int(size * BYTES[numbers] / 4), in_this_process=False)

    formats = options.formats(device)
    main = "int8" if "int8" in formats else next(iter(formats))  # the one that is also compiled and run as a command
    for numbers, chosen in formats.items():
        try:
            yield ours("glassformer", numbers, **chosen)
            if numbers == main and compiled:
                yield ours("glassformer, compiled", numbers, **chosen, compile="on")
            if numbers == main:
                yield as_command(numbers, chosen)
        except KernelBuildError:
            if len(formats) == 1:
                raise
            yield as_command("float32", formats["float32"])
    if device == "cuda":
        if theirs is not None:
            theirs = theirs.to(device, torch.bfloat16)
            yield Contender("HF", "bfloat16", peers.hf(work, theirs, inputs, beam), _size(theirs))
            if compiled and work.begin is None and beam == 1:
                still = copy.deepcopy(theirs)
                write = peers.hf(work, still, inputs, beam, compiled=True)
                yield Contender("HF, static cache, compiled", "bfloat16", write, _size(still))
        return
    if work.family == "llama" and batch == beam == 1 and all(map(peers.is_installed, ("llama_cpp", "gguf"))):
        yield Contender("llama.cpp, Q8_0", "int8", peers.llama_cpp(work, model, inputs, folder), size // 4)
    if theirs is not None:
        yield Contender("HF", "float32", peers.hf(work, theirs, inputs, beam), size)
        if torch.cpu._is_amx_tile_supported():
            write = peers.hf(work, copy.deepcopy(theirs).bfloat16(), inputs, beam)
            yield Contender("HF", "bfloat16", write, size // 2)
        if work.begin is not None and peers.is_installed("ctranslate2"):
            converted = Path(folder) / "ctranslate2"
            converted.mkdir()
            known: tuple[Numbers, ...] = ("float32", "int8")
            for numbers in known:
                write = peers.ctranslate2(work, theirs, inputs, beam, numbers, str(converted))
                yield Contender("CTranslate2", numbers, write, int(size * BYTES[numbers] / 4))
                if batch > 1 and torch.get_num_threads() > 1:
                    write = peers.ctranslate2(
                        work, theirs, inputs, beam, numbers, str(converted), batch_per_thread=True
                    )
                    title = "CTranslate2, a batch per thread"
                    yield Contender(title, numbers, write, int(size * BYTES[numbers] / 4))


def _with_engine(
    work: Workload,
    model: TextModel,
    inputs: list[list[int]],
    beam: int,
    device: str,
    saved: Path,
    options: LoadOptions,
) -> Iterator[Contender]:
    """Yield one sorted batch of all inputs and, without a beam, the batching engine with one request for each.

    The weights of `model` are in the folder `saved`.
    """
    batch_tokens = options.batch_tokens or work.n_read * len(inputs) * beam
    for numbers, chosen in options.formats(device).items():
        with suppress(KernelBuildError):
            pipeline: Any = load(saved, device=device, batch_tokens=batch_tokens, **chosen)  # type: ignore[arg-type]
            weights = int(_size(model) * BYTES[numbers] / 4)
            yield Contender("glassformer", numbers, work.ours(pipeline, inputs, beam), weights)
            if beam == 1:
                write = work.by_engine(pipeline.model, inputs)
                yield Contender("glassformer, batching engine", numbers, write, weights)


def limits(device: str) -> MachineLimits:
    """Measure the rates of matrix products and memory copies on a device, each as the best of nine runs."""
    kinds: dict[Numbers, torch.dtype] = {"float32": torch.float32}
    if device == "cuda" or torch.cpu._is_amx_tile_supported():
        kinds["bfloat16"] = torch.bfloat16
    flops: dict[Numbers, float] = {}
    for name, dtype in kinds.items():
        size = 8192 if device == "cuda" else 2048  # a smaller product does not keep a GPU busy
        a, b = torch.randn(2, size, size, device=device).to(dtype)
        flops[name] = 2 * size**3 / _fastest(lambda a=a, b=b: a @ b, device)  # type: ignore[misc]
    source = torch.zeros(2**28 if device == "cuda" else 2**26, device=device)
    target = torch.empty_like(source)
    return MachineLimits(flops, 2 * source.nbytes / _fastest(lambda: target.copy_(source), device))


def _fastest(step: Callable[[], object], device: str) -> float:
    seconds = []
    for _ in range(9):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def table(work: Workload, contenders: list[Contender], found: MachineLimits, *, batch: int, beam: int) -> str:
    """Return the measurements of `measure` as a Markdown table with one line per engine.

    Its columns are median time, tokens per second, speed as a share of the machine's limit (`found`), the share of
    tokens that equal those of the first engine, and memory. A list below compares Glassformer's fastest engine with
    each engine of another library: how many times as fast it is.
    """
    right = contenders[0].texts
    lines = [
        f"{work.name}, batch {batch}, {'greedy' if beam == 1 else f'beam {beam}'}: {_n_read(work)} tokens read, "
        f"{work.n_written} written; {work.flops(batch, beam) / 1e9:,.0f} GFLOP. Matrix products at "
        + ", ".join(f"{rate / 1e9:,.0f} GFLOP/s in {name}" for name, rate in found.flops.items())
        + f"; memory at {found.bandwidth / 1e9:,.0f} GB/s.",
        "",
        "| engine | numbers | ms | tokens/s | share of the machine's limit | tokens as the first | memory, MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for contender in contenders:
        seconds = statistics.median(contender.seconds)
        pairs = [pair for one, two in zip(contender.texts, right, strict=True) for pair in zip(one, two, strict=False)]
        same = sum(a == b for a, b in pairs) / max(len(pairs), 1)
        cells = [contender.name, contender.numbers, f"{seconds * 1e3:,.0f}", f"{batch * work.n_written / seconds:,.0f}"]
        cells += [f"{_least_seconds(work, contender, found, batch, beam) / seconds:.0%}", f"{same:.1%}"]
        cells += [f"{contender.memory / 1e6:,.0f}" if contender.memory else ""]
        lines.append(f"| {' | '.join(cells)} |")
    ours = [contender for contender in contenders if contender.is_ours]
    others = [contender for contender in contenders if not contender.is_ours]
    if ours and others:
        fastest = min(ours, key=lambda contender: statistics.median(contender.seconds))
        lines += ["", f"The fastest of ours ({fastest.title}) against:"]
        for other in others:
            ratio = statistics.median(other.seconds) / statistics.median(fastest.seconds)
            lines.append(f"- {other.name} in {other.numbers}: {ratio:.2f} times as fast")
    return "\n".join(lines)


def _n_read(work: Workload) -> str:
    return f"{work.n_read_least} to {work.n_read}" if work.is_ragged else str(work.n_read)


def _least_seconds(work: Workload, contender: Contender, found: MachineLimits, batch: int, beam: int) -> float:
    """Return the roofline bound of one run in seconds: the larger of compute time and memory time at the rates `found`.

    int8 and int4 products count at four times the float32 rate: both multiply 8-bit numbers, a quarter as wide. float16
    counts as bfloat16 if that was measured.
    """
    rate = 4 * found.flops["float32"]
    if contender.numbers not in ("int8", "int4"):
        rate = found.flops.get(contender.numbers) or found.flops.get("bfloat16", found.flops["float32"])
    moved = work.bytes_moved(batch, beam, BYTES[contender.numbers])
    return max(work.flops(batch, beam) / rate, moved / found.bandwidth)
