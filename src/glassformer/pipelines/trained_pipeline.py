"""The base class of pipelines whose model was trained by a task here: score, save and load."""

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
from glassformer.pipelines.pipeline_registry import DATA_SETTINGS, TASK, read_about

AnyModel = TypeVar("AnyModel", bound=Model)
Example = TypeVar("Example")


class TrainedPipeline(Pipeline, Generic[Example]):
    """A pipeline whose model was trained by a task here. It can be scored and saved."""

    task: ClassVar[str]
    """The name of its task on the command line."""
    model: Any
    """An EncoderModel, a DecoderModel or an EncoderDecoderModel."""

    @abstractmethod
    def score(self, examples: Sequence[Example]) -> Scores:
        """Return the scores of the model on these examples."""

    @abstractmethod
    def files(self) -> dict[str, str]:
        """Return the texts of the files beside the model by name: the tokenizer and the generation settings."""

    def scoring_method(self) -> str:
        """Describe how `score` generates text: "greedy", "beam 4"; empty if nothing is generated."""
        return ""

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments of the constructor, as JSON values. `task.json` stores them."""
        return {}

    @classmethod
    def from_folder(cls, folder: Path | str) -> Self:
        """Load the pipeline of a model folder. An error names the file that is wrong."""
        folder = Path(folder)
        if not folder.is_dir():
            raise FileNotFoundError(no_such_model(folder))
        with refusing_wrong_values(folder):
            return cls.read_folder(folder)

    @classmethod
    @abstractmethod
    def read_folder(cls, folder: Path) -> Self:
        """Load a pipeline of this class: `open_folder`, then the tokenizer's files. `from_folder` calls it."""

    @classmethod
    def open_folder(cls, folder: Path, kind: type[AnyModel]) -> tuple[AnyModel, dict[str, Any]]:
        """Load the model of a folder that this class saved, and the pipeline's settings."""
        about = read_about(folder)
        if about.pop("task") != cls.task:
            raise ValueError(f"{folder} was not trained for {cls.task}: glassformer info shows what it is")
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
