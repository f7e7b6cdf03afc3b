"""The base class of tasks that fine-tune a decoder to answer messages. Importing it does not import torch."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from typing_extensions import override

from glassformer.base.fields import Count
from glassformer.models import ModelConfig
from glassformer.progress import say
from glassformer.tasks.configs.corpus_size import CorpusSize
from glassformer.tasks.configs.shared import Splits, TaskConfig
from glassformer.tasks.configs.small_models import small_decoder
from glassformer.tasks.decoder_task import check_fine_tuning
from glassformer.tasks.prepared import MORE_DATA, Initialized
from glassformer.tasks.task import Task
from glassformer.training.train_config import TrainConfig

if TYPE_CHECKING:
    from glassformer.data.readers.conversations import Message
    from glassformer.text.chat_training import MarkedTokens
    from glassformer.training.run_folder import RunFolder

Example = TypeVar("Example")
Batch = TypeVar("Batch")
MAX_VALID = 500
"""Largest number of examples that each validation scores."""


class ConversationData(NamedTuple, Generic[Example]):
    """The examples and the model of a task of this kind."""

    splits: Splits[Example]
    first: Example
    """The first training example, which is shown."""
    valid: list[Example]
    pipeline: Any
    """The pipeline with the model of --from."""


@dataclass(frozen=True, kw_only=True)
class ConversationConfig(TaskConfig):
    """The options that all tasks of this kind share."""

    FIRST_OPTIONS = ("data", "valid", "context", "chat_template", "lora_rank", "max_tokens")
    NEEDS_MODEL = True

    model: ModelConfig = field(default_factory=small_decoder)
    """Not used: the architecture is that of the model of --from."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            updates=1000,
            max_tokens=4096,
            lr=5e-5,
            warmup=0.06,
            schedule="linear",
            optimizer="adamw",
            beta2=0.999,
            eps=1e-8,
            weight_decay=0.01,
            label_smoothing=0.0,
        )
    )
    context: Count = 512
    """Most tokens of a conversation; longer ones are left out."""
    chat_template: Path | None = None
    """Jinja file with a chat template, for a model that has none or another one."""


class ConversationTask(Task[Example, Batch]):
    """Base class of tasks that fine-tune a pretrained decoder to answer messages."""

    sample_line = "Hello! Who are you?"
    config: Any

    @override
    def unused(self) -> set[str]:
        return {"r_drop", "word_dropout", "bpe_dropout", "tokenizer_file", "adversarial"}

    @override
    def corpus(self) -> CorpusSize:
        self._check_start()
        return super().corpus()

    @override
    def initialize(self, train: Iterable[Example], run: "RunFolder | None" = None) -> Initialized:
        from glassformer.tasks.warm_start import load_decoder
        from glassformer.text import Tokenizer

        self._check_start()
        config = self.config
        check_fine_tuning(config)
        model, base = load_decoder(config.start_from, (), self.name)
        if isinstance(base, Tokenizer):
            raise ValueError(
                f"--from {config.start_from}: the tokenizer was trained by Glassformer and has no chat template: "
                "expected a pretrained model; `glassformer convert --to hf` writes this one in a form to which "
                "--chat-template adds a template"
            )
        if config.chat_template is not None:
            base = base.with_chat_template(config.chat_template.read_text(encoding="utf-8"))
        if base.source.chat_template is None:
            raise ValueError(
                f"--from {config.start_from}: the model has no chat template: expected --chat-template FILE"
            )
        limit = model.config.max_len
        if limit is not None and config.context > limit:
            raise ValueError(
                f"context={config.context}: expected at most {limit}, the limit of the model of --from "
                f"{config.start_from}"
            )
        return Initialized(self.pipeline_class()(model, base))

    def open_data(self, run: "RunFolder") -> ConversationData[Example]:
        """Read the examples and load the model of --from."""
        splits = self.config.data.splits()
        first = next(iter(splits.train), None)
        if first is None:
            raise ValueError(f"no {self.unit} are left to learn from: expected more data in --data")
        valid = list(islice(splits.valid, MAX_VALID))
        if not valid:
            raise ValueError(f"no {self.unit} are left for validation: {MORE_DATA}")
        return ConversationData(splits, first, valid, self.initialize(splits.train, run).pipeline)

    def _check_start(self) -> None:
        if self.config.start_from is None:
            raise ValueError(f"train {self.name} needs a trained model to start with: expected --from MODEL")

    def show_first(self, marked: "MarkedTokens", pipeline: Any) -> str:
        """Return the first example as text that shows which tokens are learned, in color on a terminal."""
        from glassformer.text.chat_training import show_marked

        colors = sys.stderr.isatty()
        how = "green" if colors else "between [ and ]"
        text = show_marked(marked, pipeline.tokenizer, colors=colors)
        return f"the first example; the tokens {how} are learned:\n{text}"

    def say_sample(self, pipeline: Any, messages: "Sequence[Message]") -> None:
        """Print what the model answers to some messages."""
        asked = " ".join(messages[-1]["content"].split())
        say(f"sample: {asked[:60]!r} -> {pipeline.sample_answer(messages)!r}")
