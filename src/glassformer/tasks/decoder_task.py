"""The base class of tasks that train a decoder on documents. Importing it does not import torch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from glassformer.base.plurals import counted
from glassformer.data.readers.text_documents import Document, is_one_text
from glassformer.metrics.perplexity import compressed_bits
from glassformer.metrics.scores import Scores
from glassformer.tasks.configs.corpus_size import CHARACTERS_PER_TOKEN, CorpusSize
from glassformer.tasks.configs.shared import Splits
from glassformer.tasks.large_data import tokenize_large
from glassformer.tasks.prepared import (
    MORE_DATA,
    Initialized,
    Prepared,
    check_texts,
    skipped_note,
    skipped_of,
    stored_tokenizer,
)
from glassformer.tasks.task import Task
from glassformer.text import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.data.batching.mixed_batches import MixedBatches
    from glassformer.data.batching.packed_windows import PackedBatch
    from glassformer.data.batching.stream_shards import StreamShards
    from glassformer.data.batching.token_stream import TokenStream
    from glassformer.models import DecoderModel
    from glassformer.models.transformer import Model
    from glassformer.pipelines.pretrained_base import PretrainedBase
    from glassformer.training.run_folder import RunFolder
    from glassformer.training.train_config import TrainConfig

MAX_VALID = 1 << 18
"""Largest number of characters that each validation scores."""
FEW = 16
"""Largest number of validation documents of which each is scored, from its beginning."""


class DecoderTask(Task[Document, "PackedBatch"]):
    """Base class of tasks of a decoder, which predicts the next token of documents.

    The documents are packed into windows of `config.context` tokens.
    """

    unit, sample_line = "documents", "Once upon a time"
    special_tokens: ClassVar[tuple[str, ...]] = ()
    """Special tokens that the tokenizer has in addition to the usual ones."""

    @override
    def initialize(self, train: Iterable[Document], run: "RunFolder | None" = None) -> Initialized:
        import torch

        from glassformer.models import DecoderModel
        from glassformer.tasks.warm_start import grow_to, load_decoder

        config, folder = self.config, self.config.base_model
        has_documents = (
            self.has_documents(train)
            if run is None
            else run.keep_json("has_documents.json", lambda: self.has_documents(train))
        )
        corpus = self.tokenized
        if folder is not None:
            model, found = load_decoder(folder, self.special_tokens, self.name, config.base_flag)
            if not isinstance(found, Tokenizer):
                return Initialized(self._fine_tuned(model, found, has_documents))
            tokenizer = found
            model = grow_to(model, config, max_len=model.config.max_len)
        else:
            texts = (document.text for document in train)
            size, how = config.model.vocab_size, config.tokenizer
            tokenizer = stored_tokenizer(
                run,
                lambda: (
                    Tokenizer.train(texts, size, how, more_special=self.special_tokens)
                    if corpus is None
                    else corpus.tokenizer()
                ),
            )
            torch.manual_seed(config.train.seed)
            model = DecoderModel(replace(config.model, vocab_size=tokenizer.vocab_size, max_len=config.context))
        context = model.config.max_len or config.context
        if context != config.context:
            raise ValueError(
                f"context={config.context}: expected {context}, as the model of {config.base_flag} {folder} has it"
            )
        return Initialized(self.pipeline_class()(model, tokenizer, has_documents=has_documents))

    def _fine_tuned(self, model: "DecoderModel", base: "PretrainedBase", has_documents: bool) -> Any:
        """Return the pipeline of a pretrained decoder with its own tokenizer."""
        config, limit = self.config, model.config.max_len
        check_fine_tuning(config)
        if limit is not None and config.context > limit:
            raise ValueError(
                f"context={config.context}: expected at most {limit}, the limit of the model of --from "
                f"{config.start_from}"
            )
        pipeline = self.pipeline_class()(model, base.source, has_documents=has_documents, window=config.context)
        pipeline.base_files = base.files
        return pipeline

    def has_documents(self, train: Iterable[Document]) -> bool:
        """Whether the data is several documents, separated by an end token, instead of one long text."""
        return not is_one_text(train) if self.tokenized is None else self.tokenized.has_documents

    @override
    def prepare(self, run: "RunFolder") -> Prepared[Document, "PackedBatch"]:
        from glassformer.data.batching.packed_windows import PackedBatches
        from glassformer.data.batching.token_stream import TokenStream
        from glassformer.pipelines.language_model import windows_in_words

        train, context = self.config.train, self.config.context
        corpus = tokenize_large(self, run)
        if corpus is None:
            splits: Splits[Document] = self.config.data.splits()
        else:
            splits = Splits((), corpus.valid_examples(self.config.data))
        valid = list(splits.valid)
        if corpus is None:
            check_texts(self.config.data, splits.train, valid)
        elif not valid:
            raise ValueError(f"no text is left for validation: {MORE_DATA}")
        pipeline = self.initialize(splits.train, run).pipeline
        folder = run.tokens / "stream"
        stream: TokenStream | StreamShards
        batches: PackedBatches | MixedBatches[Any]
        if corpus is None:
            stream = TokenStream(folder) if run.has_tokens(folder.name) else self.write(folder, splits.train, pipeline)
            batches = PackedBatches(stream, context, train.max_tokens, train.seed)
        else:
            stream = corpus.stream()
            batches = corpus.window_batches(
                context, max_tokens=train.max_tokens, seed=train.seed, mix=self.config.data.mix
            )
        scored = spread_characters(valid, MAX_VALID)
        notes = [self.describe(stream, valid, pipeline.tokenizer, batches)]
        if scored != valid:
            notes.append(f"each validation scores {MAX_VALID:,} characters at most; the final score is of all")

        def evaluate() -> dict[str, float]:
            return score_with_experts(pipeline.model, lambda: pipeline.score(scored, stride=context))

        n_valid = sum(len(document.text) for document in scored)
        return Prepared(
            pipeline,
            batches,
            evaluate,
            valid,
            [*notes, *skipped_note(skipped_of(splits.train) if corpus is None else corpus.skipped)],
            n_train=stream.n_documents,
            validation=f"{windows_in_words(context, context)}, {counted(n_valid, 'characters')} of "
            + self.scored_on("validation", len(valid)),
        )

    def write(self, folder: Path, documents: Iterable[Document], pipeline: Any) -> "TokenStream":
        """Tokenize the training documents and write them as one stream of tokens to `folder`."""
        from glassformer.data.batching.token_stream import write_stream

        texts = (document.text for document in documents)
        encode = pipeline.tokenizer.encode_plain_batch
        return write_stream(folder, texts, encode, has_documents=pipeline.has_documents, **self.marks(pipeline))

    def marks(self, pipeline: Any) -> dict[str, Any]:
        """Return the ids around documents, and that of unknown characters, as keyword arguments of `write_stream`."""
        from glassformer.pipelines.pretrained_base import document_start

        tokenizer = pipeline.tokenizer
        return {"begin": document_start(tokenizer), "end": tokenizer.end, "unknown": tokenizer.unknown}

    def describe(
        self, stream: "TokenStream | StreamShards", valid: Sequence[Document], tokenizer: Any, batches: Any
    ) -> str:
        """Return the line about the training text that is printed before training: its bytes, tokens and batches."""
        kind = counted(stream.n_documents, "documents") if stream.has_documents else "one long text"
        unknown = f", {stream.n_unknown:,} of them unknown" if stream.n_unknown else ""
        n_valid = sum(len(document.text.encode()) for document in valid)
        windows = getattr(batches, "corpora", [batches])[0]  # all corpora of a mix have windows of the same size
        return (
            f"{kind} to learn from: {stream.n_bytes:,} bytes, {len(stream):,} tokens of {tokenizer.vocab_size:,} "
            f"kinds{unknown}; {n_valid:,} bytes to validate on; {counted(windows.rows, 'windows')} of {windows.width} "
            f"tokens a batch, {counted(len(batches), 'batches', 'batch')} an epoch"
        )

    @override
    def unused(self) -> set[str]:
        return {"r_drop"}

    @override
    def sides(self, example: Document) -> tuple[str, str]:
        return "", example.text

    @override
    def corpus(self) -> CorpusSize:
        """Return the size of the training data, counting context windows as examples.

        Documents do not count as examples because they are packed. The number of windows is an estimate.
        """
        found = super().corpus()
        window = CHARACTERS_PER_TOKEN * self.config.context
        return found._replace(examples=max(1, found.target_characters // window))

    @override
    def loss(self, model: Any, batch: "PackedBatch") -> "Tensor":
        return packed_loss(model, self.config.train, batch)

    @override
    def flops(self, model: "Model", batch: "PackedBatch") -> int:
        return packed_flops(model, batch)

    @override
    def baseline(self, splits: Splits[Document]) -> tuple[str, Scores]:
        """Return the bits per byte that the program xz needs to compress the validation text.

        There are two scores: one for the validation text alone, and one for the validation text after the training
        text, for which only the additional bits count. The text is lower-cased if the tokenizer lower-cases it.
        """
        lowercase = self.config.tokenizer.lowercase
        train, valid = (
            [document.text.lower() if lowercase else document.text for document in side]
            for side in (splits.train, splits.valid)
        )
        alone, primed = compressed_bits(valid), compressed_bits(valid, after=train)
        how = f"xz at its best on the held-out text; behind the training text it needs {primed:.4f} bits a byte"
        return how, Scores({"bits_per_byte": alone, "bits_per_byte_after_training_text": primed})


def packed_loss(model: Any, config: "TrainConfig", batch: "PackedBatch") -> "Tensor":
    """Return the summed loss of the targets of a packed batch, with word dropout and label smoothing as configured.

    The balance loss of experts is added for every target.
    """
    from glassformer.data.batching.labeled_batches import IGNORED
    from glassformer.data.batching.pair_batches import hide_words
    from glassformer.training.balance_loss import balance_loss, watching_routers
    from glassformer.training.fused_loss import token_loss

    tokens = hide_words(batch.tokens, config.word_dropout)
    scores: list[Tensor] = []
    with watching_routers(model, scores.append):
        loss = token_loss(
            model,
            lambda: model(tokens, segments=batch.segments),
            batch.targets,
            smoothing=config.label_smoothing,
            ignore=IGNORED,
        )
    if not scores or not model.config.expert_balance:
        return loss
    n_targets = (batch.targets != IGNORED).sum()
    balance = balance_loss(scores, model.config.experts_per_token, batch.is_learned_document())
    return loss + model.config.expert_balance * n_targets * balance


def score_with_experts(model: Any, score: "Callable[[], Scores]") -> dict[str, float]:
    """Return the scores that `score` computes with a model. If it has experts, print how evenly they were chosen."""
    from glassformer.progress import say
    from glassformer.training.balance_loss import RoutedTokens, watching_routers

    routed = RoutedTokens(model.config.experts_per_token)
    with watching_routers(model, routed.add):
        found = dict(score().values)
    if routed.n_tokens:
        say(routed.in_words())
    return found


def packed_flops(model: "Model", batch: "PackedBatch") -> int:
    """Return the number of floating-point operations of training on a packed batch."""
    from glassformer.models.costs import training_flops

    rows, length = batch.tokens.shape
    return training_flops(model.config, batch=rows, target_length=length)


def check_fine_tuning(config: Any) -> None:
    """Raise ValueError if the config asks for something that a pretrained model cannot do."""
    if config.grow_from is not None:
        raise ValueError(
            f"--grow-from {config.grow_from}: the model was not trained by Glassformer: expected a folder that "
            "`glassformer train` wrote; --from fine-tunes pretrained models"
        )
    if config.train.word_dropout:
        raise ValueError(
            f"word_dropout={config.train.word_dropout}: expected 0, the model of --from {config.start_from} was not "
            "trained with hidden words"
        )
    if config.tokenizer.bpe_dropout:
        raise ValueError(
            f"bpe_dropout={config.tokenizer.bpe_dropout}: expected 0, the model of --from {config.start_from} "
            "keeps its own tokenizer"
        )


def spread_characters(documents: Sequence[Document], limit: int) -> list[Document]:
    """Return documents of at most `limit` characters: if they are few, the beginning of each; else the first ones.

    Each of a few long texts may be the only one of its share of a `--mix`.
    """
    if len(documents) > FEW or sum(len(one.text) for one in documents) <= limit:
        return first_characters(documents, limit)
    found, left = [], limit
    for rank, document in enumerate(sorted(documents, key=lambda one: len(one.text))):
        room = left // (len(documents) - rank)
        found.append(Document(document.text[:room], document.where) if len(document.text) > room else document)
        left -= len(found[-1].text)
    return found


def first_characters(documents: Sequence[Document], limit: int) -> list[Document]:
    """Return the first documents, up to a total of `limit` characters. The last one is cut to fit."""

    def cut() -> Iterator[Document]:
        left = limit
        for document in documents:
            if left <= 0:
                return
            yield document if len(document.text) <= left else Document(document.text[:left], document.where)
            left -= len(document.text)

    return list(cut())
