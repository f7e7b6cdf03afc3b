"""Read a tokenized corpus in shards, as `prepare_corpus.py` wrote it. Importing this module does not import torch."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.base.checks import shown
from glassformer.checkpoint.safe_files import CorruptFolderError, read_json_object, sha256
from glassformer.tasks.configs.corpus_size import CorpusSize
from glassformer.tasks.configs.mixture import read_mix
from glassformer.text import Tokenizer
from glassformer.training.fingerprints import PREPARED

if TYPE_CHECKING:
    from glassformer.data.batching.mixed_batches import MixedBatches
    from glassformer.data.batching.packed_windows import PackedBatches
    from glassformer.data.batching.sharded_pair_batches import ShardedPairBatches
    from glassformer.data.batching.stream_shards import StreamShards

VALID = "valid.jsonl"
FORMAT = 1
PLAN = "plan.json"
"""The file of a folder whose preparation has begun: its options and its units of work."""
REMAKE = "run glassformer prepare again, which makes it anew"
RESTORE = "restore it, or prepare the data in a new folder"
"""Advice about a file that has changed."""


class TokenizedCorpus:
    """A tokenized corpus in a folder: its shards, its tokenizer, its validation examples and some counts.

    Opening it reads one file, verifies the tokenizer, and compares the sizes of the shards, whatever the size of the
    corpus.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        if not folder.is_dir():
            raise FileNotFoundError(f"--prepared {folder}: no such folder: expected one that glassformer prepare wrote")
        if not (folder / PREPARED).is_file():
            if (folder / PLAN).is_file():
                raise ValueError(
                    f"{folder} is not complete: run glassformer prepare again, or wait for its other parts"
                )
            raise CorruptFolderError(
                f"{folder / PREPARED} is missing: expected a folder that glassformer prepare wrote"
            )
        try:
            self._about = read_json_object(folder / PREPARED)
        except CorruptFolderError as error:
            raise CorruptFolderError(f"{error}: {REMAKE}") from error
        if self._about.get("format") != FORMAT:
            raise CorruptFolderError(
                f"{folder / PREPARED} has format {shown(self._about.get('format'))}, expected {FORMAT}: prepare the "
                "data again"
            )
        try:
            self._read_about()
        except (KeyError, TypeError, AttributeError) as error:
            wrong = f"{folder / PREPARED} lacks what glassformer prepare writes ({type(error).__name__}: {error})"
            raise CorruptFolderError(f"{wrong}: {REMAKE}") from error

    def _read_about(self) -> None:
        """Read the entries of `prepared.json`, and check the files that it lists."""
        check_digests(self.folder, self._about.get("tokenizers", {}))
        self._check({"folder": "", "sizes": self._about.get("sizes", {})})
        self.task: str = self._about["task"]
        self.options: dict[str, Any] = self._about["options"]
        """The options with which it was made, by dotted name."""
        self.size = CorpusSize(*self._about["size"])
        self.n_long: int = self._about["n_long"]
        self.skipped = Counter[str](self._about["skipped"])
        self.has_documents: bool = self._about["has_documents"]
        self.versions: list[list[dict[str, Any]]] = self._about["versions"]
        """The shards of each version of the corpus: folder, name of its share of the mix, and sizes of its files."""
        for version in self.versions:
            for shard in version:
                self._check(shard)

    def _check(self, shard: dict[str, Any]) -> None:
        for name, size in shard["sizes"].items():
            file = self.folder / shard["folder"] / name
            found = file.stat().st_size if file.is_file() else None
            if found != size:
                had = "is missing" if found is None else f"has {found:,} bytes"
                raise CorruptFolderError(f"{file} {had}, expected {size:,} bytes: {REMAKE}")

    def data_options(self, kind: type[Any]) -> Any:
        """Return the data options with which it was made, as an instance of the class `kind`."""
        return kind(**{name[5:]: value for name, value in self.options.items() if name.startswith("data.")})

    def tokenizer(self, name: str = "tokenizer.json") -> Tokenizer:
        """Return the tokenizer that is stored as `name`."""
        return Tokenizer.load(self.folder / name)

    def valid_examples(self, data: Any) -> list[Any]:
        """Return the validation examples, which `data`, the task's data options, makes from records."""
        return [data.example_of(json.loads(line)) for line in read_valid_lines(self.folder)]

    def shards(self, version: int = 0) -> dict[str, list[Path]]:
        """Return the folders of the shards by the name of their share of the mix; the name is "" without a mix."""
        found: dict[str, list[Path]] = {}
        for shard in self.versions[version]:
            found.setdefault(shard["mix"], []).append(self.folder / shard["folder"])
        return found

    def weights(self, mix: str) -> dict[str, float]:
        """Return the weight of each share. `mix` replaces the weights with which the corpus was made."""
        weights = read_mix(mix or self.options.get("data.mix", ""))
        names = list(self.shards())
        if weights and weights.keys() != set(names):
            raise ValueError(
                f"--mix {mix or self.options['data.mix']}: expected the names with which {self.folder} was prepared: "
                f"{', '.join(filter(None, names)) or 'none'}"
            )
        return weights

    def pair_batches(
        self, version: int, *, max_tokens: int, seed: int, mix: str = ""
    ) -> "ShardedPairBatches | MixedBatches[Any]":
        """Return the training batches of sentence pairs, mixed if there is a mix."""
        from glassformer.data.batching.mixed_batches import MixedBatches
        from glassformer.data.batching.sharded_pair_batches import ShardedPairBatches

        made = {
            name: ShardedPairBatches(shards, max_tokens=max_tokens, seed=seed)
            for name, shards in self.shards(version).items()
        }
        weights = self.weights(mix)
        return MixedBatches(made, weights, seed=seed) if weights else made[""]

    def window_batches(
        self, context: int, *, max_tokens: int, seed: int, mix: str = ""
    ) -> "PackedBatches | MixedBatches[Any]":
        """Return the training batches of windows of `context` tokens, mixed if there is a mix."""
        from glassformer.data.batching.mixed_batches import MixedBatches
        from glassformer.data.batching.packed_windows import PackedBatches
        from glassformer.data.batching.stream_shards import StreamShards

        made = {
            name: PackedBatches(StreamShards(shards), context, max_tokens, seed)
            for name, shards in self.shards().items()
        }
        weights = self.weights(mix)
        return MixedBatches(made, weights, seed=seed) if weights else made[""]

    def stream(self) -> "StreamShards":
        """Return all shards as one stream, for its counts."""
        from glassformer.data.batching.stream_shards import StreamShards

        return StreamShards([shard for shards in self.shards().values() for shard in shards])


def check_digests(folder: Path, digests: Mapping[str, str]) -> None:
    """Raise CorruptFolderError unless the files in `folder` have these SHA-256 sums, given by name."""
    for name, digest in digests.items():
        file = folder / name
        if not file.is_file() or sha256(file) != digest:
            had = "has changed since the data was tokenized" if file.is_file() else "is missing"
            raise CorruptFolderError(f"{file} {had}: {RESTORE}")


def read_valid_lines(folder: Path) -> list[str]:
    """Return the lines of `valid.jsonl` in a folder, one JSON object each.

    Only a line feed ends a line: JSON may contain other line separators of Unicode, such as U+2028.
    """
    return (folder / VALID).read_text(encoding="utf-8").split("\n")[:-1]
