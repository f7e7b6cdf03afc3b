"""What every task is made of. Each has one file beside this one; another one is one more.

A `Task` is how something is learned: its data, its model, its loss. A `Tool` is what comes of it: a model with its
tokenizer that does the work, scores itself, and lives in a folder.
"""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from glassformer.checkpoint import OutputExistsError
from glassformer.checkpoint.output_folder import check_output
from glassformer.metrics.scores import Scores
from glassformer.models.transformer import Model
from glassformer.progress import Step, reporting
from glassformer.tasks.card import (
    CardFacts,
    code,
    in_short,
    size_in_words,
    training_files,
    validation_files,
    write_card,
)
from glassformer.tasks.choose import choose, in_words, measure_corpus
from glassformer.tasks.configs.defaults import Corpus, Size
from glassformer.tasks.configs.options import make_config
from glassformer.tasks.configs.shared import Example, Splits, TaskConfig
from glassformer.tasks.recipes import recipe_text
from glassformer.tasks.registry import TASK as TASK
from glassformer.tasks.runs import train_run
from glassformer.tasks.tool import Tool as Tool
from glassformer.text import Tokenizer
from glassformer.training.callbacks import Callbacks, OnEvaluation, OnSave, OnStep, tell_model_saved
from glassformer.training.fingerprints import fingerprint_examples, fingerprint_model, fingerprint_paths, paths_of
from glassformer.training.gradients import TrainBatch
from glassformer.training.lora import add_adapters, merge_adapters, n_trained
from glassformer.training.pilot import using_threads
from glassformer.training.precision import choose_device
from glassformer.training.run_folder import RunFolder, open_run
from glassformer.training.state import TrainState
from glassformer.training.trainer import Batches

Batch = TypeVar("Batch", bound=TrainBatch)
AnyModel = TypeVar("AnyModel", bound=Model)
SplitName = Literal["validation", "test"]
MORE_DATA = "expected files for it (--valid), or more data: one example in 25 is kept for it"


class Prepared(NamedTuple, Generic[Example, Batch]):
    """A task that is ready to train."""

    tool: Tool[Example]
    batches: Batches[Batch]
    evaluate: Callable[[], dict[str, float]]
    """The scores of a validation."""
    test: Sequence[Example]
    """What the card's scores are of."""
    notes: Sequence[str] = ()
    """What is told before the first update: sizes, balance, what was cut."""
    fresh: Collection[str] = ()
    """The parameters that the model to begin with did not bring: a new head's."""
    n_train: int = 0
    """Examples to learn from."""
    is_test: bool = False
    """Whether `test` holds test examples, rather than validation examples again."""
    validation: str = ""
    """On what and how `evaluate` scores: "greedy, 500 validation pairs"."""


class Task(ABC, Generic[Example, Batch]):
    """How a model learns to do something."""

    name: ClassVar[str]
    """As on the command line."""
    title: ClassVar[str]
    """Of the model card."""
    unit: ClassVar[str] = "examples"
    """The name of the task's examples, in the plural."""
    sample_line: ClassVar[str] = "a line of text"
    """A line that a model of this task reads, for the model card."""
    Config: ClassVar[type[TaskConfig]]
    Data: ClassVar[type[Any]]
    Tool: ClassVar[type[Tool[Any]]]

    def __init__(self, config: Any):
        if not isinstance(config, self.Config):
            raise TypeError(
                f"{type(self).__name__} was given a {type(config).__name__}: expected a {self.Config.__name__}"
            )
        self.config: Any = config
        self.given: Mapping[str, Any] | None = None
        """What the user gave, by dotted name, if the rest is to be chosen; None if `config` is all that counts."""
        self.size: Size = "auto"

    @classmethod
    def with_chosen_defaults(cls, given: Mapping[str, Any], size: Size = "auto") -> Self:
        """A task that chooses what is not given, when it trains: for its data and for the time there is."""
        task = cls(make_config(cls.Config, given))
        task.given, task.size = given, size
        return task

    @abstractmethod
    def prepare(self, run: RunFolder) -> Prepared[Example, Batch]:
        """Read the data, make the tokenizer and the model, or take what the run keeps of an earlier start."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The sum of the losses of a batch's answers."""

    @abstractmethod
    def flops(self, model: Model, batch: Batch) -> int:
        """Operations of training on a batch."""

    def unused(self) -> set[str]:
        """Settings of training or tokenizer that other tasks have a use for, and this one has not."""
        return set()

    def train(
        self,
        out: Path | str,
        *,
        restart: bool = False,
        accept_changes: bool = False,
        overwrite: bool = False,
        began: float | None = None,
        on_step: OnStep | None = None,
        on_evaluation: OnEvaluation | None = None,
        on_save: OnSave | None = None,
    ) -> Scores:
        """Train into the model folder `out`. What the run needs to resume is in `out.run` beside it.

        Called again with the same config and data, it resumes. Returns the scores on the test examples, or on the
        validation examples where there are none.

        Args:
            out: A new or empty folder, or one that this run wrote before.
            restart: Discard the run in `out.run` and start anew.
            accept_changes: Continue from the newest checkpoint with other settings or other data; `--continue` on the
                command line.
            overwrite: Replace a model in `out` that another run wrote. Other files are never replaced.
            began: When the command began, by `time.perf_counter`, so that `minutes` counts from there; None is now.
            on_step: Called after each update. If a callback raises, a checkpoint is saved and the run can be resumed.
            on_evaluation: Called after each validation.
            on_save: Called after each new checkpoint, and after the model was saved.
        """
        began = time.perf_counter() if began is None else began
        if restart and accept_changes:
            raise ValueError("--restart discards the run and --continue keeps it: expected one of them")
        folder = Path(out).resolve()
        self._check_apart(folder)
        with reporting(), open_run(folder, restart=restart) as run, using_threads(0):
            check_output(folder, overwrite=overwrite, owner=run.id)
            callbacks: Callbacks = {"on_step": on_step, "on_evaluation": on_evaluation, "on_save": on_save}
            return self._train(folder, run, callbacks, accept_changes=accept_changes, overwrite=overwrite, began=began)

    def _check_apart(self, out: Path) -> None:
        """Raise if the output would become part of the input, or replace it."""
        for name, path in paths_of(self.config.data).items():
            # Of --folder only the files of a corpus are read, which have fixed names.
            if name != "folder" and path.is_dir() and out.is_relative_to(path.resolve()):
                raise ValueError(
                    f"--out {out} is inside the data folder {path}: the next run would read the model as data. "
                    "Choose a folder outside it"
                )
        begun = self.config.start_from
        if begun is not None and out == begun.resolve():
            raise ValueError(f"--out {out} is the model that --from names: expected another folder")

    def inputs(self) -> dict[str, str]:
        """A fingerprint of each input, by content: data files, a named corpus, the pretrained model."""
        data = self.config.data
        if getattr(data, "corpus", ""):
            found = {
                f"data.corpus ({side})": fingerprint_examples(some) for side, some in data.splits()._asdict().items()
            }
        else:
            found = fingerprint_paths(data)
        if self.config.start_from is not None and self.config.start_from.exists():
            found["start_from"] = fingerprint_model(self.config.start_from)
        return found

    def _train(
        self, out: Path, run: RunFolder, callbacks: Callbacks, *, accept_changes: bool, overwrite: bool, began: float
    ) -> Scores:
        choose_device(self.config.train.device)  # an unknown one is refused before anything is read
        chosen = self._choose_defaults(run, began)
        train = self.config.train
        for name in self.unused():
            value = getattr(train, name, None) or getattr(self.config.tokenizer, name, None)
            if value:
                raise ValueError(f"{name}={value}: {self.name} has no use for it, expected none")
        if train.lora_rank and self.config.start_from is None:
            raise ValueError(
                f"lora_rank={train.lora_rank} without a model to adapt: expected one to begin with (--from)"
            )
        with Step("reading the data"):
            inputs = self.inputs()
        run.bind(self.name, self.config, inputs, accept_changes=accept_changes)
        torch.manual_seed(train.seed)
        torch.set_num_threads(train.threads or torch.get_num_threads())
        ready = self.prepare(run)
        model, notes = ready.tool.model, [*chosen, *ready.notes]
        model.set_gradient_checkpointing(train.gradient_checkpointing)
        if train.lora_rank:
            adapted = add_adapters(model, train, ready.fresh)
            share = n_trained(model) / model.n_parameters()
            notes.append(f"{len(adapted)} matrices have adapters of rank {train.lora_rank}: {share:.1%} of all learns")
        usual: TaskConfig = self.Config()  # type: ignore[call-arg]  # every task has a default for each part
        state = train_run(
            run,
            model,
            train,
            batches=ready.batches,
            loss=lambda module: partial(self.loss, module),
            evaluate=ready.evaluate,
            flops=partial(self.flops, model),
            notes=notes,
            score=ready.tool.score,
            test=ready.test,
            began=began,
            warmup_is_given=train.warmup != usual.train.warmup if self.given is None else "train.warmup" in self.given,
            validation=ready.validation,
            callbacks=callbacks,
        )
        if train.lora_rank:
            merge_adapters(model)
        split: SplitName = "test" if ready.is_test else "validation"
        about = self.scored_on(split, len(ready.test), ready.tool.scoring_method())
        with Step("final scores"):
            scores = replace(ready.tool.score(ready.test), about=about)
        card = self.card(out, ready, state, scores)
        save = partial(ready.tool.save, card=card, data=self.config.data, owner=run.id)
        try:
            save(out, overwrite=overwrite)
        except OutputExistsError as error:  # files were put there while the model trained
            save(run.path / "model", overwrite=True)
            raise OutputExistsError(f"{error}. The trained model is in {run.path / 'model'}") from error
        tell_model_saved(callbacks, state.update, out, scores.values)
        return scores

    def _choose_defaults(self, run: RunFolder, began: float) -> list[str]:
        """Complete the config, if that is asked for, and say how. A resumed run takes what it chose before."""
        given = self.given
        if given is None:
            return []

        def make() -> dict[str, Any]:
            with Step("measuring the data"):
                corpus = self.corpus()
            return choose(self.config, given, corpus, size=self.size, began=began)

        chosen = run.keep_json("defaults.json", make)
        self.config = make_config(self.Config, {**chosen, **given})
        return [in_words(chosen, given)]

    def corpus(self) -> Corpus:
        """How much there is to learn from."""
        return measure_corpus(self.sides(example) for example in self.config.data.splits().train)

    @abstractmethod
    def sides(self, example: Example) -> tuple[str, str]:
        """What a model reads of an example, and what it writes; the second is empty for an encoder."""

    @classmethod
    def demo(cls) -> Any:
        """The config that learns from a corpus that comes with it, in at most three minutes on two cores."""
        raise NotImplementedError

    def baseline(self, splits: Splits[Example]) -> tuple[str, Scores]:
        """What somebody scores who has learned next to nothing, and how: the commonest answer, say."""
        raise NotImplementedError

    def show(self, example: Example) -> tuple[str, str]:
        """An example for people: the line that its tool reads, and the line that is the right answer."""
        raise NotImplementedError

    def scored_on(self, split: SplitName, count: int, method: str = "") -> str:
        """On what and how scores were computed: "beam 4, 511 test pairs of interface-texts"."""
        data = self.config.data
        named = validation_files(data) if split == "validation" else []
        if getattr(data, "corpus", ""):
            origin = f"of {data.corpus}"
        elif named:
            origin = f"from {in_short(path.name for path in named)}"
        else:
            origin = f"held out from {in_short(path.name for path in training_files(data))}"
        return f"{method}, " * bool(method) + f"{count:,} {split} {self.unit} {origin}"

    def card(self, out: Path, ready: Prepared[Example, Batch], state: TrainState, scores: Scores) -> str:
        """The model card, in Markdown: data, size, scores, use and recipe."""
        model: Model = ready.tool.model
        began = self.config.start_from
        facts = [
            ("task", code(self.name)),
            *self.data_facts(),
            (f"training {self.unit}", f"{ready.n_train:,}"),
            ("model", size_in_words(model.config, model.kind, model.n_parameters())),
            *([] if began is None else [("initialized from", code(began))]),
        ]
        return write_card(
            CardFacts(
                title=self.title,
                task=self.name,
                facts=facts,
                state=state,
                scores=scores,
                scored_on=scores.about,
                validation=ready.validation,
                is_test=ready.is_test,
                folder=out.name,
                sample_line=self.sample_line,
                recipe=recipe_text(self.config),
            )
        )

    def data_facts(self) -> list[tuple[str, str]]:
        """What the model learned from, as rows of the card."""
        data = self.config.data
        if getattr(data, "corpus", ""):
            return [("corpus", code(data.corpus))]
        named = validation_files(data)
        valid = in_short(map(code, named)) if named else "held out from the training files"
        return [("training files", in_short(map(code, training_files(data)))), ("validation files", valid)]


def kept_tokenizer(run: RunFolder | None, make: Callable[[], Tokenizer], name: str = "tokenizer.json") -> Tokenizer:
    """The tokenizer that a run keeps. A fresh run makes it; so does a caller without a run."""
    if run is None:
        return make()
    return Tokenizer.from_json(run.keep(name, lambda: make().to_json()), where=str(run.path / name))


def passed_over(skipped: Counter[str]) -> list[str]:
    """What is told of the bad records that were passed over: nothing where there are none."""
    reasons = ", ".join(f"{count:,} with {problem}" for problem, count in skipped.most_common())
    return [f"passed over {skipped.total():,} bad records: {reasons}"] if skipped else []
