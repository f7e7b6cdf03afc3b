"""A trained model with its tokenizer, in use: what every task makes."""

import json
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from glassformer.base.names import no_such_model
from glassformer.checkpoint import load_model, save_model
from glassformer.checkpoint.load_errors import refusing_wrong_values
from glassformer.metrics.scores import Scores
from glassformer.models.transformer import Model
from glassformer.pipelines.pipeline import Pipeline
from glassformer.pipelines.task_file import TASK, read_about

DATA_SETTINGS = ("data", "language_origins")
"""Entries of `task.json` about the data; they are no settings of the tool."""
AnyModel = TypeVar("AnyModel", bound=Model)
Example = TypeVar("Example")


class TrainedPipeline(Pipeline, Generic[Example]):
    """A trained model in use."""

    task: ClassVar[str]
    """Its task's name, as on the command line."""
    model: Any
    """An EncoderModel, a DecoderModel or an EncoderDecoderModel."""

    @abstractmethod
    def score(self, examples: Sequence[Example]) -> Scores:
        """How well it does."""

    @abstractmethod
    def files(self) -> dict[str, str]:
        """What its folder holds beside the model: the tokenizer's files, by name."""

    def scoring_method(self) -> str:
        """How the answers that `score` counts are made: "greedy", "beam 4"; empty where there is only one way."""
        return ""

    def settings(self) -> dict[str, Any]:
        """What `from_folder` needs to know beside model and tokenizer, for JSON."""
        return {}

    @classmethod
    def from_folder(cls, folder: Path | str) -> Self:
        """The tool that was saved there. An error names the file that is wrong."""
        folder = Path(folder)
        if not folder.is_dir():
            raise FileNotFoundError(no_such_model(folder))
        with refusing_wrong_values(folder):
            return cls.read_folder(folder)

    @classmethod
    @abstractmethod
    def read_folder(cls, folder: Path) -> Self:
        """What `from_folder` does for this kind of tool: `open_folder`, then the tokenizer's files."""

    @classmethod
    def open_folder(cls, folder: Path, kind: type[AnyModel]) -> tuple[AnyModel, dict[str, Any]]:
        """The model of a folder that was saved by this tool, and the tool's settings."""
        about = read_about(folder)
        if about.pop("task") != cls.task:
            raise ValueError(f"{folder} was not trained for {cls.task}: glassformer info tells what it is")
        for key in DATA_SETTINGS:
            about.pop(key, None)
        model = load_model(folder)
        if not isinstance(model, kind):
            raise ValueError(f"{folder} holds a model of kind {model.kind!r}: expected {kind.kind!r}")
        return model.eval(), about

    def save(self, folder: Path, card: str, data: Any = None, *, overwrite: bool = False, owner: str = "") -> None:
        """Write the model folder. `data` is the config of the training data: its settings are stored for `eval`.

        An existing model folder is replaced only with `overwrite`, or if the same `owner` (a training run) wrote it.
        """
        about = {"task": self.task, **self.settings(), **({"data": {}} if data is None else data.settings())}
        text = json.dumps(about, indent=2, ensure_ascii=False)
        files = {**self.files(), TASK: text, "README.md": card}
        save_model(folder, self.model, files, overwrite=overwrite, owner=owner)
