"""Which examples each update sees, with whole batches and while the batch grows."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from glassformer.data.batching.labeled_batches import LabeledRow, PairedBatches
from glassformer.data.batching.noised_batches import MaskedBatch
from glassformer.data.batching.packed_windows import PackedBatches
from glassformer.data.batching.pair_batches import CycledBatches, TokenBudgetBatches
from glassformer.data.batching.token_files import write_token_files
from glassformer.data.batching.token_stream import write_stream
from glassformer.data.batching.update_batches import UpdateBatches
from glassformer.data.readers.pairs import Pair
from glassformer.training.schedules import BatchRamp


class Rows(NamedTuple):
    """A batch that is a list of numbers."""

    numbers: list[int]

    def slice_rows(self, begin: int, end: int) -> "Rows":
        return Rows(self.numbers[begin:end])


class Numbered:
    """Batches of the given sizes, whose rows are numbered through."""

    def __init__(self, sizes: list[int]):
        self.sizes = sizes

    def n_rows(self, number: int) -> int:
        return self.sizes[number % len(self.sizes)]

    def __getitem__(self, number: int) -> Rows:
        first = sum(self.n_rows(before) for before in range(number))
        return Rows(list(range(first, first + self.n_rows(number))))


def rows_of(found: list[Rows]) -> list[int]:
    return [number for batch in found for number in batch.numbers]


@pytest.mark.parametrize("accumulate", [1, 2, 3, 4])
@pytest.mark.parametrize("n_parts", [1, 2, 4, 7])
def test_updates_take_all_rows_once_in_order(accumulate: int, n_parts: int) -> None:
    order = UpdateBatches[Rows](Numbered([8, 1, 5, 12]), accumulate, BatchRamp(n_parts, 20))
    seen = [rows_of(order[update]) for update in range(40)]
    assert all(seen)
    flat = [row for rows in seen for row in rows]
    assert flat == list(range(len(flat)))


def test_the_batch_grows_in_equal_parts_to_its_full_size() -> None:
    order = UpdateBatches[Rows](Numbered([12]), 1, BatchRamp(4, 20))
    sizes = [len(rows_of(order[update])) for update in range(30)]
    assert sizes[:4] == [3] * 4
    assert sizes == sorted(sizes)
    assert set(sizes) == {3, 4, 6, 12}
    assert sizes[19] < 12
    assert sizes[22:] == [12] * 8


def test_accumulated_batches_come_one_by_one_before_they_are_cut() -> None:
    order = UpdateBatches[Rows](Numbered([3]), 4, BatchRamp(4, 100))
    assert [order[update] for update in range(4)] == [[Rows([3 * n, 3 * n + 1, 3 * n + 2])] for n in range(4)]


def test_an_update_does_not_depend_on_earlier_calls() -> None:
    def new() -> UpdateBatches[Rows]:
        return UpdateBatches(Numbered([7, 9, 2]), 2, BatchRamp(5, 30))

    order = new()
    assert [order[update] for update in range(40)] == [new()[update] for update in range(40)]


def test_without_a_ramp_rows_are_not_counted() -> None:
    plain = UpdateBatches[Rows]([Rows([0]), Rows([1]), Rows([2]), Rows([3])], 2)
    assert plain[1] == [Rows([2]), Rows([3])]


def test_an_epoch_of_bucketed_pairs_holds_every_pair_once(tmp_path) -> None:
    pairs = [Pair("a " * (1 + n % 9), "b " * (1 + n % 5) + f"{n}") for n in range(200)]
    number = {f"{n}": n for n in range(200)}

    def encode(texts: list[str]) -> list[list[int]]:
        return [[10 + number.get(word, 0) for word in text.split()] for text in texts]

    files = write_token_files(tmp_path / "tokens", pairs, encode, encode, max_len=50)
    batches = CycledBatches([TokenBudgetBatches(files, max_tokens=100, seed=3)])
    order = UpdateBatches(batches, 1, BatchRamp(4, 30))
    seen: list[int] = []
    update = 0
    while order.find(update)[0] < len(batches):
        for batch in order[update]:
            seen += [int(row[row >= 10].max()) - 10 if (row >= 10).any() else 0 for row in batch.target_in]
        update += 1
    assert sorted(seen) == list(range(200))
    assert update > len(batches)


def test_language_model_windows_are_shared_by_updates(tmp_path) -> None:
    stream = write_stream(
        tmp_path / "s", [" ".join(map(str, range(300)))], lambda texts: [list(range(300))], has_documents=False
    )
    batches = PackedBatches(stream, 10, max_tokens=80, seed=1)
    order = UpdateBatches(batches, 1, BatchRamp(4, 8))
    parts = [order[update][0] for update in range(4)]
    assert torch.equal(torch.cat([part.tokens for part in parts]), batches[0].tokens)
    assert torch.equal(torch.cat([part.targets for part in parts]), batches[0].targets)
    assert all(part.segments is None and len(part.tokens) == 2 for part in parts)


def test_a_part_of_paired_texts_keeps_both_texts_of_a_pair() -> None:
    rows = [LabeledRow([n + 1] * 3, [0] * 3, n // 2) for n in range(12)]
    batches = PairedBatches(rows, pad=0, max_tokens=1000)
    assert batches.n_rows(0) == 6
    part = batches[0].slice_rows(2, 5)
    first, second = part.tokens[:3, 0] - 1, part.tokens[3:, 0] - 1
    assert torch.equal(second, first + 1)
    assert torch.equal(part.answers, first // 2)


def test_a_part_of_masked_texts_keeps_their_answers() -> None:
    tensors = [torch.from_numpy(np.arange(6 * n).reshape(6, n)) for n in (4, 4, 2, 2)]
    part = MaskedBatch(*tensors).slice_rows(1, 3)
    assert all(torch.equal(got, whole[1:3]) for got, whole in zip(part, tensors, strict=True))
