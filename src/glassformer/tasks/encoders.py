"""What the tasks of encoders share: a reader, a model from scratch or from a checkpoint, answers in batches."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.base.checks import shown
from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.data.batching.labeled_batches import (
    IGNORED,
    LabeledBatch,
    LabeledBatches,
    LabeledRow,
    PairedBatches,
    make_batch,
)
from glassformer.data.batching.labeled_row_files import RowFiles, write_row_files
from glassformer.data.batching.pair_batches import CycledBatches
from glassformer.models import EncoderModel, ModelConfig
from glassformer.models.costs import training_flops
from glassformer.models.heads import pool
from glassformer.models.transformer import Model
from glassformer.progress import Step
from glassformer.tasks.beginnings import load_beginning
from glassformer.tasks.configs.shared import Splits
from glassformer.tasks.pipeline import LineAnswer, answer_lines_with_text, check_texts, vector_answer
from glassformer.tasks.registry import read_about
from glassformer.tasks.settings import check_settings
from glassformer.tasks.task import MORE_DATA, TASK, Prepared, Task, Tool, kept_tokenizer, passed_over
from glassformer.text import Tokenizer
from glassformer.text.encoded import Encoded
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from glassformer.text.tokenizer import PAD, UNKNOWN
from glassformer.training.losses import summed_loss
from glassformer.training.run_folder import RunFolder
from glassformer.training.train_config import TrainConfig
from glassformer.training.trainer import Batches

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
"""What is taken along from a checkpoint: BERT's vocabulary, or the file that holds any tokenizer."""
CHUNK = 4096
"""Texts tokenized at a time."""
Example = TypeVar("Example")
Texts = tuple[str, str | None]
"""What a model reads at once: a text, or two."""


class Hiding(NamedTuple):
    """What a hidden word is read as, and the tokens that are never hidden."""

    token: int
    never: tuple[int, ...]

    def hide(self, tokens: Tensor, chosen: Tensor) -> Tensor:
        """The tokens, hidden where they are chosen."""
        for special in self.never:
            chosen = chosen & (tokens != special)
        return tokens.masked_fill(chosen, self.token)


class Reader:
    """Texts to what an encoder reads: by a tokenizer that was trained here, or by a checkpoint's own."""

    def __init__(self, tokenizer: Tokenizer | PretrainedTokenizer, files: dict[str, str]):
        self.tokenizer = tokenizer
        self.files = files
        """The tokenizer's files, by name."""
        self.pad = PAD if isinstance(tokenizer, Tokenizer) else tokenizer.pad or 0

    @classmethod
    def own(cls, tokenizer: Tokenizer) -> "Reader":
        """By a tokenizer of ours."""
        return cls(tokenizer, {"tokenizer.json": tokenizer.to_json()})

    @classmethod
    def of_checkpoint(cls, folder: Path) -> "Reader":
        """By the tokenizer of somebody's model."""
        files = {
            name: (folder / name).read_text(encoding="utf-8") for name in TOKENIZER_FILES if (folder / name).is_file()
        }
        if not files.keys() & {"tokenizer.json", "vocab.txt"}:
            raise ValueError(
                f"{folder} has no tokenizer that can be taken along: expected tokenizer.json, or vocab.txt"
            )
        return cls(PretrainedTokenizer.from_folder(folder), files)

    @classmethod
    def from_folder(cls, folder: Path, kind: object) -> "Reader":
        """The reader that a model folder holds, of the kind that its `task.json` names."""
        if kind not in ("own", "pretrained"):
            raise CorruptFolderError(f"{folder / TASK} has tokenizer={shown(kind)}: expected 'own' or 'pretrained'")
        if kind == "own":
            return cls.own(Tokenizer.load(folder / "tokenizer.json"))
        return cls.of_checkpoint(folder)

    @property
    def kind(self) -> str:
        """Whose tokenizer it is: own, or pretrained."""
        return "own" if isinstance(self.tokenizer, Tokenizer) else "pretrained"

    @property
    def hides(self) -> "Hiding":
        """How a word is hidden from a model."""
        tokenizer = self.tokenizer
        if isinstance(tokenizer, Tokenizer):
            return Hiding(UNKNOWN, tuple(sorted(tokenizer.special_ids)))
        token = tokenizer.unknown if tokenizer.mask is None else tokenizer.mask
        return Hiding(self.pad if token is None else token, tuple(sorted(tokenizer.special_ids)))

    def read(self, texts: Sequence[Texts], limit: int | None = None) -> list[Encoded]:
        """One for each; those that are longer than the limit are cut."""
        found: list[Encoded] = []
        with Step("tokenizing", len(texts)) as step:
            for begin in range(0, len(texts), CHUNK):
                found += self.tokenizer.offsets_batch(texts[begin : begin + CHUNK])
                step.show(len(found))
        return found if limit is None else [one if len(one) <= limit else one.cut(limit) for one in found]


class EncoderTool(Tool[Example]):
    """An encoder with its reader."""

    head: ClassVar[str]
    """The head its model must have."""

    def __init__(self, model: EncoderModel, reader: Reader, **settings: Any):
        if model.config.head != self.head:
            raise ValueError(f"the model has head={model.config.head!r}: expected {self.head!r}")
        self.model: EncoderModel = model
        self.reader = reader
        self._settings = settings

    @classmethod
    def read_folder(cls, folder: Path) -> Self:
        """As above."""
        model, settings = cls.open_folder(folder, EncoderModel)
        reader = Reader.from_folder(folder, settings.pop("tokenizer", None))
        check_settings(cls, settings, folder / TASK)
        return cls(model, reader, **settings)

    def settings(self) -> dict[str, Any]:
        """As above."""
        return {"tokenizer": self.reader.kind, **self._settings}

    def files(self) -> dict[str, str]:
        """As above."""
        return self.reader.files

    def read(self, texts: Sequence[Texts]) -> list[Encoded]:
        """What the model reads; what is too long is cut."""
        return self.reader.read(texts, self.model.config.max_len)

    def embed(self, texts: str | Sequence[str], *, max_batch_tokens: int = 8192) -> Tensor:
        """A vector of length 1 for each text, whatever the head: the mean of its last hidden states.

        A list gives (N, C), one string (C,).
        """
        if isinstance(texts, str):
            return self.embed([texts], max_batch_tokens=max_batch_tokens)[0]
        rows = self.read([(text, None) for text in check_texts(texts)])
        found = self.answers(rows, max_batch_tokens=max_batch_tokens, ask=mean_vectors)
        return torch.stack(found) if found else torch.empty(0, self.model.config.d_model)

    def answers(
        self, rows: Sequence[Encoded], *, max_batch_tokens: int = 8192, ask: "Ask | None" = None
    ) -> list[Tensor]:
        """The head's answer to each, in their order; of a head that answers each token, for the row's own tokens.

        `ask` asks the model for something else of a batch.
        """
        ask = ask or read_batch
        found = [torch.empty(0)] * len(rows)
        waiting = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        device = next(self.model.parameters()).device
        was_training = self.model.training
        self.model.eval()
        with torch.inference_mode(), Step("scoring", len(rows)) as step:
            while waiting:
                size = max(1, max_batch_tokens // max(len(rows[waiting[0]]), 1))
                chosen, waiting = waiting[:size], waiting[size:]
                batch = make_batch(
                    [LabeledRow(rows[i].ids, rows[i].token_types, 0) for i in chosen], pad=self.reader.pad
                )
                batch = batch.to(device)
                for index, answer in zip(chosen, ask(self.model, batch).float().cpu(), strict=True):
                    found[index] = answer[: len(rows[index])] if answer.dim() == 2 else answer
                step.advance(len(chosen))
        self.model.train(was_training)
        return found


class EncoderTask(Task[Example, LabeledBatch]):
    """Learning with an encoder under some head."""

    per_token: ClassVar[bool] = False
    """Whether each token has an answer, rather than the whole text."""
    apart: ClassVar[bool] = False
    """Whether an example's two texts are read each for itself, rather than as one: `rows` gives two rows for it."""
    when_long: ClassVar[str] = "were cut"
    """What became of texts that are longer than the model's limit."""

    @abstractmethod
    def texts(self, example: Example) -> Texts:
        """What the model reads of an example."""

    @abstractmethod
    def begin(self, train: Sequence[Example]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The head's part of the model's config, and the settings of the tool: labels, say. What cannot be learned
        from is an error here."""

    @abstractmethod
    def rows(self, tool: Any, examples: Sequence[Example]) -> list[LabeledRow]:
        """What the model reads of each example, and what it should answer."""

    @abstractmethod
    def describe(self, splits: Splits[Example]) -> str:
        """How many examples there are, and how they are balanced."""

    def versions(self, tool: Any, train: Sequence[Example]) -> list[Callable[[], list[LabeledRow]]]:
        """The rows that the model learns from: one function that tokenizes them, or one for each of several versions.

        Epoch e uses version e mod n. A run calls each function once and keeps what it returns.
        """
        return [lambda: self.rows(tool, train)]

    def in_batches(self, versions: Sequence[Sequence[LabeledRow]], pad: int) -> Batches[LabeledBatch]:
        """The versions of the rows in batches, as the recipe asks for."""
        train, kind = self.config.train, PairedBatches if self.apart else LabeledBatches
        batches = [
            kind(rows, pad=pad, max_tokens=train.max_tokens, seed=train.seed, per_token=self.per_token)
            for rows in versions
        ]
        return batches[0] if len(batches) == 1 else CycledBatches(batches)

    def tokenize(self, run: RunFolder, tool: Any, train: Sequence[Example]) -> list[RowFiles]:
        """The rows to learn from, in files. A resumed run takes those that it keeps."""
        found, limit = [], tool.model.config.max_len
        for number, make in enumerate(self.versions(tool, train)):
            name = f"train-{number}"
            if not run.has_tokens(name):
                texts = [text for example in train for text in self._readings(example)] if limit and not number else []
                n_long = sum(len(one) > limit for one in tool.reader.read(texts))
                write_row_files(run.tokens / name, make(), n_long=n_long)
            found.append(RowFiles(run.tokens / name))
        return found

    def prepare(self, run: RunFolder) -> Prepared[Example, LabeledBatch]:
        """As above."""
        config = self.config
        splits = config.data.splits()
        train, valid, test = map(list, splits)
        skipped = Counter(getattr(splits.train, "skipped", ()))  # of those that were read from files
        if not train:
            raise ValueError("no examples are left to learn from: expected more data in --data")
        begun = self.begin(train)  # in a resumed run too: the data may be other than the run was started with
        head, settings = run.keep_json("head.json", lambda: begun)
        if not valid:
            raise ValueError(f"no examples are left for validation: {MORE_DATA}")
        kind: Any = self.Tool
        texts = [text for example in train for text in self._readings(example)]
        if config.start_from is not None:
            model, reader = begin_from(config.start_from, kind.head, head)
        else:
            own = kept_tokenizer(run, lambda: Tokenizer.train(_parts(texts), config.model.vocab_size, config.tokenizer))
            two = 2 if any(second is not None for _, second in texts) else config.model.token_types
            two = run.keep_json("token_types.json", lambda: two)
            body = replace(config.model, vocab_size=own.vocab_size, token_types=two)
            model, reader = EncoderModel(body.with_head(kind.head, **head)), Reader.own(own)
        tool = kind(model, reader, **settings)
        self.hiding = reader.hides
        self.rows(tool, valid)  # what it could not be scored on is told now, not after an hour
        versions = self.tokenize(run, tool, train)
        batches = self.in_batches(versions, reader.pad)
        notes = [self.describe(Splits(train, valid))]
        if n_long := versions[0].n_long:
            notes.append(f"{n_long:,} of them are longer than {model.config.max_len} tokens, and {self.when_long}")
        notes += passed_over(skipped)
        fresh = fresh_head(model) if config.start_from is not None else ()
        return Prepared(
            tool,
            batches,
            lambda: dict(tool.score(valid).values),
            test or valid,
            notes,
            fresh,
            n_train=len(train),
            is_test=bool(test),
            validation=self.scored_on("validation", len(valid)),
        )

    def sides(self, example: Example) -> tuple[str, str]:
        """As above."""
        return " ".join(filter(None, self.texts(example))), ""

    def _readings(self, example: Example) -> list[Texts]:
        """What the model reads of an example, each for itself."""
        first, second = self.texts(example)
        return [(first, None), (second, None)] if self.apart and second is not None else [(first, second)]

    def class_loss(self, model: nn.Module, batch: LabeledBatch) -> Tensor:
        """Of heads that choose among labels: smoothed cross-entropy, with word dropout and R-Drop where asked for."""
        config: TrainConfig = self.config.train
        if config.r_drop:  # both passes in one, as a batch twice as large
            batch = LabeledBatch(*(torch.cat((x, x)) for x in batch))
        if config.word_dropout:
            batch = batch._replace(tokens=self.hiding.hide(batch.tokens, self.hidden(batch)))
        scores = read_batch(model, batch).float()
        return summed_loss(
            scores.view(-1, scores.shape[-1]),
            batch.answers.flatten(),
            ignored=IGNORED,
            smoothing=config.label_smoothing,
            r_drop=config.r_drop,
        )

    def hidden(self, batch: LabeledBatch) -> Tensor:
        """Which tokens the model is not to see, by chance: (B, T)."""
        return torch.rand(batch.tokens.shape, device=batch.tokens.device) < self.config.train.word_dropout

    def flops(self, model: Model, batch: LabeledBatch) -> int:
        """As above."""
        rows, length = batch.tokens.shape
        once = training_flops(model.config, batch=rows, source_length=length)
        return 2 * once if self.config.train.r_drop else once


def read_batch(model: nn.Module, batch: LabeledBatch) -> Tensor:
    """The head's answers to a batch."""
    config: ModelConfig = model.config  # type: ignore[assignment]
    return model(batch.tokens, batch.mask, token_types=batch.token_types if config.token_types else None)


def mean_vectors(model: nn.Module, batch: LabeledBatch) -> Tensor:
    """One vector of length 1 for each row of a batch: (B, T) -> (B, C)."""
    assert isinstance(model, EncoderModel)
    types = batch.token_types if model.config.token_types else None
    return F.normalize(pool(model.encode(batch.tokens, batch.mask, token_types=types), batch.mask, "mean"), dim=-1)


Ask = Callable[[nn.Module, LabeledBatch], Tensor]


def begin_from(folder: Path, head: str, settings: dict[str, Any]) -> tuple[EncoderModel, Reader]:
    """Somebody's encoder under a fresh head, and its tokenizer."""
    body = load_beginning(folder, EncoderModel, adapt=lambda config: config.with_head("none"))
    return body.under(body.config.with_head(head, **settings)), reader_of(folder)


def reader_of(folder: Path) -> Reader:
    """The tokenizer of a model to begin with."""
    return Reader.from_folder(folder, read_about(folder).get("tokenizer") if (folder / TASK).exists() else "pretrained")


def unknown_label(label: str, known: Sequence[str], where: str) -> ValueError:
    """The error about an example at `where` whose label the model does not know."""
    place = f"{where}: " if where else ""
    names = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
    return ValueError(
        f"{place}the label {label!r} was not learned: expected one of {names}. Correct the label, or train a new model "
        "on data that has it: a run keeps the labels it was started with, so use --restart or another --out"
    )


def fresh_head(model: EncoderModel) -> list[str]:
    """The parameters of a head that no checkpoint brought."""
    return [name for name, _ in model.named_parameters() if name.startswith("head.")]


def embed_lines(tool: EncoderTool[Any], lines: Sequence[str]) -> list[LineAnswer]:
    """The vector of each line as a JSON list; a blank one stays blank."""
    blank = LineAnswer("", {"vector": None})
    return answer_lines_with_text(lines, blank, lambda told: [vector_answer(row) for row in tool.embed(told).tolist()])


def _parts(texts: Iterable[Texts]) -> Iterator[str]:
    for first, second in texts:
        yield first
        if second is not None:
            yield second
