"""Documents end to end, cut into windows: every token of a batch is a lesson, and none is padding.

A document is read after an END and written up to the next, which begins the document after it: END d1 END d2 END. The
stream lies in a file that is read through a memory map. A window's `segments` keep the documents in it apart. One long
text has no borders and no END.

Epoch e lays windows side by side from a place that is drawn for it, and draws their order: a batch is a function of
the seed and its number, and each token comes about once an epoch.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from glassformer.data.plan import Numbers
from glassformer.data.token_files import Ids
from glassformer.text.tokenizer import END

Text = TypeVar("Text")
CHUNK = 256
"""Documents tokenised at a time."""


class PackedBatch(NamedTuple):
    """Windows of equal length; `targets` is what follows each of `tokens`."""

    tokens: Tensor  # (B, T)
    targets: Tensor  # (B, T)
    numbers: Tensor  # (B, T), the documents' in each row; (0), where all is one text

    @property
    def segments(self) -> Tensor | None:
        """The documents' numbers, where there are several."""
        return self.numbers if self.numbers.numel() else None

    @property
    def n_target_tokens(self) -> int:
        """What the loss is averaged over: all of them."""
        return self.targets.numel()

    def to(self, device: torch.device | str) -> "PackedBatch":
        """The same batch on another device."""
        return PackedBatch(*(x.to(device, non_blocking=True) for x in self))


class TokenStream:
    """A tokenised corpus on disk."""

    def __init__(self, folder: Path):
        about = json.loads((folder / "stream.json").read_text(encoding="utf-8"))
        self.has_documents = bool(about["has_documents"])
        """Whether each document has an END before it and behind it."""
        self.n_bytes, self.n_documents, self.n_unknown = about["n_bytes"], about["n_documents"], about["n_unknown"]
        self.ids: Ids = np.memmap(folder / "tokens.bin", dtype=np.int32, mode="r")

    def __len__(self) -> int:
        return len(self.ids)


def write_stream(
    folder: Path,
    documents: Iterable[Text],
    encode_batch: Callable[[list[Text]], list[list[int]]],
    *,
    has_documents: bool,
    unknown: int = -1,
    size: Callable[[Text], int] = lambda text: len(str(text).encode()),
) -> TokenStream:
    """Tokenise texts into `folder`; `unknown` is the id that is counted there, `size` a text's in bytes."""
    work = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    n_bytes = n_documents = n_unknown = n_tokens = 0
    with (work / "tokens.bin").open("wb") as file:

        def write(ids: list[int]) -> None:
            nonlocal n_tokens, n_unknown
            n_tokens += len(ids)
            n_unknown += ids.count(unknown)
            file.write(np.asarray(ids, dtype=np.int32).tobytes())

        for chunk in _chunks(documents):
            n_documents += len(chunk)
            n_bytes += sum(map(size, chunk))
            for ids in encode_batch(chunk):
                write([END, *ids] if has_documents else ids)
        if has_documents and n_documents:
            write([END])
    if n_tokens < 2:
        raise ValueError(f"the text has {n_tokens} tokens: expected at least two, one to follow the other")
    about = {"has_documents": has_documents, "n_bytes": n_bytes, "n_documents": n_documents, "n_unknown": n_unknown}
    (work / "stream.json").write_text(json.dumps(about), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    work.rename(folder)
    return TokenStream(folder)


@dataclass
class PackedBatches:
    """All batches of a stream, by step number; every one has the same shape."""

    stream: TokenStream
    context: int
    """Tokens of a window; a shorter text makes one shorter window."""
    max_tokens: int = 4096
    """Tokens of a batch: as many windows as fit, at least one."""
    seed: int = 0

    def __post_init__(self) -> None:
        room = len(self.stream) - 1  # each token needs the one that follows it
        self.width = min(self.context, room)
        self.rows = max(1, self.max_tokens // self.width)
        # One window fewer than would fit leaves room to begin anywhere.
        self.n_windows = max(1, (room - self.width + 1) // self.width)
        self._spare = min(room - self.n_windows * self.width, self.width - 1)
        self._drawn: tuple[int, Numbers] | None = None

    def __len__(self) -> int:
        """Batches in an epoch, the last of which may reach into the next."""
        return -(-self.n_windows // self.rows)

    def epoch_of(self, step: int) -> int:
        """The epoch a step begins in."""
        return step * self.rows // self.n_windows

    def __getitem__(self, step: int) -> PackedBatch:
        """The batch of this step, whatever was asked for before."""
        first = step * self.rows
        begins = [
            self._begins(number // self.n_windows)[number % self.n_windows]
            for number in range(first, first + self.rows)
        ]
        windows = np.stack([self.stream.ids[begin : begin + self.width + 1] for begin in begins]).astype(np.int64)
        tokens, targets = torch.from_numpy(windows[:, :-1].copy()), torch.from_numpy(windows[:, 1:].copy())
        if not self.stream.has_documents:
            return PackedBatch(tokens, targets, torch.empty(0, dtype=torch.long))
        return PackedBatch(tokens, targets, (tokens == END).cumsum(1))

    def _begins(self, epoch: int) -> Numbers:
        """Where the windows of an epoch begin, in their order."""
        if self._drawn is None or self._drawn[0] != epoch:
            random = np.random.default_rng([self.seed, epoch])
            shift = random.integers(self._spare + 1)
            self._drawn = epoch, random.permutation(self.n_windows) * self.width + shift
        return self._drawn[1]


def _chunks(texts: Iterable[Text]) -> Iterator[list[Text]]:
    iterator = iter(texts)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk
