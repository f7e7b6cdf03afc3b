"""Extraction: train an encoder to find the words of a text that answer a question."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from glassformer.base.fields import Count, Whole
from glassformer.data.corpora.synthetic_stories import generate_stories
from glassformer.data.readers.answer_spans import SpanQuestion, SpanReader
from glassformer.metrics.exact_match import score_answers
from glassformer.metrics.scores import Scores
from glassformer.models import ModelConfig
from glassformer.tasks.answering import N_GENERATED
from glassformer.tasks.configs.shared import FileData, Splits, TaskConfig
from glassformer.tasks.configs.small_models import small_encoder
from glassformer.tasks.encoder_task import EncoderTask, Texts
from glassformer.training.train_config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.data.batching.labeled_batches import LabeledBatch, LabeledRow
    from glassformer.pipelines.extractor import Extractor


@dataclass(frozen=True, kw_only=True)
class SpanData(FileData[SpanQuestion]):
    """Options that choose the data for extraction: questions about texts, with answers that are words of the text."""

    CORPORA = ("made-stories",)
    NO_FILES = "no data: expected at least one .json, .jsonl, .tsv or .csv file, or a corpus"

    data: tuple[Path, ...] = ()
    """Files with questions, contexts and answers: SQuAD's .json, or .jsonl, .tsv or .csv (.gz too); in .jsonl an answer
    may be a list of alternatives, and an empty list says that there is none."""
    valid: tuple[Path, ...] = ()
    """Files for validation; without them, one context in 25 of the training data is held out, with its questions."""
    question_column: str = "question"
    """Column of the questions."""
    context_column: str = "context"
    """Column of the texts that the questions are about."""
    answer_column: str = "answer"
    """Column of the answers: their words, or objects with `text` and `answer_start`."""
    corpus: str = ""
    """Use a named corpus instead of files: made-stories, in which people move about and carry things."""

    @override
    def corpus_splits(self) -> Splits[SpanQuestion]:
        return Splits(*(_generated(side) for side in N_GENERATED))

    @override
    def split_key(self, example: SpanQuestion) -> str:
        return example.context

    @override
    def read(self, paths: tuple[Path, ...]) -> Iterable[SpanQuestion]:
        return SpanReader(paths, (self.question_column, self.context_column, self.answer_column), self.on_bad)


def _generated(side: str) -> list[SpanQuestion]:
    stories = generate_stories(N_GENERATED[side], seed=list(N_GENERATED).index(side))
    return [
        SpanQuestion(one.question, one.context, (one.answer,), (one.start,))
        if one.answer
        else SpanQuestion(one.question, one.context, (), ())
        for one in stories
    ]


@dataclass(frozen=True, kw_only=True)
class ExtractionConfig(TaskConfig):
    """The complete config of training an encoder to extract answers."""

    FIRST_OPTIONS = ("data", "valid", "question_column", "context_column", "answer_column")

    data: SpanData = field(default_factory=SpanData)
    model: ModelConfig = field(
        default_factory=lambda: small_encoder(
            n_encoder_layers=4, max_len=384, positions="rotary", dropout=0.1, embedding_dropout=0.1
        )
    )
    """The architecture of a new model. Its vocab_size is the most tokens the tokenizer may learn."""
    overlap: Whole = 128
    """Tokens that two windows of a long text share."""
    longest_answer: Count = 30
    """Tokens of the longest answer."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            updates=3000, lr=1e-3, warmup=300, schedule="linear", label_smoothing=0.0, eval_every=500
        )
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train.label_smoothing:
            raise ValueError(f"label_smoothing={self.train.label_smoothing}: expected 0, for places in a text")


class Extraction(EncoderTask[SpanQuestion]):
    """Train an encoder to find the answer to a question in a text."""

    name, title = "extraction", "An extractor of answers"
    unit, sample_line = "questions", "Where is Anna?\tAnna is in the garden."
    Config = ExtractionConfig
    when_long = "are read in windows"

    @override
    def unused(self) -> set[str]:
        return {"r_drop", "word_dropout", "label_smoothing", "bpe_dropout"}

    @override
    def texts(self, example: SpanQuestion) -> Texts:
        return example.question, example.context

    @override
    def head_settings(self, train: Sequence[SpanQuestion]) -> tuple[dict[str, Any], dict[str, Any]]:
        if not any(example.answers for example in train):
            raise ValueError("no question has an answer: expected some that do")
        config = self.config
        abstains = not all(example.answers for example in train)
        return {}, {"abstains": abstains, "overlap": config.overlap, "longest_answer": config.longest_answer}

    @override
    def rows(self, pipeline: "Extractor", examples: Sequence[SpanQuestion]) -> "list[LabeledRow]":
        """Return one token sequence per window of a context, with the first and last token of the answer as target.

        A window without the answer has its first token, number 0, as both.
        """
        from glassformer.data.batching.labeled_batches import LabeledRow
        from glassformer.pipelines.extractor import span_places

        rows = []
        read = pipeline.windows([(example.question, example.context) for example in examples])
        for example, several in zip(examples, read, strict=True):
            for window in several:
                places = (0, 0)
                if example.answers:
                    start = example.starts[0]
                    places = span_places(window, start, start + len(example.answers[0]))
                rows.append(LabeledRow(window.ids, window.token_types, list(places)))
        return rows

    @override
    def loss(self, model: Any, batch: "LabeledBatch") -> "Tensor":
        """Return the summed cross-entropy of choosing the answer's first token, and its last, among all tokens."""
        from glassformer.training.losses import label_smoothed_cross_entropy

        scores = self.outputs(model, batch).masked_fill(~batch.mask[:, :, None], float("-inf"))  # (B, T, 2)
        return label_smoothed_cross_entropy(scores.transpose(1, 2), batch.answers, reduction="sum")  # over (B, 2, T)

    @override
    def show(self, example: SpanQuestion) -> tuple[str, str]:
        return f"{example.question}\t{example.context}", next(iter(example.answers), "")

    @override
    def describe(self, splits: Splits[SpanQuestion]) -> str:
        train, valid = list(splits.train), list(splits.valid)
        unanswerable = sum(not example.answers for example in train) / len(train)
        return (
            f"{len(train):,} questions to learn from, {len(valid):,} to validate on; {unanswerable:.0%} have no answer"
        )

    @override
    @classmethod
    def demo(cls) -> ExtractionConfig:
        """Return the config of a small model that is trained on generated stories."""
        return ExtractionConfig(
            data=SpanData(corpus="made-stories"),
            model=small_encoder(
                vocab_size=1000,
                n_encoder_layers=3,
                d_model=64,
                d_ff=128,
                positions="rotary",
                dropout=0.0,
                embedding_dropout=0.0,
            ),
            train=TrainConfig(
                minutes=2.0,
                lr=2e-3,
                warmup=100,
                schedule="linear",
                label_smoothing=0.0,
                max_tokens=1024,
                eval_every=500,
            ),
        )

    @override
    def baseline(self, splits: Splits[SpanQuestion]) -> tuple[str, Scores]:
        asked = list(splits.test) or list(splits.valid)
        found = [example.context.split()[-1] for example in asked]
        return "the last word of the text", score_answers(found, [example.answers for example in asked])
