"""Memory-mapped files of labeled rows, which are tokenized texts with their answers.

`ids.bin` and `token_types.bin` hold the concatenated values of all rows, `offsets` the start of each row. `answers.bin`
and `answer_offsets` do the same for the answers. All numbers are little-endian.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.data.batching.data_order import Numbers
from glassformer.data.batching.labeled_batches import LabeledRow
from glassformer.data.batching.token_files import new_token_folder

ABOUT = "rows.json"


class RowFiles(Sequence[LabeledRow]):
    """The labeled rows in a folder that `write_row_files` wrote, as a sequence."""

    def __init__(self, folder: Path):
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        self.n_long: int = about["n_long"]
        """The number of texts that exceeded the model's maximum length."""
        self._is_single: bool = about["is_single"]
        self._ids, self._types = _map(folder / "ids.bin", "<i4"), _map(folder / "token_types.bin", "<i4")
        self._answers = _map(folder / "answers.bin", about["answers"])
        self._offsets, self._answer_offsets = _map(folder / "offsets", "<i8"), _map(folder / "answer_offsets", "<i8")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def lengths(self) -> Numbers:
        """Return the number of tokens of each row."""
        return np.diff(self._offsets)

    def __getitem__(self, index: Any) -> Any:
        """Return one row, or a list of rows for a slice."""
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        number = range(len(self))[index]  # raises IndexError beyond the end
        begin, end = self._offsets[number : number + 2]
        first, last = self._answer_offsets[number : number + 2]
        answer = self._answers[first:last]
        return LabeledRow(self._ids[begin:end], self._types[begin:end], answer[0].item() if self._is_single else answer)


def write_row_files(folder: Path, rows: Sequence[LabeledRow], *, n_long: int = 0) -> RowFiles:
    """Write labeled rows to `folder`, and return them as `RowFiles`.

    Answers must all be numbers or all be lists of numbers. `n_long` is the number of texts that exceeded the model's
    maximum length; it is only stored.
    """
    single = [not isinstance(row.answer, Sequence | np.ndarray) for row in rows]
    if any(single) and not all(single):
        raise ValueError("some answers are numbers and others are lists: expected one kind")
    is_single = any(single)
    answers = [np.atleast_1d(np.asarray(row.answer)) for row in rows]
    dtype = "<f8" if any(answer.dtype.kind == "f" for answer in answers) else "<i8"
    with new_token_folder(folder) as work:
        _write(work / "ids.bin", [row.ids for row in rows], "<i4")
        _write(work / "token_types.bin", [row.token_types for row in rows], "<i4")
        _write(work / "answers.bin", answers, dtype)
        _write(work / "offsets", [[0], np.cumsum([len(row.ids) for row in rows])], "<i8")
        _write(work / "answer_offsets", [[0], np.cumsum([len(answer) for answer in answers])], "<i8")
        about = {"n_long": n_long, "is_single": is_single, "answers": dtype}
        (work / ABOUT).write_text(json.dumps(about), encoding="utf-8")
    return RowFiles(folder)


def _write(file: Path, parts: Sequence[Any], dtype: str) -> None:
    with file.open("wb") as stream:
        for part in parts:
            stream.write(np.asarray(part, dtype=dtype).tobytes())


def _map(file: Path, dtype: str) -> np.ndarray[Any, Any]:
    # An empty file cannot be mapped. A plain array over the map is sliced faster than the map itself.
    return np.asarray(np.memmap(file, dtype=dtype, mode="r")) if file.stat().st_size else np.zeros(0, dtype=dtype)
