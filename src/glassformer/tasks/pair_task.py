"""Base classes of tasks that compare two texts by the cosine of their vectors. Importing this imports no torch."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from glassformer.data.corpora.synthetic_pairs import ScoredPair, generate_pairs
from glassformer.data.readers.records import Record, RecordReader, as_text
from glassformer.models import ModelConfig
from glassformer.tasks.configs.shared import FileData, Splits, TaskConfig
from glassformer.tasks.configs.small_models import small_encoder
from glassformer.tasks.encoder_task import EncoderTask, Texts
from glassformer.training.train_config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.data.batching.labeled_batches import LabeledBatch, LabeledRow


@dataclass(frozen=True, kw_only=True)
class ScoredPairData(FileData[ScoredPair]):
    """Options of pairs of texts with scores; a subclass adds the column of the scores and reads its cells."""

    CORPORA = ("made-pairs",)
    SCORE_FIELD: ClassVar[str]
    """Name of the field of this class that holds the name of the score column."""

    text_column: str = "text"
    """Column of the first texts."""
    second_column: str = "second"
    """Column of the second texts."""
    corpus: str = ""
    """Use a named corpus instead of files: made-pairs, generated sentences of known similarity."""

    @abstractmethod
    def score_of(self, cell: object) -> float:
        """Return the score in a cell of the score column. Raise ValueError if it is not a valid score."""

    @override
    def corpus_splits(self) -> Splits[ScoredPair]:
        return Splits(*generate_pairs().values())

    @override
    def split_key(self, example: ScoredPair) -> str:
        return example.text

    @override
    def read(self, paths: tuple[Path, ...]) -> Iterable[ScoredPair]:
        columns = [self.text_column, self.second_column, getattr(self, self.SCORE_FIELD)]
        return RecordReader(paths, columns, self._pair, self.on_bad)

    def _pair(self, record: Record) -> ScoredPair:
        text, second, score = record.cells
        number = self.score_of(score)
        return ScoredPair(as_text(text, self.text_column), as_text(second, self.second_column), number)


@dataclass(frozen=True, kw_only=True)
class PairConfig(TaskConfig):
    """The complete config of training a model that compares two texts; a subclass adds the data options."""

    model: ModelConfig = field(default_factory=lambda: small_encoder(dropout=0.1, embedding_dropout=0.1))
    """The architecture of a new model. Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            updates=2000, lr=1e-3, warmup=200, schedule="linear", label_smoothing=0.0, eval_every=250
        )
    )


class PairTask(EncoderTask[ScoredPair]):
    """Base class of tasks whose encoder turns each text of a pair into a vector.

    A subclass defines the loss, from the cosine of the two vectors.
    """

    separate_encoding = True
    unit, sample_line = "pairs", "a first text\ta second text"
    ONE_SCORE: ClassVar[str] = "all pairs have the score {:g}: expected different ones"
    """Format of the error message if all training pairs have the same score."""

    @abstractmethod
    def cosine_loss(self, cosines: "Tensor", targets: "Tensor") -> "Tensor":
        """Return the losses (B,) of B pairs from the cosines (B,) of their vectors and their targets (B,)."""

    def target(self, pipeline: Any, pair: ScoredPair) -> float:
        """Return the target of a pair for `cosine_loss`; by default its score."""
        return pair.score

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments of the task's pipeline, in addition to model and tokenizer."""
        return {}

    @override
    def unused(self) -> set[str]:
        return {"r_drop", "word_dropout", "label_smoothing", "bpe_dropout"}

    @override
    def texts(self, example: ScoredPair) -> Texts:
        return example.text, example.second

    @override
    def head_settings(self, train: Sequence[ScoredPair]) -> tuple[dict[str, Any], dict[str, Any]]:
        if len({pair.score for pair in train}) < 2:
            raise ValueError(self.ONE_SCORE.format(train[0].score))
        return {"pooling": "mean"}, self.settings()

    @override
    def rows(self, pipeline: Any, examples: Sequence[ScoredPair]) -> "list[LabeledRow]":
        """Return two token sequences for each pair, one per text, both with the pair's target."""
        from glassformer.data.batching.labeled_batches import LabeledRow

        targets = [self.target(pipeline, pair) for pair in examples]
        encoded = pipeline.read([(text, None) for pair in examples for text in pair[:2]])
        return [LabeledRow(one.ids, one.token_types, targets[place // 2]) for place, one in enumerate(encoded)]

    @override
    def loss(self, model: Any, batch: "LabeledBatch") -> "Tensor":
        first, second = self.outputs(model, batch).chunk(2)
        return self.cosine_loss((first * second).sum(-1), batch.answers).sum()

    @classmethod
    def demo_on_made_pairs(cls, **training: Any) -> Any:
        """Return the config of a demo on generated pairs, whose sentences express the same facts in different words.

        `training` are training options in addition to those that the demos of all pair tasks share.
        """
        config: Any = cls.Config
        return config(
            data=cls.data_class()(corpus="made-pairs"),
            model=small_encoder(vocab_size=1000, d_model=64, d_ff=128, dropout=0.0, embedding_dropout=0.0),
            train=TrainConfig(label_smoothing=0.0, lr=2e-3, warmup=100, schedule="linear", max_tokens=1024, **training),
        )
