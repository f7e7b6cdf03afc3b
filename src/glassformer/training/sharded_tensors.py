"""Tensors that several processes write together, and that any number of processes can read.

`torch.distributed.checkpoint` decides which process writes which part of a tensor. Its storage is safetensors here:
each process writes `shard-*.safetensors`, whose header says where in the whole tensor each part belongs. `tensors.json`
lists the names, shapes and dtypes. Nothing is a pickle. The files of a run of one process can be read the same way.
"""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.base.freed_memory import give_back_freed
from glassformer.checkpoint.load_errors import refusing_wrong_values
from glassformer.checkpoint.model_folder import check_stored, owners_of_parameters
from glassformer.checkpoint.safe_files import CorruptFolderError, SealedFolder, read_json, write_text
from glassformer.checkpoint.unread_weights import Values

INDEX = "tensors.json"
DTYPES = {str(dtype): dtype for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}


def write_shards(folder: Path, tensors: Mapping[str, Tensor], group: Any = None) -> None:
    """Write the parts of the tensors that this process holds. All processes of `group` have to call this.

    Each tensor has at least one dimension. The default group is that of all processes of the run.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True, thread_count=1)
    try:
        with warnings.catch_warnings(action="ignore"):  # about a single process
            save(dict(tensors), storage_writer=writer, process_group=group)
    except CheckpointException as error:  # not an Exception
        raise OSError(_reason(error)) from error


def write_index(folder: Path, groups: Mapping[str, Mapping[str, Tensor]], n_processes: int) -> None:
    """Write the names, shapes and dtypes of the tensors, in groups such as "weights". One process calls this."""
    described = {
        group: {name: {"dtype": str(x.dtype), "shape": list(x.shape)} for name, x in tensors.items()}
        for group, tensors in groups.items()
    }
    write_text(folder / INDEX, json.dumps({"processes": n_processes, **described}, indent=1))


def is_sharded(folder: SealedFolder) -> bool:
    """Whether several processes wrote this folder."""
    return folder.has(INDEX)


def read_shards(folder: SealedFolder, tensors: dict[str, Any], *, alone: bool = False) -> None:
    """Read this process's part of each tensor, in place; with `alone`, other processes take no part.

    The tensors may be divided in another way than those that were written.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        reader = HuggingFaceStorageReader(str(folder.path))
        with warnings.catch_warnings(action="ignore"):  # about a read without other processes
            load(tensors, storage_reader=reader, no_dist=alone)
    except (Exception, CheckpointException) as error:  # the latter is not an Exception
        raise CorruptFolderError(f"{folder.path} cannot be read: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return the last line of an error message; before it come the stack traces of all processes."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


def read_whole(folder: SealedFolder, group: str) -> dict[str, Tensor]:
    """Return all tensors of a group, whole, on the CPU."""
    with refusing_wrong_values(folder.path / INDEX):
        described = read_json(folder.file(INDEX))[group]
        tensors = {name: torch.empty(about["shape"], dtype=DTYPES[about["dtype"]]) for name, about in described.items()}
    verify_shards(folder)
    read_shards(folder, tensors, alone=True)
    return tensors


def stored_shapes(folder: SealedFolder, group: str) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a group."""
    with refusing_wrong_values(folder.path / INDEX):
        return {name: tuple(about["shape"]) for name, about in read_json(folder.file(INDEX))[group].items()}


def verify_shards(folder: SealedFolder) -> None:
    """Raise CorruptFolderError if a file of tensors is missing, is not in the manifest, or has changed."""
    for path in sorted(folder.path.glob("*.safetensors")):
        folder.file(path.name)


def local_tensors(tensors: list[Tensor]) -> list[Tensor]:
    """Return the part of each tensor that this process holds; changing it in place changes the tensor."""
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]


def whole_tensor(tensor: Any) -> Tensor:
    """Return a tensor, put together from the parts of all processes if it is sharded. All processes call this."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def copy_to_host(tensor: Any) -> Tensor:
    """Return a copy of a tensor in the memory of the CPU, sharded as it is."""
    if not hasattr(tensor, "to_local"):
        whole: Tensor = tensor.detach().to("cpu", copy=True)
        return whole
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

    mesh = tensor.device_mesh
    # No operation sends anything over this mesh: it says where in the whole tensor the part belongs.
    places = DeviceMesh("cpu", mesh.mesh, mesh_dim_names=mesh.mesh_dim_names, _init_backend=False)
    local = tensor.to_local().detach().to("cpu", copy=True)
    return DTensor.from_local(
        local, places, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def fill_parts(model: nn.Module, values: Values, device: torch.device) -> None:
    """Give the sharded parameters of a model, which are on the meta device, their values on `device`.

    Whole tensors are read one at a time, in the dtype in which they are stored; this process keeps its part of each.
    """
    owners, empty = owners_of_parameters(model), dict(model.named_parameters())
    for name, whole in values:
        check_stored(name, whole)
        parameter = empty.pop(name)
        filled = nn.Parameter(torch.empty_like(parameter, device=device), requires_grad=parameter.requires_grad)
        with torch.no_grad():
            local_tensors([filled])[0].copy_(own_part(whole, parameter))
        for module, key in owners[parameter]:
            setattr(module, key, filled)
        del whole
        give_back_freed()  # otherwise the heap keeps holes of the size of whole matrices


def own_part(whole: Tensor, sharded: Any) -> Tensor:
    """Return the part of a whole tensor, a view of it, that this process holds of the DTensor `sharded`.

    FSDP2 divides what tensor parallelism has left of a parameter, so the last dimension of the mesh comes first.
    """
    mesh = sharded.device_mesh
    for place in reversed(range(mesh.ndim)):
        dimension = getattr(sharded.placements[place], "dim", None)
        if dimension is not None:  # otherwise the processes of this dimension have the same
            length = whole.shape[dimension]
            step = -(-length // mesh.size(place))
            begin = min(mesh.get_local_rank(place) * step, length)
            whole = whole.narrow(dimension, begin, min(step, length - begin))
    return whole
