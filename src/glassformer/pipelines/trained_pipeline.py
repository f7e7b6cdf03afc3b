"""The base class of pipelines whose model was trained with Glassformer: they can be scored, saved and loaded."""

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from glassformer.base.names import no_such_model
from glassformer.checkpoint import load_model, save_model
from glassformer.checkpoint.load_errors import refusing_wrong_values
from glassformer.models.transformer import Model
from glassformer.pipelines.pipeline import Pipeline
from glassformer.pipelines.pipeline_registry import DATA_SETTINGS, PIPELINES, TASK, read_about

if TYPE_CHECKING:  # `glassformer run` imports no metrics
    from glassformer.metrics.scores import Scores

AnyModel = TypeVar("AnyModel", bound=Model)
Example = TypeVar("Example")
ModelLoader = Callable[..., Any]
"""A function that reads the model of a folder, such as `load_model` with some of its options."""


class TrainedPipeline(Pipeline, Generic[Example]):
    """A pipeline whose model was trained with Glassformer for a task. It can be scored, saved and loaded."""

    task: ClassVar[str]
    """The name of the pipeline's task in `task.json` and on the command line."""
    model: Any
    """An EncoderModel, a DecoderModel or an EncoderDecoderModel."""
    base_files: Mapping[str, str] = {}
    """Files of the pretrained model that it was fine-tuned from (`pretrained_base.py`); empty if it has a tokenizer
    that Glassformer trained."""

    @abstractmethod
    def score(self, examples: Sequence[Example]) -> "Scores":
        """Run the model on the examples and return the scores of the task, such as accuracy or BLEU."""

    @abstractmethod
    def files(self) -> dict[str, str]:
        """Return the files that `save` writes next to the weights, as file name -> contents.

        They are the tokenizer's files and, for models that generate text, the generation settings.
        """

    def scoring_method(self) -> str:
        """Describe how `score` generates text, such as "greedy" or "beam 4"; "" if it generates none."""
        return ""

    def settings(self) -> dict[str, Any]:
        """Return what `task.json` stores about the pipeline, as JSON values.

        These are the keyword arguments of its constructor, and for an encoder also the origin of the tokenizer.
        """
        return {}

    @classmethod
    def from_folder(cls, folder: Path | str, read_model: ModelLoader = load_model) -> Self:
        """Load a pipeline that `save` wrote to a folder. Errors about its files name the file or the folder.

        `read_model` reads the model, which may be prepared for inference while it is read.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise FileNotFoundError(no_such_model(folder))
        with refusing_wrong_values(folder):
            return cls.read_folder(folder, read_model)

    @classmethod
    @abstractmethod
    def read_folder(cls, folder: Path, read_model: ModelLoader) -> Self:
        """Load a pipeline of this class. Users call `from_folder` instead.

        A subclass implements this: it calls `open_folder`, reads the tokenizer's files and calls the constructor.
        """

    @classmethod
    def open_folder(
        cls, folder: Path, kind: type[AnyModel], read_model: ModelLoader = load_model
    ) -> tuple[AnyModel, dict[str, Any]]:
        """Return the model of a folder, and the pipeline's settings from `task.json`.

        Raise ValueError if the folder is of another task, or if its model is not an instance of the class `kind`.
        """
        about = read_about(folder)
        if about.pop("task") != cls.task:
            raise ValueError(f"{folder} was not trained for {cls.task}: glassformer info shows what it is")
        for key in DATA_SETTINGS:
            about.pop(key, None)
        model = read_model(folder)
        if not isinstance(model, kind):
            raise ValueError(f"{folder} holds a model of kind {model.kind!r}: expected {kind.kind!r}")
        return model.eval(), about

    def save(
        self, folder: Path | str, card: str = "", data: Any = None, *, overwrite: bool = False, owner: str = ""
    ) -> None:
        """Write the model folder. `card` is the text of its README.md; the default names the task and the command.

        `data` is the config of the training data; its settings are stored for `glassformer eval`. `owner` identifies
        the training run. An existing model folder is replaced only with `overwrite`, or if it has the same `owner`.
        """
        about = {"task": self.task, **self.settings(), **({"data": {}} if data is None else data.settings())}
        text = json.dumps(about, indent=2, ensure_ascii=False)
        files = {**self.files(), TASK: text, "README.md": card or self._short_card(Path(folder).resolve().name)}
        save_model(folder, self.model, files, overwrite=overwrite, owner=owner)

    def _short_card(self, name: str) -> str:
        called = PIPELINES[self.task].called
        return (
            f"# {name}\n\nThis folder holds {called}, saved with Glassformer. Use it:\n\n    glassformer run {name}\n"
        )
