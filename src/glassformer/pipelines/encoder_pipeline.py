"""`EncoderPipeline`, the base class of pipelines with an encoder, and `Reader`, which tokenizes their texts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from glassformer.base.checks import shown
from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.data.batching.labeled_batches import (
    LabeledBatch,
    LabeledRow,
    make_batch,
)
from glassformer.models import DecoderModel, EncoderModel, ModelConfig
from glassformer.models.heads import pool
from glassformer.models.transformer import Model
from glassformer.pipelines.pipeline import (
    ONE_OR_MORE,
    READING_BATCH_TOKENS,
    LineAnswer,
    answer_lines_with_text,
    check_texts,
    vector_answer,
)
from glassformer.pipelines.pipeline_registry import TASK
from glassformer.pipelines.pretrained_base import read_base
from glassformer.pipelines.settings import check_settings
from glassformer.pipelines.trained_pipeline import ModelLoader, TrainedPipeline
from glassformer.progress import Step
from glassformer.runtime.batches import read_in_batches
from glassformer.runtime.shared_work import divide_work
from glassformer.text import Tokenizer
from glassformer.text.encoded import Encoded
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer, tokenizer_files
from glassformer.text.tokenizer import PAD, UNKNOWN

Example = TypeVar("Example")
CHUNK = 4096
"""Number of texts that are tokenized at a time."""


Texts = tuple[str, str | None]
"""An input of the model: a text and None, or a pair of texts."""


class Hiding(NamedTuple):
    """How to hide tokens from the model: `token` replaces a hidden token, and tokens in `never` are not hidden."""

    token: int
    never: tuple[int, ...]

    def hide(self, tokens: Tensor, chosen: Tensor) -> Tensor:
        """Return `tokens` with `self.token` where the boolean mask `chosen` is True, except at tokens in `never`."""
        for special in self.never:
            chosen = chosen & (tokens != special)
        return tokens.masked_fill(chosen, self.token)


class Reader:
    """Tokenizes texts for an encoder, with Glassformer's own tokenizer or with that of a pretrained checkpoint."""

    def __init__(self, tokenizer: Tokenizer | PretrainedTokenizer, files: dict[str, str]):
        self.tokenizer = tokenizer
        self.files = files
        """The contents of the tokenizer's files, by file name."""
        self.pad = PAD if isinstance(tokenizer, Tokenizer) else tokenizer.pad or 0

    @classmethod
    def own(cls, tokenizer: Tokenizer) -> "Reader":
        """Return a reader that uses a tokenizer trained with Glassformer."""
        return cls(tokenizer, {"tokenizer.json": tokenizer.to_json()})

    @classmethod
    def of_checkpoint(cls, folder: Path) -> "Reader":
        """Return a reader, which turns texts into token ids, with the tokenizer of a pretrained checkpoint.

        `folder` may also be a model that was fine-tuned from one, or a GGUF file.
        """
        base = read_base(folder)
        if base is not None:
            return cls(base.source, dict(base.files))
        # A folder of version 0.1, which has no origin.
        return cls(PretrainedTokenizer.from_folder(folder), tokenizer_files(folder))

    @classmethod
    def from_folder(cls, folder: Path, kind: object) -> "Reader":
        """Load the reader of a model folder. `kind` is the entry "tokenizer" of its `task.json`."""
        if kind not in ("own", "pretrained"):
            raise CorruptFolderError(f"{folder / TASK} has tokenizer={shown(kind)}: expected 'own' or 'pretrained'")
        if kind == "own":
            return cls.own(Tokenizer.load(folder / "tokenizer.json"))
        return cls.of_checkpoint(folder)

    @property
    def kind(self) -> str:
        """Origin of the tokenizer: "own" if Glassformer trained it, "pretrained" if it comes from a checkpoint."""
        return "own" if isinstance(self.tokenizer, Tokenizer) else "pretrained"

    @property
    def hides(self) -> "Hiding":
        """How to hide words from the model: which token replaces them, and which tokens are never hidden.

        The mask token of a pretrained tokenizer replaces a word. If there is none, or if Glassformer trained the
        tokenizer, the unknown token does. Special tokens are never hidden.
        """
        tokenizer = self.tokenizer
        if isinstance(tokenizer, Tokenizer):
            return Hiding(UNKNOWN, tuple(sorted(tokenizer.special_ids)))
        token = tokenizer.unknown if tokenizer.mask is None else tokenizer.mask
        return Hiding(self.pad if token is None else token, tuple(sorted(tokenizer.special_ids)))

    def read(self, texts: Sequence[Texts], limit: int | None = None) -> list[Encoded]:
        """Tokenize each text or pair of texts. An input of more than `limit` tokens is cut; None is no limit."""
        found: list[Encoded] = []
        with Step("tokenizing", len(texts)) as step:
            for begin in range(0, len(texts), CHUNK):
                found += self.tokenizer.offsets_batch(texts[begin : begin + CHUNK])
                step.show(len(found))
        return found if limit is None else [one if len(one) <= limit else one.cut(limit) for one in found]


class EncoderPipeline(TrainedPipeline[Example]):
    """The base class of trained pipelines whose model is an encoder. A subclass says what the head's output means."""

    head: ClassVar[str]
    """The kind of head that the model must have."""
    accepts_decoder: ClassVar[bool] = False
    """Whether the model may also be a decoder, whose head reads the last token of a text."""

    def __init__(self, model: EncoderModel | DecoderModel, reader: Reader, **settings: Any):
        if model.config.head != self.head:
            raise ValueError(f"the model has head={model.config.head!r}: expected {self.head!r}")
        self.model = model
        self.reader = reader
        self._settings = settings

    @override
    @classmethod
    def read_folder(cls, folder: Path, read_model: ModelLoader) -> Self:
        model, settings = cls.open_folder(folder, Model, read_model)
        if not isinstance(model, EncoderModel | DecoderModel if cls.accepts_decoder else EncoderModel):
            raise ValueError(f"{folder} holds a model of kind {model.kind!r}: expected 'encoder'")
        reader = Reader.from_folder(folder, settings.pop("tokenizer", None))
        check_settings(cls, settings, folder / TASK)
        return cls(model, reader, **settings)

    @override
    def settings(self) -> dict[str, Any]:
        return {"tokenizer": self.reader.kind, **self._settings}

    @override
    def files(self) -> dict[str, str]:
        return self.reader.files

    def read(self, texts: Sequence[Texts]) -> list[Encoded]:
        """Tokenize each text or pair of texts, and cut inputs that are longer than the model's `max_len`."""
        return self.reader.read(texts, self.model.config.max_len)

    def _read_inputs(self, texts: Sequence[Texts]) -> list[Encoded]:
        """Tokenize inputs as `read` does, and count those that are cut in `n_truncated`."""
        limit = self.model.config.max_len
        rows = self.reader.read(texts)
        if limit is None:
            return rows
        self.count_truncated(sum(len(row) > limit for row in rows), len(rows), limit)
        return [row if len(row) <= limit else row.cut(limit) for row in rows]

    def embed(self, texts: str | Sequence[str], *, batch_tokens: int | None = None) -> Tensor:
        """Return a vector of Euclidean length 1 for each text: (N, C) for a list of N texts, (C,) for one string.

        It is the normalized mean of the last hidden states. The model's head is not used.
        """
        if isinstance(texts, str):
            return self.embed([texts], batch_tokens=batch_tokens)[0]
        rows = self._read_inputs([(text, None) for text in check_texts(texts, expected=ONE_OR_MORE)])
        found = self.answers(rows, batch_tokens=batch_tokens, ask=mean_vectors)
        return torch.stack(found) if found else torch.empty(0, self.model.config.d_model)

    def answers(
        self, rows: Sequence[Encoded], *, batch_tokens: int | None = None, ask: "Ask | None" = None
    ) -> list[Tensor]:
        """Run the model on tokenized inputs, in batches of at most `batch_tokens`, and return one output for each.

        `rows` are the inputs, and the outputs have the same order. If the head has one output per token, the outputs
        for padding are left out. `ask` is called with the model and a batch, and returns the outputs of the batch. The
        default, `read_batch`, returns those of the model's head.
        """
        batch_tokens = batch_tokens or self.batch_tokens or READING_BATCH_TOKENS
        return divide_work(rows, lambda some: self._answers(some, batch_tokens, ask or read_batch))

    def _answers(self, rows: Sequence[Encoded], batch_tokens: int, ask: "Ask") -> list[Tensor]:
        device = next(self.model.parameters()).device

        def answer(chosen: list[int]) -> list[Tensor]:
            batch = make_batch([LabeledRow(rows[i].ids, rows[i].token_types, 0) for i in chosen], pad=self.reader.pad)
            self.model.embeddings.check("tokens", batch.tokens)  # on the host: a wrong id makes a GPU unusable
            found = zip(chosen, ask(self.model, batch.to(device)).float().cpu(), strict=True)
            return [one[: len(rows[index])] if one.dim() == 2 else one for index, one in found]

        was_training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                sizes = [len(row) for row in rows]
                return read_in_batches(self.model, sizes, answer, batch_tokens=batch_tokens, label="scoring")
        finally:
            self.model.train(was_training)


def read_batch(model: nn.Module, batch: LabeledBatch) -> Tensor:
    """Run an encoder on a batch and return the outputs of its head.

    This function is the default of the argument `ask` of `EncoderPipeline.answers`.
    """
    config: ModelConfig = model.config  # type: ignore[assignment]
    return model(batch.tokens, batch.mask, token_types=batch.token_types if config.token_types else None)


def mean_vectors(model: nn.Module, batch: LabeledBatch) -> Tensor:
    """Return the normalized mean of the last hidden states of each text in a batch: (B, T) -> (B, C)."""
    assert isinstance(model, EncoderModel | DecoderModel)
    types = batch.token_types if model.config.token_types else None
    hidden_states = model.encode if isinstance(model, EncoderModel) else model.decode
    return F.normalize(pool(hidden_states(batch.tokens, batch.mask, token_types=types), batch.mask, "mean"), dim=-1)


Ask = Callable[[nn.Module, LabeledBatch], Tensor]


def unknown_label(label: str, known: Sequence[str], where: str) -> ValueError:
    """Return the error about an example whose label is not one of `known`, the labels of the training data.

    `where` is the file and line of the example, or "".
    """
    place = f"{where}: " if where else ""
    names = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
    return ValueError(
        f"{place}the label {label!r} was not learned: expected one of {names}. Correct the label, or train a new model "
        "on data that has it: a run keeps the labels it was started with, so use --restart or another --out"
    )


def embed_lines(tool: EncoderPipeline[Any], lines: Sequence[str]) -> list[LineAnswer]:
    """Return the vector of each line as a JSON list, for `glassformer run --embed`. A blank line stays blank."""
    blank = LineAnswer("", {"vector": None})
    return answer_lines_with_text(
        lines, blank, lambda texts: [vector_answer(row) for row in tool.embed(texts).tolist()]
    )
