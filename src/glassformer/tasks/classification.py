"""Texts to classes: train an encoder on labelled texts, from scratch or from somebody's checkpoint, and use it."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.checkpoint import load_model, save_model
from glassformer.data.labelled import LabelledBatch, LabelledBatches
from glassformer.data.pairs import OnBad, Pair, PairReader
from glassformer.data.splits import split_pairs
from glassformer.metrics.classification import ClassScores, score_classes
from glassformer.models import EncoderModel, ModelConfig
from glassformer.models.costs import training_flops
from glassformer.tasks.runs import run_folder, train_run
from glassformer.text import Tokenizer, TokenizerConfig
from glassformer.text.pretrained import PretrainedTokenizer
from glassformer.text.tokenizer import END, PAD
from glassformer.training.config import TrainConfig

LABELS = "labels.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
"""What is taken along from a checkpoint: BERT's vocabulary, or the file that holds any tokenizer."""


@dataclass(frozen=True, kw_only=True)
class LabelledData:
    """Where labelled texts come from."""

    data: tuple[Path, ...] = ()
    """TSV, CSV (with a header) or JSONL; .gz too."""
    valid: tuple[Path, ...] = ()
    """For validation. Without it, a twenty-fifth of the data, chosen by a hash of the texts."""
    text_column: str = "text"
    label_column: str = "label"
    on_bad: OnBad = "error"
    """What to do with a bad record: stop and name its file and line, or count and skip it."""

    def splits(self) -> tuple[list[Pair], list[Pair]]:
        """Texts with their labels: to learn from, and to validate on."""
        if not self.data:
            raise ValueError("no data: expected at least one .tsv, .csv or .jsonl file")
        train = self.read(self.data)
        if self.valid:
            return list(train), list(self.read(self.valid))
        sides = split_pairs(train, test=0.0)
        learned, kept = list(sides["train"]), list(sides["valid"])
        labels = {pair.target for pair in learned}
        # A rare class may fall wholly on the other side, where nobody could learn it.
        learned += [pair for pair in kept if pair.target not in labels]
        return learned, [pair for pair in kept if pair.target in labels]

    def read(self, paths: tuple[Path, ...]) -> PairReader:
        """The texts of some files, each with its label."""
        return PairReader(paths, (), self.text_column, self.label_column, self.on_bad)


def default_encoder() -> ModelConfig:
    """A small encoder that learns on two cores."""
    return ModelConfig(
        vocab_size=8000,
        n_encoder_layers=2,
        d_model=128,
        n_heads=4,
        d_ff=256,
        max_len=256,
        norm_placement="pre",
        dropout=0.3,
        embedding_dropout=0.3,
        init="normal",
        init_std=0.088,
    )


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig:
    """A whole recipe."""

    data: LabelledData = field(default_factory=LabelledData)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """Of a model from scratch."""
    start_from: Path | None = None
    """Somebody's encoder to begin with, in HF's folder: its body and its tokenizer, under a fresh head."""
    model: ModelConfig = field(default_factory=default_encoder)
    """Of a model from scratch. Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            updates=2000, lr=1e-3, warmup=200, schedule="linear", metric="accuracy", label_smoothing=0.0, eval_every=250
        )
    )


class Prediction(NamedTuple):
    """The likeliest class of a text, and how likely the model finds it."""

    label: str
    probability: float


class Reads(Protocol):
    """Texts to the ids that a model reads, specials included."""

    pad: int

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """One list a text."""


@dataclass
class OwnReader:
    """By a tokenizer that was trained here: the pieces, and END."""

    tokenizer: Tokenizer
    pad: int = PAD

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """One list a text."""
        return [[*ids, END] for ids in self.tokenizer.encode_batch(texts)]


class PretrainedReader:
    """By the tokenizer of a checkpoint."""

    def __init__(self, tokenizer: PretrainedTokenizer):
        self.tokenizer = tokenizer
        self.pad = tokenizer.pad or 0

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """One list a text."""
        return self.tokenizer.encode_batch(texts)


class Classifier:
    """A trained model with its tokenizer and the names of its classes."""

    def __init__(self, model: EncoderModel, reader: Reads, labels: Sequence[str]):
        self.model, self.reader, self.labels = model, reader, list(labels)

    @classmethod
    def from_folder(cls, folder: Path | str) -> "Classifier":
        """The classifier saved in a model folder."""
        folder = Path(folder)
        model = load_model(folder)
        if not isinstance(model, EncoderModel) or model.config.head != "sequence_class":
            raise ValueError(f"{folder} holds no classifier: expected an encoder with head='sequence_class'")
        about = json.loads((folder / LABELS).read_text(encoding="utf-8"))
        reader: Reads
        if about["tokenizer"] == "own":
            reader = OwnReader(Tokenizer.load(folder / "tokenizer.json"))
        else:
            reader = PretrainedReader(PretrainedTokenizer.from_folder(folder))
        return cls(model, reader, about["labels"])

    def read(self, texts: Sequence[str]) -> list[list[int]]:
        """What the model reads; a text that is too long is cut, and keeps its end."""
        limit = self.model.config.max_len or 10**9
        return [ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]] for ids in self.reader(texts)]

    def probabilities(self, texts: Sequence[str], *, max_batch_tokens: int = 8192) -> Tensor:
        """How likely each class is for each text, (N, classes), in the texts' order."""
        rows = self.read(texts)
        found = torch.empty(len(rows), len(self.labels))
        waiting = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        device = next(self.model.parameters()).device
        was_training = self.model.training
        self.model.eval()
        with torch.inference_mode():
            while waiting:
                longest = max(len(rows[waiting[0]]), 1)
                size = max(1, max_batch_tokens // longest)
                chosen, waiting = waiting[:size], waiting[size:]
                batch = LabelledBatches([rows[i] for i in chosen], chosen, pad=self.reader.pad, max_tokens=10**9)[0]
                batch = batch.to(device)
                found[batch.labels.cpu()] = self.model(batch.tokens, batch.mask).float().softmax(-1).cpu()
        self.model.train(was_training)
        return found

    def classify(self, texts: Sequence[str]) -> list[Prediction]:
        """The likeliest class of each text."""
        if not texts:
            return []
        chances, classes = self.probabilities(texts).max(-1)
        return [
            Prediction(self.labels[label], chance)
            for label, chance in zip(classes.tolist(), chances.tolist(), strict=True)
        ]

    def run(self, texts: Sequence[str]) -> list[str]:
        """The name of each text's class; a blank text has none."""
        told = [index for index, text in enumerate(texts) if text.strip()]
        answers = [""] * len(texts)
        for index, prediction in zip(told, self.classify([texts[index] for index in told]), strict=True):
            answers[index] = prediction.label
        return answers

    def score(self, pairs: Sequence[Pair]) -> ClassScores:
        """Accuracy and macro-F1 on labelled texts."""
        true = [self._number(pair.target) for pair in pairs]
        found = self.probabilities([pair.source for pair in pairs]).argmax(-1).tolist()
        return score_classes(found, true)

    def _number(self, label: str) -> int:
        if label not in self.labels:
            raise ValueError(f"the label {label!r} was not learned: expected one of {', '.join(self.labels[:20])}")
        return self.labels.index(label)

    def save(self, folder: Path, card: str, texts: Mapping[str, str]) -> None:
        """Write the model folder; `texts` are the tokenizer's files."""
        kind = "own" if isinstance(self.reader, OwnReader) else "pretrained"
        about = json.dumps({"labels": self.labels, "tokenizer": kind}, indent=2)
        save_model(folder, self.model, {**texts, LABELS: about, "README.md": card})


def train_classification(config: ClassificationConfig, out: Path) -> ClassScores:
    """Train a classifier into the model folder `out`; what the run needs to go on stands in `out.run` beside it."""
    train, valid = config.data.splits()
    labels = sorted({pair.target for pair in train})
    if not train:
        raise ValueError("no texts are left to learn from: expected more data")
    if len(labels) < 2:
        raise ValueError(f"all texts have the label {labels[0]!r}: expected at least two classes")
    if not valid:
        raise ValueError("no texts are left for validation: expected valid files, or more data")
    strange = sorted({pair.target for pair in valid} - {*labels})
    if strange:
        raise ValueError(f"the label {strange[0]!r} is in the texts for validation alone: expected it in the data too")
    run = run_folder(out, config)
    torch.manual_seed(config.train.seed)
    classifier, files = _begin(config, train, labels)
    model = classifier.model
    batches = LabelledBatches(
        classifier.read([pair.source for pair in train]),
        [labels.index(pair.target) for pair in train],
        pad=classifier.reader.pad,
        max_tokens=config.train.max_tokens,
        seed=config.train.seed,
    )

    def evaluate() -> dict[str, float]:
        scores = classifier.score(valid)
        return {"accuracy": 100 * scores.accuracy, "macro_f1": 100 * scores.macro_f1}

    def flops(batch: LabelledBatch) -> int:
        rows, length = batch.tokens.shape
        return training_flops(model.config, batch=rows, source_length=length)

    state = train_run(
        run,
        model,
        config.train,
        batches=batches,
        loss=lambda module: make_loss(module, config.train),
        evaluate=evaluate,
        flops=flops,
        notes=[describe(train, valid, labels)],
    )
    scores = classifier.score(valid)
    card = (
        f"# A classifier of {len(labels)} classes\n\nTrained by Glassformer on {len(train):,} texts: {state.update:,} "
        f"updates, {state.seconds / 60:.1f} minutes. On {len(valid):,} texts for validation: accuracy "
        f"{100 * scores.accuracy:.2f} %, macro-F1 {100 * scores.macro_f1:.2f} %.\n"
    )
    classifier.save(out, card, files)
    return scores


def make_loss(model: nn.Module, config: TrainConfig) -> Callable[[LabelledBatch], Tensor]:
    """The sum of the texts' losses."""

    def loss(batch: LabelledBatch) -> Tensor:
        logits = model(batch.tokens, batch.mask).float()
        return F.cross_entropy(logits, batch.labels, reduction="sum", label_smoothing=config.label_smoothing)

    return loss


def describe(train: Sequence[Pair], valid: Sequence[Pair], labels: Sequence[str]) -> str:
    """How many texts there are, and how the classes are balanced."""
    counts = Counter(pair.target for pair in train)
    balance = ", ".join(f"{label} {counts[label] / len(train):.0%}" for label in labels[:10])
    more = f" and {len(labels) - 10} more" if len(labels) > 10 else ""
    return f"{len(train):,} texts to learn from, {len(valid):,} to validate on; {len(labels)} classes: {balance}{more}"


def _begin(config: ClassificationConfig, train: Iterable[Pair], labels: list[str]) -> tuple[Classifier, dict[str, str]]:
    """The model before its first update, and its tokenizer's files."""
    folder = config.start_from
    if folder is not None:
        if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt")):
            raise ValueError(
                f"{folder} has no tokenizer that can be taken along: expected tokenizer.json, or vocab.txt"
            )
        tokenizer = PretrainedTokenizer.from_folder(folder)
        model = start_from(folder, len(labels))
        files = {
            name: (folder / name).read_text(encoding="utf-8") for name in TOKENIZER_FILES if (folder / name).is_file()
        }
        return Classifier(model, PretrainedReader(tokenizer), labels), files
    own = Tokenizer.train((pair.source for pair in train), config.model.vocab_size, config.tokenizer)
    body = replace(config.model, vocab_size=own.vocab_size)
    fresh = EncoderModel(body.with_head("sequence_class", n_labels=len(labels), pooling="mean"))
    return Classifier(fresh, OwnReader(own), labels), {"tokenizer.json": own.to_json()}


def start_from(folder: Path, n_labels: int) -> EncoderModel:
    """Somebody's encoder under a fresh head for so many classes, by the mean of its vectors."""
    body = load_model(folder, adapt=lambda config: config.with_head("none"))
    if not isinstance(body, EncoderModel):
        raise ValueError(f"{folder} is of kind {body.kind!r}: expected an encoder, to classify with")
    return body.under(body.config.with_head("sequence_class", n_labels=n_labels, pooling="mean"))
