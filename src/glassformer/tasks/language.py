"""Language modelling: texts to a decoder that goes on writing."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.data.batches import hide_words
from glassformer.data.documents import Document, DocumentReader, TwoSides, is_one_text, split_documents
from glassformer.data.labelled import IGNORED
from glassformer.data.packed import PackedBatch, PackedBatches, TokenStream, write_stream
from glassformer.data.records import OnBad
from glassformer.data.standard_library import standard_library
from glassformer.metrics.scores import Scores
from glassformer.metrics.surprise import compressed_bits
from glassformer.models import DecoderModel, ModelConfig
from glassformer.models.base import Model
from glassformer.models.costs import training_flops
from glassformer.nn.checks import check_positive
from glassformer.tasks.beginnings import load_beginning, was_trained_here
from glassformer.tasks.language_model import LanguageModel, windows_in_words
from glassformer.tasks.task import Prepared, Splits, Task, TaskConfig, kept_tokenizer, passed_over
from glassformer.text import Tokenizer, TokenizerConfig
from glassformer.text.tokenizer import UNKNOWN
from glassformer.training.config import TrainConfig
from glassformer.training.run_folder import RunFolder

MAX_VALID = 1 << 18
"""Characters that are looked at in each validation."""


@dataclass(frozen=True, kw_only=True)
class DocumentData:
    """Where texts come from."""

    data: tuple[Path, ...] = ()
    """Text files, one document each; .jsonl, .tsv or .csv, one a record; folders of texts; .gz too."""
    valid: tuple[Path, ...] = ()
    """For validation. Without it, one document in twenty-five, chosen by a hash of its text; of one long text, its
    last tenth."""
    valid_share: float = 0.0
    """Validate on this last share of the text instead: 0.1 is its last tenth."""
    text_column: str = "text"
    suffixes: tuple[str, ...] = (".txt", ".md", ".rst")
    """Of the files that count in a folder."""
    document_separator: str = ""
    """A line that stands between two documents of a text file; `blank` is an empty one."""
    on_bad: OnBad = "error"
    """What to do with a bad document: stop and name its file and line, or count and skip it."""
    corpus: str = ""
    """standard-library, for the documentation in Python's own; instead of files."""

    def splits(self) -> Splits[Document]:
        """To learn from, and to validate on."""
        if self.corpus:
            return Splits(*self._corpus())
        if self.valid:
            return Splits(self._read(self.data), list(self._read(self.valid)))
        sides = split_documents(self._read(self.data), self.valid_share)
        return Splits(sides.train, list(sides.valid))

    def examples(self) -> list[Document]:
        """Everything in `data`; of a corpus, what is held out."""
        return list(self._corpus().valid if self.corpus else self._read(self.data))

    def _read(self, paths: tuple[Path, ...]) -> DocumentReader:
        if not paths:
            raise ValueError("no data: expected at least one text file, .jsonl file or folder, or a corpus")
        return DocumentReader(paths, self.suffixes, self.text_column, self.document_separator, self.on_bad)

    def _corpus(self) -> TwoSides:
        if self.corpus != "standard-library":
            raise ValueError(f"unknown corpus {self.corpus!r}: expected standard-library")
        return standard_library("docstrings")


def small_decoder(**changes: Any) -> ModelConfig:
    """A small decoder that learns on two cores: Llama's parts, right-sized."""
    values: dict[str, Any] = {
        "vocab_size": 2048,
        "n_decoder_layers": 4,
        "d_model": 128,
        "n_heads": 4,
        "d_ff": 256,
        "gated": True,
        "activation": "silu",
        "qk_norm": True,
        "norm": "rms",
        "norm_placement": "pre",
        "positions": "rotary",
        "qkv_bias": False,
        "out_bias": False,
        "ffn_bias": False,
        "tie": "output",
        "scale_embeddings": True,
        "head": "language_model",
        "output_bias": False,
        "dropout": 0.0,
        "init": "normal",
        "init_std": 0.088,
    }
    return ModelConfig(**{**values, **changes})


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(TaskConfig):
    """A whole recipe."""

    data: DocumentData = field(default_factory=DocumentData)
    tokenizer: TokenizerConfig = field(default_factory=lambda: TokenizerConfig(prefix_space=False))
    model: ModelConfig = field(default_factory=small_decoder)
    """Its vocab_size is the most tokens the tokenizer may learn; its max_len is `context`."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            updates=5000,
            max_tokens=1024,
            lr=1e-2,
            warmup=100,
            schedule="linear",
            optimiser="muon",
            momentum=0.9,
            beta2=0.99,
            eps=1e-8,
            weight_decay=0.1,
            label_smoothing=0.0,
        )
    )
    context: int = 128
    """Tokens that the model sees at once."""

    def __post_init__(self) -> None:
        check_positive("context", self.context)
        if self.tokenizer.bpe_dropout:
            raise ValueError(f"bpe_dropout={self.tokenizer.bpe_dropout}: expected 0, for a decoder learns one cut")


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
            raise ValueError("no text is left for validation: expected valid files, or more data")
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

    def loss(self, model: nn.Module, batch: PackedBatch) -> Tensor:
        """As above."""
        tokens = hide_words(batch.tokens, self.config.train.word_dropout)
        logits = model(tokens, segments=batch.segments).flatten(0, 1)
        smoothing = self.config.train.label_smoothing
        return F.cross_entropy(
            logits, batch.targets.flatten(), reduction="sum", ignore_index=IGNORED, label_smoothing=smoothing
        )

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
