"""Everything a training run needs to go on as if it had never stopped, on disk.

A checkpoint belongs to a position: the number of updates tried so far. The data, the dropout and the schedule of
whatever comes next are functions of the seed and of these numbers, so there is no random state to save.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from glassformer.checkpoint.load_errors import refusing_wrong_values
from glassformer.checkpoint.model_folder import WEIGHTS, load_parameters, own_parameters, read_tensors
from glassformer.checkpoint.safe_files import CorruptFolderError, new_folder, read_json, verify_folder

OPTIMISER, STATE = "optimiser.safetensors", "state.json"


@dataclass
class Evaluation:
    """The scores of one validation."""

    position: int
    update: int
    scores: dict[str, float]


@dataclass
class TrainState:
    """Where a run is."""

    position: int = 0
    """Updates tried: this many groups of batches are used up."""
    update: int = 0
    """Updates made: what the schedule goes by. Skipped ones do not count."""
    skipped: int = 0
    bad_in_a_row: int = 0
    loss_scale: float = 1.0
    seconds: float = 0.0
    tokens: int = 0
    """Target tokens learned from."""
    evaluations: list[Evaluation] = field(default_factory=list)


def checkpoint_path(folder: Path, position: int) -> Path:
    """Where the checkpoint of a position stands."""
    return folder / f"step-{position:08d}"


def saved_positions(folder: Path) -> list[int]:
    """The positions of all checkpoints in a folder, oldest first."""
    found = (re.fullmatch(r"step-(\d{8})", path.name) for path in folder.glob("step-*"))
    return sorted(int(match.group(1)) for match in found if match)


def save_checkpoint(folder: Path, state: TrainState, model: nn.Module, optimiser: torch.optim.Optimizer) -> Path:
    """Write a whole checkpoint, or none."""
    path = checkpoint_path(folder, state.position)
    moments = {
        f"{name}.{key}": value
        for name, parameter in _learned(model)
        for key, value in optimiser.state[parameter].items()
    }
    try:
        with new_folder(path) as work:
            for tensors, file in ((own_parameters(model), WEIGHTS), (moments, OPTIMISER)):
                save_file({name: value.contiguous().cpu() for name, value in tensors.items()}, work / file)
            (work / STATE).write_text(json.dumps(asdict(state), indent=2), encoding="utf-8")
    except Exception as error:
        older = saved_positions(folder)
        rest = f"the newest whole one is {checkpoint_path(folder, older[-1])}" if older else "there is none before it"
        raise OSError(f"could not save the checkpoint {path}: {error}; {rest}") from error
    return path


def load_checkpoint(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> TrainState:
    """Put a checkpoint's numbers into the model and the optimiser; where the run was."""
    sealed = verify_folder(path)
    values = read_json(sealed.file(STATE), finite=False)
    load_parameters(model, read_tensors(sealed.file(WEIGHTS)), str(path / WEIGHTS))
    moments = read_tensors(sealed.file(OPTIMISER))
    for name, parameter in _learned(model):
        own = {key.removeprefix(f"{name}."): value for key, value in moments.items() if key.startswith(f"{name}.")}
        optimiser.state[parameter] = {
            # The count of steps stays where the optimiser keeps it; moments live beside their parameter.
            key: value if key == "step" and not _counts_on_device(optimiser) else value.to(parameter.device)
            for key, value in own.items()
        }
    with refusing_wrong_values(path / STATE):
        evaluations = [Evaluation(**evaluation) for evaluation in values.pop("evaluations")]
        return TrainState(**values, evaluations=evaluations)


def load_newest(
    folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, warn: Callable[[str], None]
) -> TrainState:
    """Go on from the newest checkpoint that is whole; unreadable ones are named and passed over."""
    for position in reversed(saved_positions(folder)):
        try:
            return load_checkpoint(checkpoint_path(folder, position), model, optimiser)
        except CorruptFolderError as error:
            warn(f"passing over an unreadable checkpoint: {error}")
    return TrainState()


def average_parameters(folder: Path, positions: list[int]) -> dict[str, Tensor]:
    """The mean of the parameters of some checkpoints, summed in float64."""
    total: dict[str, Tensor] = {}
    for position in positions:
        sealed = verify_folder(checkpoint_path(folder, position))
        for name, value in read_tensors(sealed.file(WEIGHTS)).items():
            total[name] = total[name] + value.double() if name in total else value.double()
    return {name: (value / len(positions)).float() for name, value in total.items()}


def _learned(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """What the optimiser keeps something for: a frozen parameter has no moments."""
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def _counts_on_device(optimiser: torch.optim.Optimizer) -> bool:
    return bool(optimiser.defaults.get("fused"))
