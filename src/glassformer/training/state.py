"""Checkpoints of a training run: parameters, optimizer state and counters.

A checkpoint belongs to a *position*, the number of updates tried so far, and is the folder `step-<position>`. Data
order, dropout and learning rate are functions of the seed and the counters, so there is no random state to save.
"""

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from glassformer.base.write_errors import WriteError
from glassformer.checkpoint.load_errors import refusing_wrong_values
from glassformer.checkpoint.model_folder import WEIGHTS, load_parameters, own_parameters, read_tensors, write_tensors
from glassformer.checkpoint.output_folder import clean_leftovers, discard_folder, new_folder
from glassformer.checkpoint.safe_files import CorruptFolderError, SealedFolder, read_json, verify_folder, write_text
from glassformer.checkpoint.tensor_files import SafeTensors
from glassformer.training.processes import Processes
from glassformer.training.sharded_tensors import (
    copy_to_host,
    is_sharded,
    local_tensors,
    read_shards,
    read_whole,
    stored_shapes,
    write_index,
    write_shards,
)

OPTIMIZER, STATE = "optimizer.safetensors", "state.json"


@dataclass
class Evaluation:
    """Scores of one validation, and when it was made."""

    position: int
    """Updates tried before it."""
    update: int
    """Updates made before it, without skipped ones."""
    scores: dict[str, float]
    """Scores by name."""
    is_average: bool = False
    """Whether the average of the last checkpoints was validated, at the end of a run, instead of the model."""


@dataclass
class TrainState:
    """The counters of a training run and its validations so far, saved in each checkpoint."""

    position: int = 0
    """Updates tried. It decides the examples of the next update (`data/batching/update_batches.py`)."""
    update: int = 0
    """Updates made, without skipped ones. The learning-rate schedule depends on this number."""
    skipped: int = 0
    """Updates skipped because their gradients were not finite."""
    bad_in_a_row: int = 0
    """Consecutive updates without finite gradients. In fp16, an overflow counts only if the loss scale is 1."""
    loss_scale: float = 1.0
    """Factor of the loss in fp16, against underflow of the gradients; 1 in other precisions."""
    good_in_a_row: int = 0
    """Consecutive updates with finite gradients. In fp16, the loss scale doubles after each 2000 of them."""
    seconds: float = 0.0
    """Seconds spent on updates."""
    other_seconds: float = 0.0
    """Seconds spent on validations, on saves, and on recording steps as CUDA graphs."""
    tokens: int = 0
    """Target tokens of all updates made."""
    is_compiled: bool = False
    """Whether the layers were compiled, so that a run that chose it by itself resumes the same way."""
    has_cpu_kernels: bool = False
    """Whether C++ kernels computed layers on a CPU, so that the run resumes the same way."""
    has_bf16_kernels: bool = False
    """Whether these kernels computed the linear layers in bf16, too."""
    evaluations: list[Evaluation] = field(default_factory=list)


def checkpoint_path(folder: Path, position: int) -> Path:
    """Return the path of the checkpoint after `position` updates, inside the folder of all checkpoints."""
    return folder / f"step-{position:08d}"


def saved_positions(folder: Path) -> list[int]:
    """Return the `TrainState.position` of each checkpoint in `folder`, taken from its file name, oldest first."""
    found = (re.fullmatch(r"step-(\d{8})", path.name) for path in folder.glob("step-*"))
    return sorted(int(match.group(1)) for match in found if match)


class NotFiniteError(ValueError):
    """Raised by `prepare_checkpoint` if a parameter or an optimizer moment is NaN or infinite."""


class PreparedSave(NamedTuple):
    """A checkpoint that can be written."""

    path: Path
    write: Callable[[], None]
    """Writes the files; in a run of several processes, all have to call it."""


def save_checkpoint(
    folder: Path,
    state: TrainState,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    processes: Processes | None = None,
) -> Path:
    """Write a checkpoint atomically to `folder` and return its path, as `prepare_checkpoint` does in two steps."""
    prepared = prepare_checkpoint(folder, state, model, optimizer, processes)
    prepared.write()
    return prepared.path


def prepare_checkpoint(
    folder: Path,
    state: TrainState,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    processes: Processes | None = None,
    *,
    copied: bool = False,
) -> PreparedSave:
    """Return the path of a checkpoint, and a function that writes it atomically.

    It keeps a valid checkpoint of the same position. With `copied`, the function writes a copy of the tensors in the
    memory of the CPU, so that the model may change before it is called. `processes` share a run, and write the
    checkpoint together; None is a run of one process. Raises NotFiniteError if a parameter or an optimizer moment is
    NaN or infinite.
    """
    alone = processes is None
    processes = processes or Processes()
    path = checkpoint_path(folder, state.position)
    if processes.broadcast(path.exists() and _is_valid(path)):
        return PreparedSave(path, lambda: None)
    moments = {
        f"{name}.{key}": value
        for name, parameter in _learned(model)
        for key, value in optimizer.state[parameter].items()
    }
    groups = {"weights": own_parameters(model), "optimizer": moments}
    with processes.together():
        for name, value in (pair for tensors in groups.values() for pair in tensors.items()):
            if not local_tensors([value])[0].isfinite().all():
                raise NotFiniteError(f"{name} holds a NaN or an infinity at update {state.update}")
    if copied:
        groups = {group: {name: copy_to_host(x) for name, x in tensors.items()} for group, tensors in groups.items()}
    counters = json.dumps(_for_json(state), indent=2, allow_nan=False)
    return PreparedSave(path, partial(_write_checkpoint, path, groups, counters, processes, alone=alone))


def _write_checkpoint(
    path: Path, groups: Mapping[str, Mapping[str, Tensor]], counters: str, processes: Processes, *, alone: bool
) -> None:
    """Write the files of a checkpoint. With `alone` they hold whole tensors; otherwise each process writes its part."""
    try:
        with _new_shared_folder(path, processes) as work:
            if alone:
                for file, tensors in zip((WEIGHTS, OPTIMIZER), groups.values(), strict=True):
                    write_tensors(work / file, {name: value.contiguous().cpu() for name, value in tensors.items()})
            else:
                parts = {name: _at_least_1d(x) for tensors in groups.values() for name, x in tensors.items()}
                write_shards(work, parts, processes.group)
            if processes.is_leader:
                if not alone:
                    write_index(work, groups, processes.size)
                write_text(work / STATE, counters)
    except WriteError as error:
        raise OSError(f"{error}. This checkpoint is not saved; {newest_saved(path.parent)}") from error
    except Exception as error:
        raise OSError(f"could not save the checkpoint {path}: {error}; {newest_saved(path.parent)}") from error


def _is_valid(path: Path) -> bool:
    """Return whether a checkpoint is complete and unchanged. Another one is removed."""
    try:
        verify_folder(path)
    except CorruptFolderError:
        discard_folder(path)
        return False
    return True


@contextmanager
def _new_shared_folder(path: Path, processes: Processes) -> Iterator[Path]:
    """Context manager like `new_folder`, for the processes of one run: the leader creates, seals and renames it."""
    with ExitStack() as stack:
        with processes.together():
            work = stack.enter_context(new_folder(path)) if processes.is_leader else path
        work = processes.broadcast(work)
        with processes.together():
            yield work
        with processes.together():
            stack.close()


def _at_least_1d(value: Tensor) -> Tensor:
    """Return the tensor; a number, such as Adam's step count, as a tensor of one element."""
    return value if value.dim() else value.reshape(1)


def newest_saved(folder: Path) -> str:
    """Return a clause for error messages that names the newest checkpoint in `folder`, or says that there is none."""
    saved = saved_positions(folder)
    return f"the newest complete one is {checkpoint_path(folder, saved[-1])}" if saved else "none was saved before it"


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, processes: Processes | None = None
) -> TrainState:
    """Load a checkpoint into the model and the optimizer, and return the counters of the run.

    `processes` share a run; each reads its part of the tensors, whatever number of processes wrote the checkpoint.
    """
    is_verified = processes is not None and not processes.is_leader  # by the leader
    sealed = SealedFolder(path) if is_verified else verify_folder(path)
    values = read_json(sealed.file(STATE))
    if processes is None and not is_sharded(sealed):
        load_parameters(model, read_tensors(sealed.file(WEIGHTS)), str(path / WEIGHTS))
        moments: Mapping[str, Tensor] = read_tensors(sealed.file(OPTIMIZER))
    else:
        moments = _load_shards(sealed, model, alone=processes is None)
    for name, parameter in _learned(model):
        own = {key.removeprefix(f"{name}."): value for key, value in moments.items() if key.startswith(f"{name}.")}
        optimizer.state[parameter] = {
            # Moments are on the device of their parameter. The step count is on the CPU, unless the optimizer is fused.
            key: value if key == "step" and not _counts_on_device(optimizer) else value.to(parameter.device)
            for key, value in own.items()
        }
    return _from_json(values, path / STATE)


def _load_shards(sealed: SealedFolder, model: nn.Module, *, alone: bool) -> dict[str, Tensor]:
    """Read the parameters of the model, in place, and return the moments of the optimizer, divided like them."""
    tensors: dict[str, Tensor] = own_parameters(model)
    if is_sharded(sealed):
        shapes = stored_shapes(sealed, "optimizer")
        numbers: Mapping[str, Tensor] = {}
    else:
        stored = SafeTensors([sealed.file(OPTIMIZER)])
        shapes = {name: stored.shape(name) for name in stored.keys()}  # noqa: SIM118
        numbers = {name: stored[name] for name, shape in shapes.items() if not shape}
    moments = {}
    for name, shape in shapes.items():
        if name not in numbers:
            parameter = tensors[name.rpartition(".")[0]]
            moments[name] = torch.zeros_like(parameter) if shape == tuple(parameter.shape) else torch.zeros(shape or 1)
    read_shards(sealed, {**tensors, **moments}, alone=alone)
    return {**{name: moments[name].reshape(shape) for name, shape in shapes.items() if name in moments}, **numbers}


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the parameters in a checkpoint, whole, whatever number of processes wrote it."""
    sealed = verify_folder(path)
    return read_whole(sealed, "weights") if is_sharded(sealed) else read_tensors(sealed.file(WEIGHTS))


def newest_state(folder: Path) -> TrainState:
    """Return the counters of the newest complete checkpoint, or zero counters if there is none."""
    for position in reversed(saved_positions(folder)):
        try:
            file = verify_folder(checkpoint_path(folder, position)).file(STATE)
            return _from_json(read_json(file), file)
        except CorruptFolderError:
            continue
    return TrainState()


def _for_json(state: TrainState) -> dict[str, Any]:
    """Return the state as a dictionary for JSON. Scores that are NaN or infinite become None, JSON's null."""
    values = asdict(state)
    for evaluation in values["evaluations"]:
        scores = evaluation["scores"]
        evaluation["scores"] = {name: value if math.isfinite(value) else None for name, value in scores.items()}
    return values


def _from_json(values: Any, where: Path) -> TrainState:
    with refusing_wrong_values(where):
        evaluations = []
        for one in values.pop("evaluations"):
            scores = {name: math.nan if value is None else value for name, value in one["scores"].items()}
            evaluations.append(Evaluation(one["position"], one["update"], scores))
        return TrainState(**values, evaluations=evaluations)


def load_newest(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    warn: Callable[[str], None],
    processes: Processes | None = None,
) -> TrainState:
    """Load the newest complete checkpoint into the model and the optimizer, and return its counters.

    `warn` is called for each unreadable checkpoint. Without a complete one, nothing is loaded and the counters are 0.
    """
    if processes is not None:
        with processes.together():
            newest = _newest_valid(folder, warn) if processes.is_leader else None
        newest = processes.broadcast(newest)
        if newest is None:
            return TrainState()
        with processes.together():  # DCP raises the same error in all processes
            return load_checkpoint(checkpoint_path(folder, newest), model, optimizer, processes)
    for position in reversed(saved_positions(folder)):
        try:
            return load_checkpoint(checkpoint_path(folder, position), model, optimizer)
        except CorruptFolderError as error:
            warn(f"skipping an unreadable checkpoint: {error}")
    return TrainState()


def _newest_valid(folder: Path, warn: Callable[[str], None]) -> int | None:
    """Return the position of the newest checkpoint whose files are complete and unchanged; None without one."""
    for position in reversed(saved_positions(folder)):
        try:
            verify_folder(checkpoint_path(folder, position))
        except CorruptFolderError as error:
            warn(f"skipping an unreadable checkpoint: {error}")
        else:
            return position
    return None


def clean_checkpoints(folder: Path) -> None:
    """Remove temporary folders left by interrupted saves and removals. The caller must hold the run's lock."""
    for path in folder.glob(".step-*"):
        if re.fullmatch(r"\.step-\d{8}\.(removed|part-[0-9a-f]{8})", path.name):
            shutil.rmtree(path, ignore_errors=True)
        elif match := re.fullmatch(r"\.(step-\d{8})\.old", path.name):
            clean_leftovers(folder / match.group(1))


def average_parameters(
    folder: Path, positions: list[int], fold: Callable[[dict[str, Tensor]], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Return the mean of the parameters of the checkpoints at `positions`, summed in float64, as float32.

    `fold` is applied to the parameters of each checkpoint first: it merges LoRA adapters (see `fold_adapters`).
    """
    total: dict[str, Tensor] = {}
    for position in positions:
        for name, value in fold(read_weights(checkpoint_path(folder, position))).items():
            total[name] = total[name] + value.double() if name in total else value.double()
    return {name: (value / len(positions)).float() for name, value in total.items()}


def _learned(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield name and value of each parameter that is not frozen; frozen ones have no optimizer state."""
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def _counts_on_device(optimizer: torch.optim.Optimizer) -> bool:
    return bool(optimizer.defaults.get("fused"))
