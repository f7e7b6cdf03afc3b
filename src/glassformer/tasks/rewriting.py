"""How an encoder-decoder learns to write one text from another: translation, summaries, answers."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from glassformer.data.batching.pair_batches import CycledBatches, PairBatch, TokenBudgetBatches, hide_words
from glassformer.data.batching.token_files import EncodeBatch, Kept, TextPair, TokenFiles, write_token_files
from glassformer.models import EncoderDecoderModel, ModelConfig
from glassformer.models.costs import training_flops
from glassformer.models.transformer import Model
from glassformer.tasks.beginnings import load_beginning, was_trained_here
from glassformer.tasks.configs.shared import TaskConfig
from glassformer.tasks.configs.small_models import small_encoder_decoder as small_encoder_decoder
from glassformer.tasks.rewriter import Rewriter, load_tokenizers
from glassformer.tasks.task import MORE_DATA, Prepared, Task, kept_tokenizer, passed_over
from glassformer.text import BpeDropout, Tokenizer
from glassformer.text.tokenizer import PAD
from glassformer.training.losses import label_smoothed_cross_entropy, summed_loss
from glassformer.training.run_folder import RunFolder
from glassformer.training.train_config import TrainConfig

MAX_VALID = 500
"""Texts written at each validation."""


Example = TypeVar("Example", bound=TextPair)


@dataclass(kw_only=True)
class TokenisedPairs:
    """Tokenizers and token files of a corpus, ready to train on."""

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    train: list[TokenFiles]
    """One, or with BPE-dropout several versions of the same pairs."""
    valid: TokenFiles
    valid_pairs: list[Any]
    """The first few: those that each validation writes."""
    test_pairs: list[Any]
    n_long: int
    """Training pairs left out, or cut, because a side was longer than the model's limit."""
    skipped: Counter[str]
    """Bad records passed over, by what was wrong with them."""

    def fit(self, config: ModelConfig) -> ModelConfig:
        """The config with the vocabulary the tokenizer really learned, which may be smaller than it was allowed."""
        source = None if config.source_vocab_size is None else self.source_tokenizer.vocab_size
        return replace(config, vocab_size=self.target_tokenizer.vocab_size, source_vocab_size=source)


class RewritingTask(Task[Example, PairBatch]):
    """Pairs of texts to an encoder-decoder that makes the second of the first."""

    unit = "pairs"
    cuts_long: ClassVar[bool] = False
    """Whether a source that is too long is cut, rather than left out with its target."""

    def tokenise(self, run: RunFolder, beginning: "Beginning | None" = None) -> TokenisedPairs:
        """Read the pairs, train the tokenizers or take those of the beginning, write the token files.

        A resumed run takes the tokenizers and the token files that it keeps.
        """
        config: TaskConfig = self.config
        splits = self.config.data.splits()
        valid_pairs, test_pairs = list(islice(splits.valid, MAX_VALID)), list(splits.test)
        if next(iter(splits.train), None) is None:
            raise ValueError("no pairs are left to learn from: expected more data; the files may be empty")
        if not valid_pairs:
            more = MORE_DATA
            if hasattr(self.config.data, "valid_source"):
                more = more.replace("--valid", "--valid-source and --valid-target")
            raise ValueError(f"no pairs are left for validation: {more}")
        sizes = config.model.vocab_size, config.model.source_vocab_size
        if beginning is not None:
            _, source_tokenizer, target_tokenizer = beginning
        elif sizes[1] is None:
            texts = (text for pair in splits.train for text in (pair.source, pair.target))
            source_tokenizer = target_tokenizer = kept_tokenizer(
                run, lambda: Tokenizer.train(texts, sizes[0], config.tokenizer)
            )
        else:
            source_size, target_size = sizes[1], sizes[0]
            source_tokenizer = kept_tokenizer(
                run,
                lambda: Tokenizer.train((p.source for p in splits.train), source_size, config.tokenizer),
                "source_tokenizer.json",
            )
            target_tokenizer = kept_tokenizer(
                run,
                lambda: Tokenizer.train((p.target for p in splits.train), target_size, config.tokenizer),
                "target_tokenizer.json",
            )
        max_len = (config.model.max_len if beginning is None else beginning.model.config.max_len) or 10**9
        plain: list[EncodeBatch] = [source_tokenizer.encode_batch, target_tokenizer.encode_batch]
        kind: Any = self.Tool

        def write(name: str, some: Iterable[TextPair], encoders: Sequence[EncodeBatch]) -> TokenFiles:
            folder = run.tokens / name
            kept: Kept = kind.kept if self.cuts_long else "none"
            if run.has_tokens(name):
                return TokenFiles(folder)
            return write_token_files(folder, some, *encoders, max_len=max_len - 1, kept=kept)

        valid = write("valid", splits.valid, plain)
        versions = [plain]
        if config.tokenizer.bpe_dropout:
            chance, seed = config.tokenizer.bpe_dropout, config.train.seed
            droppers = [BpeDropout(tokenizer, chance, seed) for tokenizer in (source_tokenizer, target_tokenizer)]
            numbers = range(config.tokenizer.bpe_versions)
            versions = [[partial(dropper.encode_batch, version=number) for dropper in droppers] for number in numbers]
        train = [write(f"train-{number}", splits.train, encoders) for number, encoders in enumerate(versions)]
        return TokenisedPairs(
            source_tokenizer=source_tokenizer,
            target_tokenizer=target_tokenizer,
            train=train,
            valid=valid,
            valid_pairs=valid_pairs,
            test_pairs=test_pairs,
            n_long=max(files.n_long for files in train),
            skipped=Counter(getattr(splits.train, "skipped", ())),
        )

    def settings(self) -> Mapping[str, Any]:
        """What the tool is told beside its model and tokenizers."""
        return {}

    def prepare(self, run: RunFolder) -> Prepared[Example, PairBatch]:
        """As above."""
        train: TrainConfig = self.config.train
        beginning = None if self.config.start_from is None else begin_from(self.config.start_from)
        pairs = self.tokenise(run, beginning)
        torch.manual_seed(train.seed)
        model = EncoderDecoderModel(pairs.fit(self.config.model)) if beginning is None else beginning.model
        kind: type[Rewriter[Example]] = self.Tool  # type: ignore[assignment]
        tool = kind(model, pairs.source_tokenizer, pairs.target_tokenizer, **self.settings())
        batches = CycledBatches(
            [TokenBudgetBatches(files, max_tokens=train.max_tokens, seed=train.seed) for files in pairs.train]
        )
        valid = TokenBudgetBatches(pairs.valid, max_tokens=train.max_tokens)

        def evaluate() -> dict[str, float]:
            return {**self.check(tool, pairs.valid_pairs), "loss": validation_loss(model, valid)}

        cut = ", and cut" if self.cuts_long else ""
        notes = [
            f"{len(pairs.train[0]):,} pairs to learn from ({pairs.n_long} too long{cut}), "
            f"{len(pairs.valid_pairs)} to validate on; {pairs.target_tokenizer.vocab_size:,} tokens; "
            f"{len(batches)} batches an epoch, {batches.padding_share():.1%} of them padding"
        ]
        notes += passed_over(pairs.skipped)
        return Prepared(
            tool,
            batches,
            evaluate,
            pairs.test_pairs or pairs.valid_pairs,
            notes,
            n_train=len(pairs.train[0]),
            is_test=bool(pairs.test_pairs),
            validation=self.scored_on("validation", len(pairs.valid_pairs), "greedy"),
        )

    def check(self, tool: Any, pairs: Sequence[Example]) -> Mapping[str, float]:
        """The scores of a validation: greedy, for it is faster."""
        kept, tool.generation = tool.generation, replace(tool.generation, num_beams=1)
        try:
            return tool.score(pairs).values
        finally:
            tool.generation = kept

    def sides(self, example: Example) -> tuple[str, str]:
        """As above."""
        return example.source, example.target

    def show(self, example: Example) -> tuple[str, str]:
        """As above."""
        return example.source, example.target

    def loss(self, model: nn.Module, batch: PairBatch) -> Tensor:
        """As above."""
        return pair_loss(model, self.config.train, batch)

    def flops(self, model: Model, batch: PairBatch) -> int:
        """As above."""
        return pair_flops(model, self.config.train, batch)


class Beginning(NamedTuple):
    """A trained model, and its tokenizers."""

    model: EncoderDecoderModel
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer


def begin_from(folder: Path) -> Beginning:
    """An encoder-decoder that was trained here, for whichever task."""
    model = load_beginning(folder, EncoderDecoderModel, head="language_model")
    if not was_trained_here(folder):
        # Other families pad, begin and end their texts by tokens of their own.
        raise ValueError(
            f"{folder} was not trained here, and its tokenizer cannot be taken along: expected the folder of an "
            "encoder-decoder that `glassformer train` wrote"
        )
    return Beginning(model, *load_tokenizers(folder))


def pair_loss(model: nn.Module, config: TrainConfig, batch: PairBatch) -> Tensor:
    """The sum of token losses of a batch: smoothed cross-entropy, with word dropout and R-Drop where asked for."""
    if config.r_drop:  # both passes in one, as a batch twice as large
        batch = PairBatch(*(torch.cat((x, x)) for x in batch))
    source, target = (hide_words(x, config.word_dropout) for x in (batch.source, batch.target_in))
    logits = model(source, target, batch.source_mask, batch.target_mask).flatten(0, 1)
    return summed_loss(
        logits, batch.target_out.flatten(), ignored=PAD, smoothing=config.label_smoothing, r_drop=config.r_drop
    )


def pair_flops(model: Model, config: TrainConfig, batch: PairBatch) -> int:
    """Operations of training on a batch."""
    (rows, source_length), target_length = batch.source.shape, batch.target_in.shape[1]
    once = training_flops(model.config, batch=rows, source_length=source_length, target_length=target_length)
    return 2 * once if config.r_drop else once


def validation_loss(model: EncoderDecoderModel, batches: TokenBudgetBatches) -> float:
    """Mean negative log-probability of a target token, without smoothing."""
    device = next(model.parameters()).device
    total, tokens = 0.0, 0
    for step in range(len(batches)):
        batch = batches[step].to(device)
        logits = model(batch.source, batch.target_in, batch.source_mask, batch.target_mask).flatten(0, 1).float()
        total += label_smoothed_cross_entropy(logits, batch.target_out, ignore=PAD, reduction="sum").item()
        tokens += batch.n_target_tokens
    return total / max(tokens, 1)
