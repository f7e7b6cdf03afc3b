"""Data options of tasks whose corpus may be larger than memory: it is divided into parts, which are tokenized apart.

`glassformer prepare` writes such a corpus into a folder, and `train --prepared` reads it (`tasks/prepare_corpus.py`).
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from typing_extensions import override

from glassformer.data.readers.file_parts import FilePart
from glassformer.tasks.configs.mixture import read_mix
from glassformer.tasks.configs.shared import Example, TaskData

LARGE_BYTES = 1 << 28
"""Size of the training files in bytes above which `train` tokenizes them in parts."""


@dataclass(frozen=True, kw_only=True)
class DividedData(TaskData[Example]):
    """Base class of data options that can be divided into parts and mixed by weights."""

    SOURCE_FIELDS = TaskData.SOURCE_FIELDS | {"prepared", "mix"}
    TOKENS: ClassVar[Literal["pairs", "stream"]]
    """Form of the tokenized data: sentence pairs, or one stream of documents."""

    prepared: Path | None = None
    """Folder of tokenized data that glassformer prepare wrote, to train on instead of files."""
    mix: str = ""
    """Shares of the training batches by name, such as news=0.7,web=0.3: a name selects the training files whose name
    begins with it, or that are in a folder of this name."""

    def __post_init__(self) -> None:
        super().__post_init__()
        read_mix(self.mix)
        if self.prepared is None:
            return
        for name in ("corpus", *self.FILE_FIELDS):
            if given := getattr(self, name):
                shown = given if isinstance(given, str) else given[0]
                raise ValueError(
                    f"--prepared {self.prepared} and --{name.replace('_', '-')} {shown}: expected one of them"
                )

    @abstractmethod
    def parts(self, n_bytes: int) -> list[FilePart]:
        """Return the training data in parts of about `n_bytes`."""

    @abstractmethod
    def read_part(self, part: FilePart) -> Iterable[Any]:
        """Return the examples of a part. Its attribute `skipped`, if it has one, counts the bad records."""

    @abstractmethod
    def held_out_text(self, example: Any) -> str | None:
        """Return the text whose hash decides whether an example is for validation; None for an example that is not."""

    @abstractmethod
    def example_of(self, record: Mapping[str, Any]) -> Example:
        """Return an example from a record that `record_of` made."""

    @abstractmethod
    def record_of(self, example: Any) -> dict[str, str]:
        """Return an example as a JSON object."""

    def is_large(self) -> bool:
        """Whether the training files are tokenized in parts: they are large, or mixed."""
        if self.corpus or self.prepared is not None:
            return False
        return bool(self.mix) or sum(map(_size, self.training_files())) > LARGE_BYTES

    def original(self) -> Self:
        """Return the options with which the folder `prepared` was made; these options if there is none."""
        if self.prepared is None:
            return self
        from glassformer.tasks.tokenized_corpus import TokenizedCorpus

        found: Self = TokenizedCorpus(self.prepared).data_options(type(self))
        return found

    @override
    def is_given(self) -> bool:
        return self.prepared is not None or super().is_given()

    @override
    def settings(self) -> dict[str, Any]:
        return super().settings() if self.prepared is None else self.original().settings()

    @override
    def training_files(self) -> list[Path]:
        return super().training_files() if self.prepared is None else self.original().training_files()

    @override
    def validation_files(self) -> list[Path]:
        return super().validation_files() if self.prepared is None else self.original().validation_files()


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size if path.is_file() else 0
