"""How a model learned: the curve of its run, and what each kept checkpoint does with the same text."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from glassformer.checkpoint.model_folder import WEIGHTS, load_parameters, read_tensors
from glassformer.checkpoint.safe_files import CorruptFolderError, verify_folder
from glassformer.inspect.explain_options import ExplainOptions
from glassformer.inspect.json_values import number, pack
from glassformer.inspect.pipeline_text import ModelText, read_text, written_text
from glassformer.inspect.recorder import record
from glassformer.inspect.stack_numbers import LONGEST_FULL
from glassformer.pipelines.pipeline import Pipeline
from glassformer.progress import Step
from glassformer.training.journal import read_log
from glassformer.training.run_folder import CHECKPOINTS
from glassformer.training.state import checkpoint_path, saved_positions

MOST_POINTS = 400
"""Points of the curve; a longer log is averaged in equal parts."""
MOST_CHECKPOINTS = 12


def describe_learning(pipe: Pipeline, read: ModelText, options: ExplainOptions, run: Path) -> dict[str, Any] | None:
    """Return the learning curve of a run folder, and samples and attention of its checkpoints; None without a log.

    The attention is the mean over the heads of the last layer: cross-attention if there is one.
    """
    log = read_log(run)
    if not log:
        return None
    curve: dict[int, dict[str, Any]] = {}
    losses = [entry for entry in log if "training loss" in entry.values]
    size = max(1, -(-len(losses) // MOST_POINTS))
    for start in range(0, len(losses), size):
        part = losses[start : start + size]
        mean = sum(entry.values["training loss"] for entry in part) / len(part)
        point = {"update": part[-1].update, "seconds": number(part[-1].seconds), "loss": number(mean)}
        curve[part[-1].update] = {**point, "validation": None}
    for entry in log:
        scores = {name: number(value) for name, value in entry.values.items() if name != "training loss"}
        if scores:
            known = curve.setdefault(
                entry.update, {"update": entry.update, "seconds": number(entry.seconds), "loss": None}
            )
            known["validation"] = scores
    samples, checkpoints = _replay(pipe, read, options, run / CHECKPOINTS)
    return {"curve": [curve[update] for update in sorted(curve)], "samples": samples, "checkpoints": checkpoints}


def _replay(
    pipe: Any, read: ModelText, options: ExplainOptions, folder: Path
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the texts that the kept checkpoints write, and their attention on the text of the finished model."""
    positions = saved_positions(folder) if folder.is_dir() else []
    step = max(1, -(-len(positions) // MOST_CHECKPOINTS))
    chosen = sorted({*positions[::step], *positions[-1:]})
    is_short = max(len(side.ids) for side in (read.source, read.target) if side is not None) <= LONGEST_FULL
    if not chosen or not is_short:
        return [], []
    replica, samples, checkpoints = copy.copy(pipe), [], []
    with torch.inference_mode(False):
        replica.model = copy.deepcopy(pipe.model)  # the pipeline may be in use
    same_text = replace(read, model=replica.model, output=None)
    with Step("replaying checkpoints", len(chosen)) as shown:
        for position in chosen:
            if not _load(replica.model, checkpoint_path(folder, position)):
                return [], []  # the weights have other names, as those of LoRA adapters
            written = read_text(replica, read.source.text, options).target
            text = "" if written is None else written_text(replica.model, written)
            samples.append({"update": position, "text": text})
            checkpoints.append({"update": position, "attention": _attention(same_text)})
            shown.advance(1)
    return samples, checkpoints


def _load(model: Any, path: Path) -> bool:
    """Load the weights of a checkpoint into the model; return whether they fit."""
    try:
        with torch.inference_mode(False):
            load_parameters(model, read_tensors(verify_folder(path).file(WEIGHTS)), str(path / WEIGHTS))
    except (ValueError, RuntimeError, CorruptFolderError):
        return False
    return True


def _attention(read: ModelText) -> dict[str, Any]:
    config = read.model.config
    if config.kind == "encoder_decoder":
        name = f"decoder.layers.{config.n_decoder_layers - 1}.cross_attn.weights"
    else:
        name = f"{config.kind}.layers.{config.n_encoder_layers + config.n_decoder_layers - 1}.self_attn.weights"
    with record(read.model, name) as recorded:
        read.model(**read.inputs())
    return {**pack(recorded[name][0].float().mean(0)), "name": name.removesuffix(".weights")}
