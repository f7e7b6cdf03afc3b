"""`glassformer plan`: predict memory, speed and duration of a training run on many GPUs. Only HF configs need torch."""

import json as json_module
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from glassformer.base.names import suggestion
from glassformer.base.plurals import counted
from glassformer.cli.flag_parser import UsageError
from glassformer.models.cluster_plan import ASSUMPTIONS, MACHINES, ClusterPlan, Machine, plan_cluster, predict_update
from glassformer.models.config import ModelConfig
from glassformer.models.costs import count_parameters
from glassformer.models.training_costs import CONTEXT_BYTES, StepShape, validation_bytes

MAX_DEVICES = 1024
SHOWN = 5
"""Number of layouts that are printed."""


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """The machine."""

    gpu: Literal["h200", "h100", "a100"] = "h200"
    """Kind of GPU; the other options change its numbers."""
    devices: int = 8
    """Number of GPUs, up to 1,024."""
    per_node: int | None = None
    """GPUs in one machine. (default: 8)"""
    memory: float | None = None
    """Memory of a GPU in GB. (default: that of --gpu, as for the options below)"""
    tflops: float | None = None
    """Peak of dense bf16 products of a GPU in TFLOP/s."""
    bandwidth: float | None = None
    """Bandwidth of a GPU's memory in TB/s."""
    link: float | None = None
    """Bandwidth between the GPUs of a machine, per GPU and direction, in GB/s."""
    network: float | None = None
    """Bandwidth between machines, per GPU and direction, in GB/s."""

    def machine(self) -> Machine:
        """Return the kind of GPU with the numbers that were given."""
        given = {
            "per_node": (self.per_node, 1),
            "memory": (self.memory, 1e9),
            "peak_flops": (self.tflops, 1e12),
            "bandwidth": (self.bandwidth, 1e12),
            "link": (self.link, 1e9),
            "network": (self.network, 1e9),
        }
        if not 1 <= self.devices <= MAX_DEVICES:
            raise UsageError(f"--devices {self.devices}: expected 1 to {MAX_DEVICES:,}")
        for name, (value, _) in given.items():
            if value is not None and not 0 < value < float("inf"):
                raise UsageError(f"--{name.replace('_', '-')} {value}: expected a number above 0")
        changes: dict[str, Any] = {name: value * unit for name, (value, unit) in given.items() if value is not None}
        return replace(MACHINES[self.gpu], **changes)


def plan(
    model: str = "",
    *,
    tokens: float = 0.0,
    length: int = 0,
    batch_tokens: int = 1 << 20,
    machine: MachineOptions = MachineOptions(),  # noqa: B008
    json: bool = False,
    check: Path | None = None,
) -> None:
    """Predict memory per GPU, step time, tokens per second and days of a training run, and recommend a layout.

    The predictions are formulas (bf16, AdamW); the assumptions are printed with them. Nothing is computed on a GPU.

    Args:
        model: A preset, such as llama or gpt2, a model folder, or a config.json of Glassformer or Hugging Face.
        tokens: Number of tokens to train on, such as 300e9. Without it, no number of days is predicted.
        length: Tokens per sequence, of source and target each. (default: the model's maximum length, at most 2048)
        batch_tokens: Tokens of an update on all GPUs together.
        json: Print the layouts as JSON.
        check: Compare predictions with the measured runs in this file, such as benchmarks/measured_runs.json, instead.
    """
    if check is not None:
        print(check_runs(check))
        return
    if not model:
        raise UsageError("MODEL is missing: expected a preset, a model folder or a config.json, or --check FILE")
    config = read_config(model)
    length = length or min(config.max_len or 2048, 2048)
    if length < 1 or batch_tokens < length:
        raise UsageError(
            f"--batch-tokens {batch_tokens} and --length {length}: expected at least one sequence per update"
        )
    if tokens < 0:
        raise UsageError(f"--tokens {tokens:g}: expected 0 or more")
    described, rows = machine.machine(), batch_tokens // length
    found = plan_cluster(
        config,
        described,
        devices=machine.devices,
        rows=rows,
        source_length=length if config.n_encoder_layers else 0,
        target_length=length if config.n_decoder_layers else 0,
    )
    best: dict[str, ClusterPlan] = {}
    for one in found:  # sorted; other plans of a layout differ in steps and checkpointing
        best.setdefault(one.parallel, one)
    found = list(best.values())[:SHOWN]
    note = _validation_note(config, described, found[0])
    if json:
        records = [{**one._asdict(), "memory": one.memory._asdict(), "parallel": one.parallel} for one in found]
        notes = [note] * bool(note)
        print(json_module.dumps({"plans": records, "notes": notes, "assumptions": ASSUMPTIONS}, indent=2))
        return
    nodes = -(-machine.devices // described.per_node)
    print(
        f"{count_parameters(config):,} parameters, {rows:,} x {length:,} tokens per update, {machine.devices:,} x "
        f"{described.name} in {counted(nodes, 'machines')}\n"
    )
    print(_table(found, tokens))
    print(f"\nrecommended: {_options(found[0], rows * length)}")
    if note:
        print(note)
    print("\nAssumptions:\n" + "\n".join(f"- {one}" for one in ASSUMPTIONS))


def _options(best: ClusterPlan, batch_tokens: int) -> str:
    """Return the options of `train` for a layout. `--max-tokens` are those of one batch, of which an update has several
    if `--accumulate` says so."""
    tokens = f" --max-tokens {batch_tokens // best.train_accumulate}"
    more = f" --accumulate {best.train_accumulate}" * (best.accumulate > 1)
    return f"--parallel {best.parallel}{tokens}{more}" + " --gradient-checkpointing" * best.checkpointing


def _validation_note(config: ModelConfig, machine: Machine, best: ClusterPlan) -> str:
    """Return a sentence if the whole model, which a validation puts together on each GPU, does not fit; else ""."""
    parameters, parts = count_parameters(config), best.shard * best.tensor
    needed = validation_bytes(parameters, parameters / parts) + CONTEXT_BYTES
    if parts == 1 or needed <= machine.memory:
        return ""
    return (
        f"but `glassformer train` cannot validate this model: a validation puts it together on every GPU, with its "
        f"states in {needed / 1e9:,.0f} GB of {machine.memory / 1e9:,.0f}"
    )


def _table(plans: list[ClusterPlan], tokens: float) -> str:
    header = ("layout", "steps", "checkpointing", "GB/GPU", "update", "waiting", "MFU", "tokens/s", "days")
    rows = [
        (
            one.parallel,
            str(one.accumulate),
            "on" if one.checkpointing else "off",
            f"{one.device_bytes / 1e9:.1f}",
            f"{one.seconds:.3f} s",
            f"{one.communication / one.seconds:.0%}",
            f"{one.mfu:.0%}",
            f"{one.tokens_per_second:,.0f}",
            f"{tokens / one.tokens_per_second / 86400:,.1f}" if tokens else "",
        )
        for one in plans
    ]
    widths = [max(len(row[place]) for row in (header, *rows)) for place in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    )


def read_config(model: str) -> ModelConfig:
    """Return the config of a preset, of a model folder or of a config.json, ours or HF's; ValueError if it is none."""
    from glassformer.models.presets import PRESETS, preset

    path = Path(model) / "config.json" if Path(model).is_dir() else Path(model)
    if path.is_file():
        from glassformer.checkpoint.load_errors import refusing_wrong_values
        from glassformer.checkpoint.safe_files import read_json_object

        values = read_json_object(path, strict=False)
        if "model_type" in values:
            from glassformer.checkpoint.hf import family_by_type  # imports torch

            with refusing_wrong_values(path):
                return family_by_type(values["model_type"]).read_config(values, frozenset())
        try:
            return ModelConfig(**values.get("model", values))
        except TypeError as error:
            reason = str(error).removeprefix("ModelConfig.__init__() ")
            raise ValueError(f"{path} is not a config of Glassformer or Hugging Face: {reason}") from error
    if model not in PRESETS:
        raise ValueError(f"{model} is no preset, model folder or config.json: {suggestion(model, PRESETS)}")
    return preset(model)


def check_runs(path: Path) -> str:
    """Return a table of measured runs on one device: predicted and measured memory and time, and the errors."""
    from glassformer.checkpoint.load_errors import refusing_wrong_values
    from glassformer.checkpoint.safe_files import read_json_object

    lines = []
    with refusing_wrong_values(path):
        for run in read_json_object(path)["runs"]:
            config, machine = ModelConfig(**run["model"]), MACHINES[run["machine"]]
            shape = StepShape(run["rows"], run["source_length"], run["target_length"])
            predicted = predict_update(config, machine, shape, checkpointing=run.get("checkpointing", False))
            memory, seconds = predicted.memory.total / 2**30, predicted.seconds
            peak, speed = run.get("peak_gib"), run.get("tokens_per_second")
            tokens = run["rows"] * (run["target_length"] or run["source_length"])
            lines.append(
                f"{run['name']} on {machine.name}: {memory:.2f} GiB predicted, {_compared(memory, peak, 2)}; "
                f"{1000 * seconds:.1f} ms predicted, {_compared(1000 * seconds, speed and 1000 * tokens / speed, 1)}"
            )
    context = f"Memory is what torch allocates; the CUDA context takes about {CONTEXT_BYTES / 1e9:.1f} GB more."
    return "\n".join([*lines, context])


def _compared(predicted: float, measured: float | None, digits: int) -> str:
    """Return a measured number with the error of the prediction; "not measured" for None."""
    return "not measured" if measured is None else f"{measured:.{digits}f} measured ({predicted / measured - 1:+.1%})"
