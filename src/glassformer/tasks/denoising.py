"""Denoising: pretrain an encoder-decoder on plain texts by restoring corrupted ones, like T5 and BART."""

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
from glassformer.pipelines.examples import NoiseName
from glassformer.tasks.configs.shared import Splits, TaskConfig
from glassformer.tasks.configs.small_models import small_encoder_decoder
from glassformer.tasks.prepared import Initialized, Prepared, check_texts, skipped_note, stored_tokenizer
from glassformer.tasks.pretraining import MAX_VALID, TextData, check_noise, check_tokenizer, token_rows
from glassformer.tasks.seq2seq_task import pair_flops, pair_loss
from glassformer.tasks.task import Task
from glassformer.text import Tokenizer
from glassformer.text.tokenizer import PAD
from glassformer.training.train_config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.data.batching.pair_batches import PairBatch
    from glassformer.models.transformer import Model
    from glassformer.training.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class DenoisingConfig(TaskConfig):
    """The complete config of pretraining an encoder-decoder by denoising."""

    FIRST_OPTIONS = ("data", "valid", "text_column", "noise")

    data: TextData = field(default_factory=TextData)
    model: ModelConfig = field(default_factory=lambda: small_encoder_decoder(dropout=0.1, embedding_dropout=0.1))
    """The architecture of a new model. Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(default_factory=lambda: TrainConfig(updates=10_000, label_smoothing=0.0))
    noise: NoiseName = "spans"
    """How texts are corrupted: spans hides spans and the model writes only these, as T5; infilling also shuffles the
    sentences and the model writes the whole text, as BART."""
    share: float = 0.0
    """Share of the tokens that is hidden; 0 takes the papers' values, 0.15 for spans and 0.3 for infilling."""
    mean_span: float = 3.0
    """Mean number of tokens of a hidden span."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_noise(self.hidden_share, self.mean_span)
        check_tokenizer(self.tokenizer)

    @property
    def hidden_share(self) -> float:
        """Share of the tokens that is hidden: `share`; if that is 0, 0.15 for `spans` and 0.3 for `infilling`."""
        return self.share or {"spans": 0.15, "infilling": 0.3}[self.noise]


class Denoising(Task[PlainText, "PairBatch"]):
    """Pretrain an encoder-decoder to restore corrupted texts."""

    name, title, unit, sample_line = "denoising", "An encoder-decoder", "texts", f"the {BLANK} sleeps"
    Config = DenoisingConfig

    @override
    def initialize(self, train: Iterable[PlainText], run: "RunFolder | None" = None) -> Initialized:
        from glassformer.models import EncoderDecoderModel
        from glassformer.pipelines.denoiser import ROOM, Denoiser, specials_of
        from glassformer.tasks.warm_start import grow_to, load_seq2seq

        config: DenoisingConfig = self.config
        settings: dict[str, Any] = {
            "noise": config.noise,
            "share": config.hidden_share,
            "mean_span": config.mean_span,
        }
        if config.base_model is not None:
            model, source, target = load_seq2seq(config.base_model, config.base_flag)
            if source is not target:
                raise ValueError(
                    f"{config.base_flag} {config.base_model}: the model has a source and a target tokenizer: "
                    "expected one tokenizer"
                )
            return Initialized(Denoiser(grow_to(model, config), source, source, **settings))
        if config.model.source_vocab_size is not None:
            raise ValueError(f"source_vocab_size={config.model.source_vocab_size}: expected none, for one vocabulary")
        longest = max(1, (config.model.max_len or 512) - ROOM)
        special = specials_of(config.noise, longest, config.hidden_share, config.mean_span)
        size, how = config.model.vocab_size, config.tokenizer
        own = stored_tokenizer(run, lambda: Tokenizer.train(texts_of(train), size, how, more_special=special))
        model = EncoderDecoderModel(replace(config.model, vocab_size=own.vocab_size))
        return Initialized(Denoiser(model, own, own, **settings))

    @override
    def prepare(self, run: "RunFolder") -> Prepared[PlainText, "PairBatch"]:
        config, splits = self.config, self.config.data.splits()
        valid, test = list(islice(splits.valid, MAX_VALID)), list(splits.test)
        check_texts(config.data, splits.train, valid)
        pipeline = self.initialize(splits.train, run).pipeline
        rows = token_rows(run, splits.train, pipeline.source_tokenizer.encode_batch, pipeline.longest)
        batches = pipeline.batches(rows, max_tokens=config.train.max_tokens, seed=config.train.seed)
        notes = [
            f"{counted(len(rows), 'rows')} of at most {pipeline.longest} tokens to learn from, {rows.lengths.sum():,} "
            f"in all; {counted(len(valid), 'texts')} to validate on; {pipeline.model.config.vocab_size:,} tokens, "
            f"{len(pipeline.marks)} of them for what is hidden"
        ]
        notes += skipped_note(Counter(getattr(splits.train, "skipped", ())))
        return Prepared(
            pipeline,
            batches,
            lambda: dict(pipeline.score(valid).values),
            test or valid,
            notes,
            n_train=len(rows),
            is_test=bool(test),
            validation=self.scored_on("validation", len(valid), pipeline.scoring_method()),
        )

    @override
    def loss(self, model: Any, batch: "PairBatch") -> "Tensor":
        return pair_loss(model, self.config.train, batch)

    @override
    def flops(self, model: "Model", batch: "PairBatch") -> int:
        return pair_flops(model, self.config.train, batch)

    @override
    @classmethod
    def demo(cls) -> DenoisingConfig:
        """Return the config of a small model that is trained on the docstrings of Python's standard library."""
        usual = DenoisingConfig()
        return DenoisingConfig(
            data=TextData(corpus="docstrings"),
            model=replace(
                usual.model, vocab_size=2000, max_len=64, n_encoder_layers=2, n_decoder_layers=2, d_model=128, d_ff=256
            ),
            train=replace(usual.train, minutes=2.5, max_tokens=1024, warmup=40, schedule="linear", eval_every=250),
        )

    @override
    def baseline(self, splits: Splits[PlainText]) -> tuple[str, Scores]:
        """Return name and scores of a baseline that always predicts the training data's most frequent target token."""
        pipeline = self.initialize(splits.train).pipeline

        def wanted(texts: Iterable[PlainText]) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
            rows = InMemoryRows(texts_of(texts), pipeline.source_tokenizer.encode_batch, longest=pipeline.longest)
            batches = pipeline.batches(rows, max_tokens=4096, seed=0)
            for step in range(len(batches)):
                answers = batches[step].target_out.numpy()
                yield answers[answers != PAD]

        held_out = [*splits.test] or [*splits.valid]
        size = pipeline.model.config.vocab_size
        return "the most frequent token", score_unigram_baseline(wanted(splits.train), wanted(held_out), size)

    @override
    def sides(self, example: PlainText) -> tuple[str, str]:
        """Return the text as source, and as target a text of the expected length, to estimate the corpus size.

        With the noise `spans` the target is about a quarter of the text, with `infilling` the whole text.
        """
        return example.text, example.text[: len(example.text) // 4] if self.config.noise == "spans" else example.text

    @override
    def show(self, example: PlainText) -> tuple[str, str]:
        """Return the first words of a text with a blank in the middle, and the same words without the blank."""
        words = example.text.split()[:12]
        half = len(words) // 2
        return " ".join([*words[:half], BLANK, *words[half + 1 :]]), " ".join(words)
