"""Masking: pretrain an encoder on plain texts by predicting masked tokens (Devlin et al. 2019)."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from glassformer.base.plurals import counted
from glassformer.data.batching.text_rows import InMemoryRows
from glassformer.data.readers.plain_texts import PlainText
from glassformer.metrics.scores import Scores
from glassformer.metrics.token_accuracy import score_unigram_baseline
from glassformer.models import ModelConfig
from glassformer.pipelines.blanks import BLANK, texts_of
from glassformer.tasks.configs.shared import Splits, TaskConfig
from glassformer.tasks.configs.small_models import small_language_encoder
from glassformer.tasks.prepared import Initialized, Prepared, check_texts, skipped_note, stored_tokenizer
from glassformer.tasks.pretraining import MAX_VALID, TextData, check_noise, check_tokenizer, token_rows
from glassformer.tasks.task import Task
from glassformer.text import Tokenizer
from glassformer.text.tokenizer import UNKNOWN
from glassformer.training.train_config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.data.batching.noised_batches import MaskedBatch
    from glassformer.models.transformer import Model
    from glassformer.training.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class MaskingConfig(TaskConfig):
    """The complete config of pretraining a masked language model."""

    FIRST_OPTIONS = ("data", "valid", "text_column")

    data: TextData = field(default_factory=TextData)
    model: ModelConfig = field(default_factory=small_language_encoder)
    """The architecture of a new model. Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            updates=10_000, lr=1e-3, warmup=500, schedule="linear", label_smoothing=0.0, eval_every=500
        )
    )
    share: float = 0.15
    """Share of the tokens that the model must predict; 80 % of them are masked, 10 % replaced, 10 % shown."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_noise(self.share)
        check_tokenizer(self.tokenizer)


class Masking(Task[PlainText, "MaskedBatch"]):
    """Pretrain an encoder to predict masked tokens.

    A model loaded with `--from` keeps its language-model head if it has one; otherwise it gets a new one.
    """

    name, title, unit, sample_line = "masking", "An encoder", "texts", f"the {BLANK} sleeps"
    Config = MaskingConfig

    @override
    def initialize(self, train: Iterable[PlainText], run: "RunFolder | None" = None) -> Initialized:
        from glassformer.models import EncoderModel
        from glassformer.pipelines.encoder_pipeline import Reader
        from glassformer.pipelines.mask_filler import MASK, MaskFiller
        from glassformer.tasks.warm_start import (
            grow_to,
            load_checkpoint,
            load_reader,
            new_head_parameters,
            with_new_head,
        )

        config = self.config
        if config.base_model is None:
            size, how = config.model.vocab_size, config.tokenizer
            own = stored_tokenizer(run, lambda: Tokenizer.train(texts_of(train), size, how, more_special=[MASK]))
            shape = replace(config.model, vocab_size=own.vocab_size)
            return Initialized(MaskFiller(EncoderModel(shape), Reader.own(own), share=config.share))
        body, reader = (
            load_checkpoint(config.base_model, EncoderModel, flag=config.base_flag),
            load_reader(config.base_model),
        )
        if body.config.head == "language_model":
            return Initialized(MaskFiller(grow_to(body, config), reader, share=config.share))
        narrow = body.config.table_width != body.config.d_model
        model = with_new_head(body, body.config.with_head("language_model", tie="output", head_transform=narrow))
        return Initialized(MaskFiller(grow_to(model, config), reader, share=config.share), new_head_parameters(model))

    @override
    def prepare(self, run: "RunFolder") -> Prepared[PlainText, "MaskedBatch"]:
        from glassformer.pipelines.mask_filler import mask_of

        config, splits = self.config, self.config.data.splits()
        valid, test = list(islice(splits.valid, MAX_VALID)), list(splits.test)
        check_texts(config.data, splits.train, valid)
        pipeline, new_parameters, _ = self.initialize(splits.train, run)
        rows = token_rows(run, splits.train, pipeline.encode, pipeline.longest)
        batches = pipeline.batches(rows, max_tokens=config.train.max_tokens, seed=config.train.seed)
        hidden = "a special token of its own" if mask_of(pipeline.reader) != UNKNOWN else "<unk>"
        notes = [
            f"{counted(len(rows), 'rows')} of at most {pipeline.longest} tokens to learn from, {rows.lengths.sum():,} "
            f"in all; {counted(len(valid), 'texts')} to validate on; {pipeline.model.config.vocab_size:,} tokens, "
            f"hidden by {hidden}"
        ]
        notes += skipped_note(Counter(getattr(splits.train, "skipped", ())))
        return Prepared(
            pipeline,
            batches,
            lambda: dict(pipeline.score(valid).values),
            test or valid,
            notes,
            new_parameters,
            n_train=len(rows),
            is_test=bool(test),
            validation=self.scored_on("validation", len(valid)),
        )

    @override
    def unused(self) -> set[str]:
        return {"r_drop", "word_dropout"}

    @override
    def loss(self, model: Any, batch: "MaskedBatch") -> "Tensor":
        from glassformer.data.batching.labeled_batches import IGNORED
        from glassformer.pipelines.mask_filler import masked_answers
        from glassformer.training.fused_loss import token_loss

        smoothing = self.config.train.label_smoothing
        return token_loss(
            model, lambda: masked_answers(model, batch), batch.answers, smoothing=smoothing, ignore=IGNORED
        )

    @override
    def flops(self, model: "Model", batch: "MaskedBatch") -> int:
        from glassformer.models.costs import training_flops

        (rows, length), config = batch.tokens.shape, model.config
        body = training_flops(config.with_head("none"), batch=rows, source_length=length)
        return body + 6 * batch.answers.numel() * config.d_model * config.vocab_size

    @override
    @classmethod
    def demo(cls) -> MaskingConfig:
        """Return the config of a small model that is trained on the docstrings of Python's standard library."""
        usual = MaskingConfig()
        return MaskingConfig(
            data=TextData(corpus="docstrings"),
            model=replace(usual.model, vocab_size=2000, max_len=64),
            train=replace(usual.train, minutes=2.5, max_tokens=1024, warmup=40, lr=2e-3, eval_every=250),
        )

    @override
    def baseline(self, splits: Splits[PlainText]) -> tuple[str, Scores]:
        """Return name and scores of a baseline that always predicts the training data's most frequent masked token."""
        from glassformer.data.batching.labeled_batches import IGNORED

        pipeline = self.initialize(splits.train).pipeline

        def hidden(texts: Iterable[PlainText]) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
            rows = InMemoryRows(texts_of(texts), pipeline.encode, longest=pipeline.longest)
            batches = pipeline.batches(rows, max_tokens=8192, seed=0)
            for step in range(len(batches)):
                answers = batches[step].answers.numpy()
                yield answers[answers != IGNORED]

        held_out = [*splits.test] or [*splits.valid]
        size = pipeline.model.config.vocab_size
        return "the most frequent token", score_unigram_baseline(hidden(splits.train), hidden(held_out), size)

    @override
    def sides(self, example: PlainText) -> tuple[str, str]:
        return example.text, ""

    @override
    def show(self, example: PlainText) -> tuple[str, str]:
        """Return the first words of a text with one of them replaced by a blank, and the same words without it."""
        words = example.text.split()[:12]
        hidden = [*words]
        hidden[len(words) // 2] = BLANK
        return " ".join(hidden), " ".join(words)
