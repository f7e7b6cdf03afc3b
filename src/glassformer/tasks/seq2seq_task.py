"""The base class of tasks that train an encoder-decoder on pairs of texts. Importing it does not import torch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from typing_extensions import override

from glassformer.base.plurals import counted
from glassformer.data.batching.token_files import EncodeBatch, Kept, TextPair, TokenFiles, write_token_files
from glassformer.tasks.configs.shared import Splits
from glassformer.tasks.decoder_task import check_fine_tuning
from glassformer.tasks.large_data import tokenize_large
from glassformer.tasks.prepared import MORE_DATA, Initialized, Prepared, skipped_note, skipped_of, stored_tokenizer
from glassformer.tasks.task import Task
from glassformer.text import BpeDropout, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.data.batching.pair_batches import AnyPairBatch, PairBatch, TokenBudgetBatches
    from glassformer.models import EncoderDecoderModel
    from glassformer.models.transformer import Model
    from glassformer.pipelines.pretrained_base import PretrainedBase
    from glassformer.training.run_folder import RunFolder
    from glassformer.training.train_config import TrainConfig

MAX_VALID = 500
"""Largest number of validation pairs whose targets each validation generates."""
MAX_LOGITS = 1 << 26
"""Most logits that a validation computes at a time, so that it needs no more memory than an update."""
Example = TypeVar("Example", bound=TextPair)


class Seq2SeqTask(Task[Example, "PairBatch"]):
    """Base class of tasks of an encoder-decoder, which reads the `source` of an example and writes its `target`."""

    unit = "pairs"
    cuts_long: ClassVar[bool] = False
    """Whether a source that is longer than the model's limit is cut. If not, the pair is left out."""

    def settings(self) -> Mapping[str, Any]:
        """Return the keyword arguments of the task's pipeline, in addition to model and tokenizers."""
        return {}

    @override
    def initialize(self, train: Iterable[Example], run: "RunFolder | None" = None) -> Initialized:
        import torch

        from glassformer.models import EncoderDecoderModel
        from glassformer.pipelines.seq2seq_pipeline import load_tokenizers
        from glassformer.tasks.warm_start import grow_to, load_any_seq2seq

        config, kind = self.config, self.pipeline_class()
        if config.base_model is not None:
            model, base = load_any_seq2seq(config.base_model, config.base_flag)
            if base is not None:
                check_fine_tuning(config)
                base = self.adapt_base(base)
                return Initialized(kind(model, base.source, base.target, **self.settings()).use_base(base))
            source, target = load_tokenizers(config.base_model)
            return Initialized(kind(grow_to(model, config), source, target, **self.settings()))
        if language := getattr(config.data, "language", ""):
            raise ValueError(f"--language {language} has no effect without --from: leave it out")
        source, target = self._train_tokenizers(train, run)
        source_size = None if config.model.source_vocab_size is None else source.vocab_size
        shape = replace(config.model, vocab_size=target.vocab_size, source_vocab_size=source_size)
        torch.manual_seed(config.train.seed)
        return Initialized(kind(EncoderDecoderModel(shape), source, target, **self.settings()))

    def adapt_base(self, base: "PretrainedBase") -> "PretrainedBase":
        """Put the code of the `language` of the data beside all texts, for a model that has such codes (mBART)."""
        from glassformer.text.language_codes import read_layout

        language, layout = getattr(self.config.data, "language", ""), read_layout(base.source)
        if layout is None and language:
            raise ValueError(f"--language {language}: expected none, because the model has no codes of languages")
        if layout is None or (base.source is not base.target and not language):
            return base  # a model without codes, or one that was fine-tuned with a code before
        code = layout.find(language, "--language")
        return base.with_languages(layout, code, code)

    def _train_tokenizers(self, train: Iterable[Example], run: "RunFolder | None") -> tuple[Tokenizer, Tokenizer]:
        """Train, or read from the run, the source and the target tokenizer.

        They are one object unless the model has a `source_vocab_size`.
        """
        how, size, source_size = (
            self.config.tokenizer,
            self.config.model.vocab_size,
            self.config.model.source_vocab_size,
        )
        if self.tokenized is not None:
            corpus, names = self.tokenized, ("tokenizer.json",)
            if source_size is not None:
                names = ("source_tokenizer.json", "target_tokenizer.json")  # type: ignore[assignment]
            found = [stored_tokenizer(run, partial(corpus.tokenizer, name), name) for name in names]
            return found[0], found[-1]
        if source_size is None:
            texts = (text for pair in train for text in (pair.source, pair.target))
            joint = stored_tokenizer(run, lambda: Tokenizer.train(texts, size, how))
            return joint, joint
        source = stored_tokenizer(
            run, lambda: Tokenizer.train((pair.source for pair in train), source_size, how), "source_tokenizer.json"
        )
        target = stored_tokenizer(
            run, lambda: Tokenizer.train((pair.target for pair in train), size, how), "target_tokenizer.json"
        )
        return source, target

    @override
    def prepare(self, run: "RunFolder") -> Prepared[Example, "PairBatch"]:
        from glassformer.data.batching.pair_batches import CycledBatches, NumberedBatches, PairMarks, TokenBudgetBatches

        train, corpus = self.config.train, tokenize_large(self, run)
        if corpus is None:
            splits: Splits[Example] = self.config.data.splits()
        else:
            splits = Splits((), corpus.valid_examples(self.config.data))
        valid_pairs, test_pairs = list(islice(splits.valid, MAX_VALID)), list(splits.test)
        if corpus is None and next(iter(splits.train), None) is None:
            raise ValueError("no pairs are left to learn from: expected more data; the files may be empty")
        if not valid_pairs:
            flags = " and ".join(
                f"--{name.replace('_', '-')}" for name in self.config.data.FILE_FIELDS if name.startswith("valid")
            )
            raise ValueError(f"no pairs are left for validation: {MORE_DATA.replace('--valid', flags)}")
        pipeline = self.initialize(splits.train, run).pipeline
        (valid_files,) = self.tokenize(run, pipeline, splits.valid, is_train=False)
        base = pipeline.base
        marks = None if base is None else PairMarks(base.target.pad or 0, pipeline.begin)
        sizes: dict[str, Any] = {"max_tokens": train.max_tokens, "seed": train.seed}
        versions: list[NumberedBatches[Any]]
        if corpus is None:
            files = self.tokenize(run, pipeline, splits.train)
            versions = [TokenBudgetBatches(one, marks=marks, **sizes) for one in files]
            n_train, n_long, skipped = len(files[0]), max(one.n_long for one in files), skipped_of(splits.train)
        else:
            numbers = range(len(corpus.versions))
            versions = [corpus.pair_batches(number, mix=self.config.data.mix, **sizes) for number in numbers]
            n_train, n_long, skipped = corpus.size.examples - corpus.n_long, corpus.n_long, corpus.skipped
        batches = CycledBatches(versions)
        valid = TokenBudgetBatches(valid_files, max_tokens=train.max_tokens, marks=marks)

        def evaluate() -> dict[str, float]:
            return {**self.check(pipeline, valid_pairs), "loss": validation_loss(pipeline.model, valid)}

        cut = ", and cut" if self.cuts_long else ""
        notes = [
            f"{counted(n_train, 'pairs')} to learn from ({n_long:,} too long{cut}), "
            f"{self._validated(valid_files, len(valid_pairs))}; {pipeline.target_tokenizer.vocab_size:,} tokens; "
            f"{counted(len(batches), 'batches', 'batch')} an epoch, {batches.padding_share():.1%} of them padding"
        ]
        return Prepared(
            pipeline,
            batches,
            evaluate,
            test_pairs or valid_pairs,
            [*notes, *skipped_note(skipped)],
            n_train=n_train,
            is_test=bool(test_pairs),
            validation=self.scored_on("validation", len(valid_pairs), "greedy"),
        )

    def _validated(self, files: TokenFiles, n_scored: int) -> str:
        """Return the part of the first note about validation: the number of pairs, and what each of them is for."""
        left_out = 0 if self.cuts_long else files.n_long
        count = len(files) + left_out
        parts = [f"{len(files):,} for the loss ({left_out:,} too long)" if left_out else "all for the loss"]
        parts += [f"the first {n_scored:,} for the scores"] if n_scored < count else []
        return f"{count:,} to validate on" + f": {', '.join(parts)}" * (left_out > 0 or n_scored < count)

    def tokenize(
        self, run: "RunFolder", pipeline: Any, pairs: Iterable[Example], *, is_train: bool = True
    ) -> list[TokenFiles]:
        """Tokenize the pairs, store them in the run folder and return them. A resumed run returns what it stored.

        The list has one element. For training pairs with BPE-dropout it has `bpe_versions` elements instead, each with
        all pairs in another tokenization.
        """
        config, tokenizers = self.config, (pipeline.source_tokenizer, pipeline.target_tokenizer)
        versions: list[list[EncodeBatch]] = [[tokenizer.encode_batch for tokenizer in tokenizers]]
        if is_train and config.tokenizer.bpe_dropout:
            chance, seed = config.tokenizer.bpe_dropout, config.train.seed
            droppers = [BpeDropout(tokenizer, chance, seed) for tokenizer in tokenizers]
            numbers = range(config.tokenizer.bpe_versions)
            versions = [[partial(dropper.encode_batch, version=number) for dropper in droppers] for number in numbers]
        kept: Kept = pipeline.kept if self.cuts_long else "none"
        max_len = pipeline.model.config.max_len or 10**9
        if pipeline.base is not None:  # a text has its special tokens already, which must stay when it is cut
            versions = [[partial(_encode_marked, tokenizer, max_len, kept) for tokenizer in tokenizers]]
            max_len, kept = max_len + 1, "none"
        found = []
        for number, encoders in enumerate(versions):
            name = f"train-{number}" if is_train else "valid"
            if run.has_tokens(name):
                found.append(TokenFiles(run.tokens / name))
            else:
                found.append(write_token_files(run.tokens / name, pairs, *encoders, max_len=max_len - 1, kept=kept))
        return found

    def check(self, pipeline: Any, pairs: Sequence[Example]) -> Mapping[str, float]:
        """Return the scores of the pipeline on the validation pairs, decoded greedily: faster than a beam search."""
        own, pipeline.generation = pipeline.generation, replace(pipeline.generation, num_beams=1)
        try:
            return pipeline.score(pairs).values
        finally:
            pipeline.generation = own

    @override
    def sides(self, example: Example) -> tuple[str, str]:
        return example.source, example.target

    @override
    def show(self, example: Example) -> tuple[str, str]:
        return example.source, example.target

    @override
    def loss(self, model: Any, batch: "PairBatch") -> "Tensor":
        return pair_loss(model, self.config.train, batch)

    @override
    def flops(self, model: "Model", batch: "PairBatch") -> int:
        return pair_flops(model, self.config.train, batch)


def _encode_marked(tokenizer: Any, limit: int, kept: Kept, texts: list[str]) -> list[list[int]]:
    """Tokenize texts for a pretrained model, with its special tokens; unless `kept` is "none", cut long ones."""
    from glassformer.pipelines.seq2seq_pipeline import cut_marked

    found: list[list[int]] = tokenizer.encode_batch(texts)
    return found if kept == "none" else [cut_marked(ids, limit, kept, tokenizer) for ids in found]


def pair_loss(model: Any, config: "TrainConfig", batch: "AnyPairBatch") -> "Tensor":
    """Return the sum of a batch's token losses: smoothed cross-entropy, with word dropout and R-Drop if configured."""
    import torch

    from glassformer.data.batching.pair_batches import hide_words
    from glassformer.training.fused_loss import token_loss
    from glassformer.training.losses import summed_loss

    if config.r_drop:  # both passes in one, as a batch of twice the size
        batch = type(batch)(*(torch.cat((x, x)) for x in batch))
    source, target = (hide_words(x, config.word_dropout) for x in (batch.source, batch.target_in))
    # Padding follows the target, so no token before it attends to it: the causal mask alone is enough, and kernels take
    # that as a flag. The positions of padding must be in the table, though.
    max_len = model.config.max_len
    target_mask = None if max_len is None or target.shape[1] <= max_len else batch.target_mask

    def logits() -> torch.Tensor:
        return model(source, target, batch.source_mask, target_mask)

    if not config.r_drop:
        return token_loss(model, logits, batch.target_out, smoothing=config.label_smoothing, ignore=batch.ignored)
    return summed_loss(
        logits().flatten(0, 1),
        batch.target_out.flatten(),
        ignored=batch.ignored,
        smoothing=config.label_smoothing,
        r_drop=config.r_drop,
    )


def pair_flops(model: "Model", config: "TrainConfig", batch: "AnyPairBatch") -> int:
    """Return the number of floating-point operations of training on a batch, twice as many with R-Drop."""
    from glassformer.models.costs import training_flops

    (rows, source_length), target_length = batch.source.shape, batch.target_in.shape[1]
    once = training_flops(model.config, batch=rows, source_length=source_length, target_length=target_length)
    return 2 * once if config.r_drop else once


def validation_loss(model: "EncoderDecoderModel", batches: "TokenBudgetBatches") -> float:
    """Return the mean cross-entropy per target token of all batches, without label smoothing."""
    from glassformer.runtime.shared_work import divide_work
    from glassformer.training.losses import label_smoothed_cross_entropy

    device = next(model.parameters()).device

    def batch_loss(step: int) -> tuple[float, int]:
        whole = batches[step].to(device)
        n_rows, length = whole.target_in.shape
        rows = max(1, MAX_LOGITS // (length * model.config.vocab_size))
        total = 0.0
        for begin in range(0, n_rows, rows):
            batch = whole.slice_rows(begin, begin + rows)
            logits = model(batch.source, batch.target_in, batch.source_mask, batch.target_mask).flatten(0, 1).float()
            total += label_smoothed_cross_entropy(
                logits, batch.target_out, ignore=batch.ignored, reduction="sum"
            ).item()
        return total, whole.n_target_tokens

    found = divide_work(range(len(batches)), lambda steps: [batch_loss(step) for step in steps])
    return sum(total for total, _ in found) / max(sum(tokens for _, tokens in found), 1)
