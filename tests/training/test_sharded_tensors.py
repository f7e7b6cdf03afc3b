"""Tensors in shards, here by one process. `test_parallel.py` writes and reads them with several."""

from types import SimpleNamespace

import pytest
import torch

from glassformer.checkpoint.output_folder import new_folder
from glassformer.checkpoint.safe_files import CorruptFolderError, verify_folder
from glassformer.training.sharded_tensors import (
    is_sharded,
    local_tensors,
    own_part,
    read_shards,
    read_whole,
    stored_shapes,
    whole_tensor,
    write_index,
    write_shards,
)

TENSORS = {"a": torch.arange(35.0).view(7, 5), "b": torch.arange(3, dtype=torch.float64)}


@pytest.fixture
def folder(tmp_path):
    with new_folder(tmp_path / "tensors") as work:
        write_shards(work, TENSORS)
        write_index(work, {"weights": TENSORS}, 1)
    return tmp_path / "tensors"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_tensors_come_back(folder):
    sealed = verify_folder(folder)
    assert is_sharded(sealed)
    assert stored_shapes(sealed, "weights") == {"a": (7, 5), "b": (3,)}
    found = read_whole(sealed, "weights")
    assert all(torch.equal(found[name], TENSORS[name]) and found[name].dtype == TENSORS[name].dtype for name in TENSORS)
    into = {"b": torch.zeros(3, dtype=torch.float64)}
    read_shards(sealed, into, alone=True)
    assert torch.equal(into["b"], TENSORS["b"])


def test_a_missing_tensor_is_an_error(folder):
    with pytest.raises(CorruptFolderError, match="cannot be read"):
        read_shards(verify_folder(folder), {"c": torch.zeros(3)}, alone=True)


def test_a_file_that_is_not_in_the_manifest_is_not_read(folder):
    (folder / "shard-9.safetensors").write_bytes(b"")
    with pytest.raises(CorruptFolderError, match=r"shard-9.safetensors is not in manifest.json"):
        read_whole(verify_folder(folder), "weights")


def test_an_ordinary_tensor_is_its_own_part():
    assert local_tensors([TENSORS["a"]])[0] is TENSORS["a"]
    assert whole_tensor(TENSORS["a"]) is TENSORS["a"]


class Place:
    """The place of one process in a mesh of these sizes."""

    def __init__(self, sizes, ranks):
        self.sizes, self.ranks, self.ndim = sizes, ranks, len(sizes)

    def size(self, place):
        return self.sizes[place]

    def get_local_rank(self, place):
        return self.ranks[place]


@pytest.mark.parametrize("rank", range(4))
def test_a_process_takes_its_rows_of_a_tensor(rank):
    """Of 7 rows four processes have 2, 2, 2 and 1; of 5 the last one has none."""
    for n_rows in (7, 5, 3, 8):
        whole = torch.arange(n_rows * 2).view(n_rows, 2)
        rows = SimpleNamespace(device_mesh=Place((2, 4), (1, rank)), placements=[object(), SimpleNamespace(dim=0)])
        chunks = whole.chunk(4)
        assert torch.equal(own_part(whole, rows), chunks[rank] if rank < len(chunks) else whole[:0])


def test_shards_are_parts_of_what_tensor_parallelism_leaves():
    whole = torch.arange(32).view(8, 4)
    for shard, tensor in ((0, 0), (0, 1), (1, 0), (1, 1)):
        mesh = Place((2, 2), (shard, tensor))
        for dimension in (0, 1):
            placements = [SimpleNamespace(dim=0), SimpleNamespace(dim=dimension)]
            expected = whole.chunk(2, dimension)[tensor].chunk(2)[shard]
            assert torch.equal(own_part(whole, SimpleNamespace(device_mesh=mesh, placements=placements)), expected)
