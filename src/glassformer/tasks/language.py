"""Language modelling: texts to a decoder that goes on writing."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from glassformer.data.batching.labeled_batches import IGNORED
from glassformer.data.batching.packed_windows import PackedBatch, PackedBatches, TokenStream, write_stream
from glassformer.data.batching.pair_batches import hide_words
from glassformer.data.readers.text_documents import Document, is_one_text
from glassformer.metrics.perplexity import compressed_bits
from glassformer.metrics.scores import Scores
from glassformer.models import DecoderModel
from glassformer.models.costs import training_flops
from glassformer.models.transformer import Model
from glassformer.tasks.beginnings import load_beginning, was_trained_here
from glassformer.tasks.configs.defaults import CHARACTERS_PER_TOKEN, Corpus
from glassformer.tasks.configs.language import DocumentData, LanguageConfig
from glassformer.tasks.configs.shared import Splits, TaskConfig
from glassformer.tasks.configs.small_models import small_decoder as small_decoder
from glassformer.tasks.language_model import LanguageModel, windows_in_words
from glassformer.tasks.task import MORE_DATA, Prepared, Task, kept_tokenizer, passed_over
from glassformer.text import Tokenizer
from glassformer.text.tokenizer import UNKNOWN
from glassformer.training.losses import label_smoothed_cross_entropy
from glassformer.training.run_folder import RunFolder

MAX_VALID = 1 << 18
"""Characters that are looked at in each validation."""


class Language(Task[Document, PackedBatch]):
    """Texts to a model that goes on writing."""

    name, title, unit, sample_line = "language", "A language model", "documents", "Once upon a time"
    Config: ClassVar[type[TaskConfig]] = LanguageConfig
    Data, Tool = DocumentData, LanguageModel
    marks: ClassVar[tuple[str, ...]] = ()
    """Special tokens beside the usual ones."""

    def prepare(self, run: RunFolder) -> Prepared[Document, PackedBatch]:
        """As above."""
        config, train = self.config, self.config.train
        splits: Splits[Document] = config.data.splits()
        valid = list(splits.valid)
        if not valid:
            raise ValueError(f"no text is left for validation: {MORE_DATA}")
        has_documents: bool = run.keep_json("has_documents.json", lambda: self.has_documents(splits.train))
        model, tokenizer = self.begin(splits.train, run)
        context = model.config.max_len or config.context
        if context != config.context:
            raise ValueError(f"context={config.context}: expected {context}, as the model to begin with has it")
        folder = run.tokens / "stream"
        if run.has_tokens(folder.name):
            stream = TokenStream(folder)
        else:
            stream = self.write(folder, splits.train, tokenizer, has_documents)
        tool: LanguageModel = self.Tool(model, tokenizer, has_documents=has_documents)
        batches = PackedBatches(stream, context, train.max_tokens, train.seed)
        looked_at = first_characters(valid, MAX_VALID)
        notes = [self.describe(stream, valid, tokenizer, batches)]
        if len(looked_at) < len(valid) or looked_at[-1] != valid[-1]:
            notes.append(f"each validation looks at the first {MAX_VALID:,} characters; the last score at all")
        notes += passed_over(Counter(getattr(splits.train, "skipped", ())))

        def evaluate() -> dict[str, float]:
            return dict(tool.score(looked_at, stride=context).values)

        n_valid = sum(len(document.text) for document in looked_at)
        return Prepared(
            tool,
            batches,
            evaluate,
            valid,
            notes,
            n_train=stream.n_documents,
            validation=f"{windows_in_words(context, context)}, the first {n_valid:,} characters of "
            + self.scored_on("validation", len(valid)),
        )

    def begin(self, train: Iterable[Document], run: RunFolder | None = None) -> tuple[DecoderModel, Tokenizer]:
        """The model before its first update and its tokenizer, from scratch or of a decoder that was trained here."""
        config, folder = self.config, self.config.start_from
        if folder is None:
            texts = (document.text for document in train)
            size, how = config.model.vocab_size, config.tokenizer
            tokenizer = kept_tokenizer(run, lambda: Tokenizer.train(texts, size, how, more_special=self.marks))
            torch.manual_seed(config.train.seed)
            return DecoderModel(
                replace(config.model, vocab_size=tokenizer.vocab_size, max_len=config.context)
            ), tokenizer
        model = load_beginning(folder, DecoderModel, head="language_model")
        if not was_trained_here(folder):
            raise ValueError(
                f"{folder} was not trained here, and its tokenizer cannot be taken along: expected the folder of a "
                "decoder that `glassformer train` wrote"
            )
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
        missing = [mark for mark in self.marks if not tokenizer.has_special(mark)]
        if missing:
            raise ValueError(f"{folder} knows no {missing[0]}: expected a model of the task {self.name}")
        return model, tokenizer

    def unused(self) -> set[str]:
        """As above."""
        return {"r_drop"}

    def has_documents(self, train: Iterable[Document]) -> bool:
        """Whether there is more than one text, so that they need borders between them."""
        return not is_one_text(train)

    def write(
        self, folder: Path, documents: Iterable[Document], tokenizer: Tokenizer, has_documents: bool
    ) -> TokenStream:
        """The training text as tokens, in the folder `folder`."""
        texts = (document.text for document in documents)
        return write_stream(folder, texts, tokenizer.encode_batch, has_documents=has_documents, unknown=UNKNOWN)

    def describe(
        self, stream: TokenStream, valid: Sequence[Document], tokenizer: Tokenizer, batches: PackedBatches
    ) -> str:
        """What there is to learn from."""
        kind = f"{stream.n_documents:,} documents" if stream.has_documents else "one long text"
        unknown = f", {stream.n_unknown:,} of them unknown" if stream.n_unknown else ""
        n_valid = sum(len(document.text.encode()) for document in valid)
        return (
            f"{kind} to learn from: {stream.n_bytes:,} bytes, {len(stream):,} tokens of {tokenizer.vocab_size:,} "
            f"kinds{unknown}; {n_valid:,} bytes to validate on; {batches.rows} windows of {batches.width} tokens a "
            f"batch, {len(batches):,} batches an epoch"
        )

    def sides(self, example: Document) -> tuple[str, str]:
        """As above."""
        return "", example.text

    def corpus(self) -> Corpus:
        """As above. Documents are packed, so that an example is a window of the context's length."""
        found = super().corpus()
        window = CHARACTERS_PER_TOKEN * self.config.context
        return found._replace(examples=max(1, found.target_characters // window))

    def loss(self, model: nn.Module, batch: PackedBatch) -> Tensor:
        """As above."""
        tokens = hide_words(batch.tokens, self.config.train.word_dropout)
        logits = model(tokens, segments=batch.segments).flatten(0, 1)
        smoothing = self.config.train.label_smoothing
        return label_smoothed_cross_entropy(logits, batch.targets, smoothing=smoothing, ignore=IGNORED, reduction="sum")

    def flops(self, model: Model, batch: PackedBatch) -> int:
        """As above."""
        rows, length = batch.tokens.shape
        return training_flops(model.config, batch=rows, target_length=length)

    @classmethod
    def demo(cls) -> LanguageConfig:
        """The documentation in Python's standard library, in bytes pairs."""
        config = LanguageConfig(data=DocumentData(corpus="standard-library"))
        return replace(config, train=replace(config.train, minutes=2.0, eval_every=1000, save_every=1000))

    def baseline(self, splits: Splits[Document]) -> tuple[str, Scores]:
        """A compressor's, of the text that the model predicts: lower-cased if its tokenizer does so."""
        lowercase = self.config.tokenizer.lowercase
        train, valid = (
            [document.text.lower() if lowercase else document.text for document in side]
            for side in (splits.train, splits.valid)
        )
        alone, primed = compressed_bits(valid), compressed_bits(valid, after=train)
        how = f"xz at its best on the held-out text; behind the training text it needs {primed:.4f} bits a byte"
        return how, Scores({"bits_per_byte": alone, "bits_per_byte_after_training_text": primed})


def first_characters(documents: Sequence[Document], limit: int) -> list[Document]:
    """The first documents, the last of them cut, until there are so many characters."""

    def cut() -> Iterator[Document]:
        left = limit
        for document in documents:
            if left <= 0:
                return
            yield document if len(document.text) <= left else Document(document.text[:left], document.where)
            left -= len(document.text)

    return list(cut())
