"""The base class of all tasks, such as translation or tagging. Importing it does not import torch.

A task is one module of this package: the options of its data, its config, and a subclass of `Task`, mostly by way of
`EncoderTask`, `Seq2SeqTask` or `DecoderTask`. `task_registry.py` finds tasks by name. The trained model is used through
the task's pipeline in `glassformer.pipelines`; `pipelines/pipeline_registry.py` maps task names to pipelines.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, get_type_hints

from glassformer.base.plurals import counted
from glassformer.metrics.scores import Scores
from glassformer.pipelines.pipeline_registry import pipeline_named
from glassformer.tasks.card import code, in_short
from glassformer.tasks.configs.corpus_size import CorpusSize
from glassformer.tasks.configs.defaults import Size
from glassformer.tasks.configs.divided_data import DividedData
from glassformer.tasks.configs.shared import Example, Splits, TaskConfig
from glassformer.tasks.configs.task_options import make_config
from glassformer.tasks.evaluation import EvalOptions, ScoreReport, describe_scored
from glassformer.tasks.prepared import Initialized, Prepared, SplitName, check_texts
from glassformer.tasks.tokenized_corpus import TokenizedCorpus
from glassformer.training.fingerprints import fingerprint_examples, fingerprint_model, fingerprint_paths

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.models.transformer import Model
    from glassformer.training.callbacks import OnEvaluation, OnSave, OnStep
    from glassformer.training.run_folder import RunFolder

Batch = TypeVar("Batch")


class Task(ABC, Generic[Example, Batch]):
    """Base class of a training task: it defines the data, the model, the loss and the scores."""

    name: ClassVar[str]
    """The task's name on the command line."""
    title: ClassVar[str]
    """Title of the model card."""
    unit: ClassVar[str] = "examples"
    """Name of the task's examples in the plural, such as "pairs"."""
    sample_line: ClassVar[str] = "a line of text"
    """An example of an input line, for the model card."""
    Config: ClassVar[type[TaskConfig]]
    """Class of the task's config."""
    EvalOptions: ClassVar[type[EvalOptions]] = EvalOptions
    """Class of the options that `glassformer eval` has for models of this task only."""

    def __init__(self, config: Any):
        if not isinstance(config, self.Config):
            raise TypeError(
                f"{type(self).__name__} was given a {type(config).__name__}: expected a {self.Config.__name__}"
            )
        self.config: Any = config
        self.given: Mapping[str, Any] | None = None
        """Options that the user gave, by dotted name; `train` then chooses the remaining ones. None if `config` is
        complete."""
        self.size: Size = "auto"
        """Size of the model, for the choice of the remaining options."""
        self.tokenized: TokenizedCorpus | None = None
        """The training data, if it was tokenized in shards: with `prepare`, or because it is large."""

    @classmethod
    def data_class(cls) -> type[Any]:
        """Return the class of the task's data options, the field `data` of its config."""
        found: type[Any] = get_type_hints(cls.Config)["data"]
        return found

    @classmethod
    def with_chosen_defaults(cls, given: Mapping[str, Any], size: Size = "auto") -> Self:
        """Return a task with the options `given`, by dotted name, such as "train.lr".

        When it trains, it chooses the remaining options for its data, its time and this machine.
        """
        task = cls(make_config(cls.Config, given))
        task.given, task.size = given, size
        return task

    @abstractmethod
    def initialize(self, train: Iterable[Example], run: "RunFolder | None" = None) -> Initialized:
        """Return the pipeline with a new model and tokenizer, or with those of `config.base_model`.

        `train` are the training examples, on which a new tokenizer is trained. A resumed run uses the tokenizer that it
        stored. If `run` is None, nothing is stored.
        """

    @abstractmethod
    def prepare(self, run: "RunFolder") -> Prepared[Example, Batch]:
        """Read the data, initialize the pipeline and make the batches. A resumed run reuses its tokenized data."""

    @abstractmethod
    def loss(self, model: Any, batch: Batch) -> "Tensor":
        """Return the training loss of a batch, summed over its targets."""

    @abstractmethod
    def flops(self, model: "Model", batch: Batch) -> int:
        """Return the number of floating-point operations of a forward and backward pass over a batch."""

    @abstractmethod
    def sides(self, example: Example) -> tuple[str, str]:
        """Return the text that the encoder reads and the text that the decoder writes, to measure the corpus size.

        The first is empty if the model has no encoder, the second if it has no decoder.
        """

    def unused(self) -> set[str]:
        """Return the names of training or tokenizer options without effect on this task; `train` refuses them."""
        return set()

    def train(
        self,
        out: Path | str,
        *,
        restart: bool = False,
        accept_changes: bool = False,
        overwrite: bool = False,
        began: float | None = None,
        on_step: "OnStep | None" = None,
        on_evaluation: "OnEvaluation | None" = None,
        on_save: "OnSave | None" = None,
    ) -> Scores:
        """Train a model and save it in the folder `out`. The folder `out.run` next to it holds the checkpoints.

        Called again with the same config and data, it resumes an interrupted run. Returns the scores on the test
        examples, or on the validation examples if there is no test split.

        Args:
            out: A new or empty folder, or one that this run wrote before.
            restart: Discard the run in `out.run` and start anew.
            accept_changes: Continue from the newest checkpoint with other settings or other data; `--continue` on the
                command line.
            overwrite: Replace a model in `out` that another run wrote. Other files are never replaced.
            began: Value of `time.perf_counter` when the command began, from which `minutes` counts; None is now.
            on_step: Called after each update. If a callback raises, a checkpoint is saved and the run can be resumed.
                `glassformer.StopTraining` ends the training and keeps the model.
            on_evaluation: Called after each validation.
            on_save: Called after each new checkpoint, and after the model was saved.
        """
        from glassformer.tasks.train_task import train_task

        return train_task(
            self,
            Path(out),
            callbacks={"on_step": on_step, "on_evaluation": on_evaluation, "on_save": on_save},
            restart=restart,
            accept_changes=accept_changes,
            overwrite=overwrite,
            began=began,
        )

    @classmethod
    def evaluate(cls, pipeline: Any, data: Any, options: Any) -> ScoreReport:
        """Return the scores of a trained pipeline of this task on the examples of the data options `data`.

        `options` is an instance of the task's `EvalOptions`.
        """
        examples = data.examples()
        scored_on = describe_scored(data, examples, cls.unit, pipeline.scoring_method())
        return ScoreReport({"": pipeline.score(examples)}, scored_on)

    def inputs(self) -> dict[str, str]:
        """Return a fingerprint (hash of the content) of each input: data files or corpus, and the model of `--from` or
        `--grow-from`."""
        data = self.config.data
        if data.corpus:
            found = {
                f"data.corpus ({side})": fingerprint_examples(some) for side, some in data.splits()._asdict().items()
            }
        else:
            found = fingerprint_paths(data)
        if self.config.start_from is not None and self.config.start_from.exists():
            found["start_from"] = fingerprint_model(self.config.start_from)
        if self.config.grow_from is not None and self.config.grow_from.exists():
            found["grow_from"] = fingerprint_model(self.config.grow_from)
        return found

    def corpus(self) -> CorpusSize:
        """Return the numbers of examples and characters of the training data, from which defaults are chosen.

        Those of large data are estimated. Raises ValueError if there is no example to learn from.
        """
        data = self.config.data
        if isinstance(data, DividedData):
            if data.prepared is not None:
                return TokenizedCorpus(data.prepared).size
            if data.is_large():
                from glassformer.tasks.prepare_corpus import estimate_size

                return estimate_size(data, self.sides)
        splits = data.splits()
        found = CorpusSize.measure(self.sides(example) for example in splits.train)
        if not found.examples:
            check_texts(data, (), list(islice(splits.valid, 1)))
        return found

    @classmethod
    def demo(cls) -> Any:
        """Return the config of `glassformer demo TASK`: a built-in corpus, at most three minutes on two cores."""
        raise NotImplementedError

    def baseline(self, splits: Splits[Example]) -> tuple[str, Scores]:
        """Return the name of a simple baseline, such as the most frequent class, and its scores on the test split.

        Without a test split they are on the validation split.
        """
        raise NotImplementedError

    def show(self, example: Example) -> tuple[str, str]:
        """Return an example as two lines of text: what a user gives to the pipeline, and the correct answer."""
        raise NotImplementedError

    def scored_on(self, split: SplitName, count: int, method: str = "") -> str:
        """Return a description of scores on `count` examples: "beam 4, 511 test pairs of interface-texts".

        `method` is the decoding method; it is left out if empty.
        """
        data = self.config.data
        named = data.validation_files() if split == "validation" else []
        if data.corpus:
            origin = f"of {data.corpus}"
        elif named:
            origin = f"from {in_short(path.name for path in named)}"
        else:
            origin = f"held out from {in_short(path.name for path in data.training_files())}"
        return f"{method}, " * bool(method) + f"{counted(count, f'{split} {self.unit}')} {origin}"

    def data_facts(self) -> list[tuple[str, str]]:
        """Return the table rows of the model card about the training data, each a name and a value in Markdown."""
        data = self.config.data
        if data.corpus:
            return [("corpus", code(data.corpus))]
        named = data.validation_files()
        valid = in_short(map(code, named)) if named else "held out from the training files"
        return [("training files", in_short(map(code, data.training_files()))), ("validation files", valid)]

    def pipeline_class(self) -> Any:
        """Return the class of the task's pipeline. Imports torch."""
        return pipeline_named(self.name)
