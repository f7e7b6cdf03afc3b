"""The base class of tasks that train an encoder with a task-specific head. Importing it does not import torch."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from glassformer.tasks.configs.shared import Example, Splits
from glassformer.tasks.prepared import MORE_DATA, Initialized, Prepared, skipped_note, stored_tokenizer
from glassformer.tasks.task import Task
from glassformer.text import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor, nn

    from glassformer.data.batching.labeled_batches import LabeledBatch, LabeledRow
    from glassformer.data.batching.labeled_row_files import RowFiles
    from glassformer.models.transformer import Model
    from glassformer.training.run_folder import RunFolder
    from glassformer.training.trainer import Batches

Texts = tuple[str, str | None]
"""An input of the encoder: a text, and a second text or None."""


class EncoderTask(Task[Example, "LabeledBatch"]):
    """Base class of tasks of an encoder.

    A subclass defines the head, the rows (token sequences with their targets) and the loss.
    """

    per_token: ClassVar[bool] = False
    """Whether each token has a target, instead of the whole text."""
    separate_encoding: ClassVar[bool] = False
    """Whether the two texts of an example are encoded separately, instead of as one input. `rows` then returns two rows
    for each example, one after the other."""
    fewest_valid: ClassVar[int] = 1
    """Fewest validation examples that can be scored."""
    HEAD_SETTINGS: ClassVar[tuple[str, ...]] = ("labels", "multi_label")
    """Settings of the pipeline that a head is made for: a model whose settings are the same keeps its head."""
    when_long: ClassVar[str] = "were cut"
    """End of the printed note about texts that are longer than the model's limit, which says what happens to them."""

    @abstractmethod
    def texts(self, example: Example) -> Texts:
        """Return the text or the two texts of an example that the model reads."""

    @abstractmethod
    def head_settings(self, train: Sequence[Example]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the fields of the model config for the head, and keyword arguments of the pipeline, such as labels.

        Raise ValueError if nothing can be learned from the training examples `train`.
        """

    @abstractmethod
    def rows(self, pipeline: Any, examples: Sequence[Example]) -> "list[LabeledRow]":
        """Return the token sequences of the examples with their targets, tokenized by the pipeline."""

    @abstractmethod
    def describe(self, splits: Splits[Example]) -> str:
        """Return the line about the number of examples and their balance that is printed before training."""

    def calibrate(self, pipeline: Any, valid: Sequence[Example]) -> None:
        """Choose options of the pipeline, such as a threshold, so that they fit the validation examples.

        It is called before each validation and before the final scores. By default it does nothing.
        """

    def versions(self, pipeline: Any, train: Sequence[Example]) -> "list[Callable[[], list[LabeledRow]]]":
        """Return a list of functions, each of which makes the rows of one version of the training data.

        Versions are tokenized differently, with BPE-dropout for example. By default there is one. If there are n, epoch
        e uses version e mod n. A run calls each function once and stores the rows.
        """
        return [lambda: self.rows(pipeline, train)]

    @override
    def initialize(self, train: Iterable[Example], run: "RunFolder | None" = None) -> Initialized:
        from glassformer.models import EncoderModel
        from glassformer.pipelines.encoder_pipeline import Reader
        from glassformer.tasks.warm_start import grow_to, load_encoder, load_with_head, new_head_parameters

        config, kind, examples = self.config, self.pipeline_class(), list(train)
        found = self.head_settings(examples)  # in a resumed run too, because the data may have changed
        head, settings = found if run is None else run.keep_json("head.json", lambda: found)
        if config.base_model is not None:
            about = {"task": self.name, **{name: settings[name] for name in self.HEAD_SETTINGS if name in settings}}
            accepts = {"accepts_decoder": kind.accepts_decoder and config.grow_from is None}
            kept = load_with_head(config.base_model, kind.head, about, **accepts)
            model, reader = kept or load_encoder(config.base_model, kind.head, head, config.base_flag, **accepts)
            grown = grow_to(model, config) if isinstance(model, EncoderModel) else model
            parameters = new_head_parameters(model)
            note = f"the model keeps the head of {config.base_model}" if kept else "the model gets a new head"
            return Initialized(kind(grown, reader, **settings), parameters, [note] if parameters else [])
        texts = [text for example in examples for text in self._inputs(example)]
        parts = (part for text in texts for part in text if part is not None)
        own = stored_tokenizer(run, lambda: Tokenizer.train(parts, config.model.vocab_size, config.tokenizer))
        types = 2 if any(second is not None for _, second in texts) else config.model.token_types
        types = types if run is None else run.keep_json("token_types.json", lambda: types)
        body = replace(config.model, vocab_size=own.vocab_size, token_types=types)
        return Initialized(kind(EncoderModel(body.with_head(kind.head, **head)), Reader.own(own), **settings))

    @override
    def prepare(self, run: "RunFolder") -> Prepared[Example, "LabeledBatch"]:
        splits = self.config.data.splits()
        train, valid, test = map(list, splits)
        skipped = Counter(getattr(splits.train, "skipped", ()))  # counted while the files were read
        if not train:
            raise ValueError("no examples are left to learn from: expected more data in --data")
        self.head_settings(train)  # an error about the training data comes before one about the validation data
        if len(valid) < self.fewest_valid:
            found = "1 example is" if len(valid) == 1 else f"{len(valid) or 'no'} examples are"
            needed = f", and scores need {self.fewest_valid}" if valid else ""
            raise ValueError(f"{found} left for validation{needed}: {MORE_DATA}")
        pipeline, new_parameters, about_model = self.initialize(train, run)
        self.hiding = pipeline.reader.hides
        self.rows(pipeline, valid)  # a label that cannot be scored is an error now, not after an hour of training
        versions = self.tokenize(run, pipeline, train)
        notes = [self.describe(Splits(train, valid))]
        if n_long := versions[0].n_long:
            limit = pipeline.model.config.max_len
            notes.append(f"{n_long:,} of them are longer than {limit} tokens, and {self.when_long}")

        def evaluate() -> dict[str, float]:
            self.calibrate(pipeline, valid)
            return dict(pipeline.score(valid).values)

        return Prepared(
            pipeline,
            self.in_batches(versions, pipeline.reader.pad),
            evaluate,
            test or valid,
            [*notes, *about_model, *skipped_note(skipped)],
            new_parameters,
            n_train=len(train),
            is_test=bool(test),
            validation=self.scored_on("validation", len(valid)),
            finish=lambda: self.calibrate(pipeline, valid),
        )

    def tokenize(self, run: "RunFolder", pipeline: Any, train: Sequence[Example]) -> "list[RowFiles]":
        """Make the rows of each of the `versions` of the training data, store them in the run folder and return them.

        A resumed run returns the rows that it stored.
        """
        from glassformer.data.batching.labeled_row_files import RowFiles, write_row_files

        found, limit = [], pipeline.model.config.max_len
        for number, make in enumerate(self.versions(pipeline, train)):
            name = f"train-{number}"
            if not run.has_tokens(name):
                texts = [text for example in train for text in self._inputs(example)] if limit and not number else []
                n_long = sum(len(one) > limit for one in pipeline.reader.read(texts))
                write_row_files(run.tokens / name, make(), n_long=n_long)
            found.append(RowFiles(run.tokens / name))
        return found

    def in_batches(self, versions: "Sequence[Sequence[LabeledRow]]", pad: int) -> "Batches[LabeledBatch]":
        """Return training batches of at most `train.max_tokens` tokens, padded with the token id `pad`.

        With several versions of the rows, each epoch uses the next one.
        """
        from glassformer.data.batching.labeled_batches import LabeledBatches, PairedBatches
        from glassformer.data.batching.pair_batches import CycledBatches

        train, kind = self.config.train, PairedBatches if self.separate_encoding else LabeledBatches
        batches = [
            kind(rows, pad=pad, max_tokens=train.max_tokens, seed=train.seed, per_token=self.per_token)
            for rows in versions
        ]
        return batches[0] if len(batches) == 1 else CycledBatches(batches)

    def outputs(self, model: "nn.Module", batch: "LabeledBatch") -> "Tensor":
        """Return the outputs of the model's head for a batch, in float32 or wider."""
        from glassformer.pipelines.encoder_pipeline import read_batch

        found = read_batch(model, batch)
        return found if found.element_size() > 4 else found.float()

    def class_loss(self, model: "nn.Module", batch: "LabeledBatch") -> "Tensor":
        """Return the summed training loss of a head that predicts one label per text or per token.

        It is cross-entropy with label smoothing, word dropout and R-Drop as configured.
        """
        import torch

        from glassformer.data.batching.labeled_batches import IGNORED, LabeledBatch
        from glassformer.training.losses import summed_loss

        config = self.config.train
        if config.r_drop:  # both passes in one, as a batch of twice the size
            batch = LabeledBatch(*(torch.cat((x, x)) for x in batch))
        if config.word_dropout:
            batch = batch._replace(tokens=self.hiding.hide(batch.tokens, self.hidden(batch)))
        logits = self.outputs(model, batch)
        return summed_loss(
            logits.view(-1, logits.shape[-1]),
            batch.answers.flatten(),
            ignored=IGNORED,
            smoothing=config.label_smoothing,
            r_drop=config.r_drop,
        )

    def hidden(self, batch: "LabeledBatch") -> "Tensor":
        """Return a random mask (B, T) for word dropout, True for tokens that are hidden."""
        import torch

        return torch.rand(batch.tokens.shape, device=batch.tokens.device) < self.config.train.word_dropout

    @override
    def sides(self, example: Example) -> tuple[str, str]:
        return " ".join(filter(None, self.texts(example))), ""

    @override
    def flops(self, model: "Model", batch: "LabeledBatch") -> int:
        from glassformer.models.costs import training_flops

        rows, length = batch.tokens.shape
        side = "target_length" if model.kind == "decoder" else "source_length"
        once = training_flops(model.config, batch=rows, **{side: length})
        return 2 * once if self.config.train.r_drop else once

    def _inputs(self, example: Example) -> list[Texts]:
        """Return the model inputs of an example: one, or two if its texts are encoded separately."""
        first, second = self.texts(example)
        return [(first, None), (second, None)] if self.separate_encoding and second is not None else [(first, second)]
