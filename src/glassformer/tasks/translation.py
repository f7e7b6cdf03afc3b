"""Translation: from sentence pairs to a model folder that translates."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.data.batches import CycledBatches, PairBatch, TokenBudgetBatches
from glassformer.data.corpora import CORPORA, open_corpus
from glassformer.data.pairs import OnBad, Pair, PairReader
from glassformer.data.splits import Split, split_pairs
from glassformer.data.token_files import EncodeBatch, TokenFiles, write_token_files
from glassformer.metrics import TranslationScores
from glassformer.models import EncoderDecoderModel, ModelConfig
from glassformer.models.costs import training_flops
from glassformer.tasks.runs import run_folder, train_run
from glassformer.tasks.translator import Translator
from glassformer.text import BpeDropout, Tokenizer, TokenizerConfig
from glassformer.text.tokenizer import PAD, UNKNOWN
from glassformer.training.config import TrainConfig
from glassformer.training.state import TrainState

MAX_VALID = 500
"""Sentences translated at each validation."""


@dataclass(frozen=True, kw_only=True)
class PairData:
    """Where sentence pairs come from: files of your own, or a named corpus."""

    source: tuple[Path, ...] = ()
    """Text files, aligned with `target`; or .tsv, .csv, .jsonl with both sides; .gz too."""
    target: tuple[Path, ...] = ()
    valid_source: tuple[Path, ...] = ()
    """For validation. Without it, a twenty-fifth of the training pairs, chosen by a hash of their sources."""
    valid_target: tuple[Path, ...] = ()
    source_column: str = "source"
    target_column: str = "target"
    on_bad: OnBad = "error"
    """What to do with a bad record: stop and name its file and line, or count and skip it."""
    corpus: str = ""
    """interface-texts, multi30k or tatoeba, instead of files."""
    folder: Path | None = None
    """Where multi30k or tatoeba lie."""
    source_language: str = "en"
    target_language: str = "de"

    def splits(self) -> Mapping[Split, Iterable[Pair]]:
        """The pairs of each side; `test` may be missing where the files are the user's own."""
        if self.corpus:
            return open_corpus(
                self.corpus, folder=self.folder, source=self.source_language, target=self.target_language
            )
        if not self.source:
            raise ValueError("no data: expected source and target files, or a corpus")
        train = self._read(self.source, self.target)
        if self.valid_source:
            return {"train": train, "valid": self._read(self.valid_source, self.valid_target)}
        sides = split_pairs(train, test=0.0)
        return {"train": sides["train"], "valid": sides["valid"]}

    def _read(self, source: tuple[Path, ...], target: tuple[Path, ...]) -> PairReader:
        return PairReader(source, target, self.source_column, self.target_column, self.on_bad)


def default_model() -> ModelConfig:
    """A small model that learns on two cores: the paper's, right-sized for tens of thousands of pairs."""
    return ModelConfig(
        vocab_size=4000,
        n_encoder_layers=3,
        n_decoder_layers=3,
        d_model=192,
        n_heads=4,
        d_ff=384,
        max_len=256,
        norm_placement="pre",
        scale_embeddings=True,
        tie="all",
        head="language_model",
        output_bias=False,
        dropout=0.2,
        embedding_dropout=0.2,
    )


@dataclass(frozen=True, kw_only=True)
class TranslationConfig:
    """A whole recipe."""

    data: PairData = field(default_factory=PairData)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig = field(default_factory=default_model)
    """Its vocab_size is the most tokens the tokenizer may learn; with a source_vocab_size each side has its own."""
    train: TrainConfig = field(default_factory=TrainConfig)


@dataclass(kw_only=True)
class Prepared:
    """Tokenizers and token files of a corpus, ready to train on."""

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    train: list[TokenFiles]
    """One, or with BPE-dropout several versions of the same pairs."""
    valid: TokenFiles
    valid_pairs: list[Pair]
    """The first few: those that each validation translates."""
    test_pairs: list[Pair]
    n_long: int
    """Training pairs left out because a side was longer than the model's limit."""
    skipped: Counter[str]
    """Bad records passed over, by what was wrong with them."""


def prepare(config: TranslationConfig, folder: Path) -> Prepared:
    """Read the pairs, train the tokenizers, write the token files."""
    splits = config.data.splits()
    valid_pairs, test_pairs = list(islice(splits["valid"], MAX_VALID)), list(splits.get("test", []))
    if not valid_pairs:
        raise ValueError("no pairs are left for validation: expected valid_source and valid_target files, or more data")
    sizes = config.model.vocab_size, config.model.source_vocab_size
    if sizes[1] is None:
        joint = Tokenizer.train((text for pair in splits["train"] for text in pair), sizes[0], config.tokenizer)
        source_tokenizer = target_tokenizer = joint
    else:
        source_tokenizer = Tokenizer.train((p.source for p in splits["train"]), sizes[1], config.tokenizer)
        target_tokenizer = Tokenizer.train((p.target for p in splits["train"]), sizes[0], config.tokenizer)
    max_len = (config.model.max_len or 10**9) - 1
    plain: list[EncodeBatch] = [source_tokenizer.encode_batch, target_tokenizer.encode_batch]
    valid, _ = write_token_files(folder / "valid", splits["valid"], *plain, max_len=max_len)
    versions = [plain]
    if config.tokenizer.bpe_dropout:
        chance, seed = config.tokenizer.bpe_dropout, config.train.seed
        droppers = [BpeDropout(tokenizer, chance, seed) for tokenizer in (source_tokenizer, target_tokenizer)]
        numbers = range(config.tokenizer.bpe_versions)
        versions = [[partial(dropper.encode_batch, version=number) for dropper in droppers] for number in numbers]
    written = [
        write_token_files(folder / f"train-{number}", splits["train"], *encoders, max_len=max_len)
        for number, encoders in enumerate(versions)
    ]
    return Prepared(
        source_tokenizer=source_tokenizer,
        target_tokenizer=target_tokenizer,
        train=[files for files, _ in written],
        valid=valid,
        valid_pairs=valid_pairs,
        test_pairs=test_pairs,
        n_long=max(n_long for _, n_long in written),
        skipped=Counter(getattr(splits["train"], "skipped", ())),
    )


def fitted_model_config(config: ModelConfig, prepared: Prepared) -> ModelConfig:
    """The config with the vocabulary the tokenizer really learned, which may be smaller than it was allowed."""
    source = None if config.source_vocab_size is None else prepared.source_tokenizer.vocab_size
    return replace(config, vocab_size=prepared.target_tokenizer.vocab_size, source_vocab_size=source)


def make_loss(model: nn.Module, config: TrainConfig) -> Callable[[PairBatch], Tensor]:
    """The sum of token losses of a batch: smoothed cross-entropy, with word dropout and R-Drop where asked for."""

    def loss(batch: PairBatch) -> Tensor:
        if config.r_drop:  # both passes in one, as a batch twice as large
            batch = PairBatch(*(torch.cat((x, x)) for x in batch))
        source, target = (hide_words(x, config.word_dropout) for x in (batch.source, batch.target_in))
        logits = model(source, target, batch.source_mask, batch.target_mask).flatten(0, 1)
        answers = batch.target_out.flatten()
        loss = F.cross_entropy(
            logits, answers, ignore_index=PAD, reduction="sum", label_smoothing=config.label_smoothing
        )
        if not config.r_drop:
            return loss
        differs = disagreement(*logits.chunk(2)) * (answers.chunk(2)[0] != PAD)
        return loss / 2 + config.r_drop * differs.sum()

    return loss


def hide_words(tokens: Tensor, chance: float) -> Tensor:
    """Each real token becomes <unk> with this chance; special ones stay."""
    if not chance:
        return tokens
    hidden = (torch.rand(tokens.shape, device=tokens.device) < chance) & (tokens > UNKNOWN)
    return tokens.masked_fill(hidden, UNKNOWN)


def disagreement(first: Tensor, second: Tensor) -> Tensor:
    """A quarter of the symmetric Kullback-Leibler divergence of two predictions for each token: (N, V) twice -> (N).

    R-Drop's equation 2 has a half; the other half is that the losses of the two passes are averaged here. As
    p·log(p/q) + q·log(q/p) = (p - q)·(log p - log q), one product serves both directions.
    """
    a, b = first.float().log_softmax(-1), second.float().log_softmax(-1)
    return ((a.exp() - b.exp()) * (a - b)).sum(-1) / 4


def train_translation(config: TranslationConfig, out: Path) -> TranslationScores | None:
    """Train a translator into the model folder `out`; what the run needs to go on stands in `out.run` beside it.

    Called again with the same config, it goes on where it stopped. Returns the scores on the test pairs, where there
    are any.
    """
    run = run_folder(out, config)
    prepared = prepare(config, run / "tokens")
    torch.manual_seed(config.train.seed)
    model = EncoderDecoderModel(fitted_model_config(config.model, prepared))
    model.set_gradient_checkpointing(config.train.gradient_checkpointing)
    translator = Translator(model, prepared.source_tokenizer, prepared.target_tokenizer)
    batches = CycledBatches(
        [
            TokenBudgetBatches(files, max_tokens=config.train.max_tokens, seed=config.train.seed)
            for files in prepared.train
        ]
    )
    valid = TokenBudgetBatches(prepared.valid, max_tokens=config.train.max_tokens)
    heard = prepared.valid_pairs

    def evaluate() -> dict[str, float]:
        scores = translator.score(heard, beam=1)
        return {"loss": validation_loss(model, valid), "bleu": scores.bleu, "chrf": scores.chrf}

    notes = [
        f"{len(prepared.train[0]):,} pairs to learn from ({prepared.n_long} too long), "
        f"{len(heard)} to validate on; {prepared.target_tokenizer.vocab_size:,} tokens; "
        f"{len(batches)} batches an epoch, {batches.padding_share():.1%} of them padding"
    ]
    if prepared.skipped:
        reasons = ", ".join(f"{count:,} with {problem}" for problem, count in prepared.skipped.most_common())
        notes.append(f"passed over {prepared.skipped.total():,} bad records: {reasons}")
    state = train_run(
        run,
        model,
        config.train,
        batches=batches,
        loss=lambda module: make_loss(module, config.train),
        evaluate=evaluate,
        flops=partial(_flops, model.config, config.train),
        notes=notes,
    )
    scores = translator.score(prepared.test_pairs) if prepared.test_pairs else None
    translator.save(out, model_card(config, state, scores))
    return scores


def _flops(model: ModelConfig, train: TrainConfig, batch: PairBatch) -> int:
    (rows, source_length), target_length = batch.source.shape, batch.target_in.shape[1]
    once = training_flops(model, batch=rows, source_length=source_length, target_length=target_length)
    return 2 * once if train.r_drop else once


def model_card(config: TranslationConfig, state: TrainState, scores: TranslationScores | None) -> str:
    """What the model is, in Markdown: data, recipe, scores."""
    data = config.data
    what = data.corpus or ", ".join(str(path) for path in data.source)
    lines = [
        f"# {data.source_language} to {data.target_language} translation",
        "",
        f"Trained by Glassformer on {what}: {state.update:,} updates, {state.tokens:,} target tokens, "
        f"{state.seconds / 60:.1f} minutes.",
        "",
    ]
    if data.corpus in CORPORA:
        lines += [f"The data: {CORPORA[data.corpus].about}. Licence: {CORPORA[data.corpus].licence}.", ""]
    if scores is not None:
        lines += ["| test | score | signature |", "|---|---|---|"]
        lines += [f"| BLEU | {scores.bleu:.2f} | `{scores.bleu_signature}` |"]
        lines += [f"| chrF | {scores.chrf:.2f} | `{scores.chrf_signature}` |", ""]
    recipe = json.dumps(asdict(config), indent=2, default=str)
    return "\n".join([*lines, "## Recipe", "", "```json", recipe, "```", ""])


def validation_loss(model: EncoderDecoderModel, batches: TokenBudgetBatches) -> float:
    """Mean negative log-probability of a target token, without smoothing."""
    device = next(model.parameters()).device
    total, tokens = 0.0, 0
    for step in range(len(batches)):
        batch = batches[step].to(device)
        logits = model(batch.source, batch.target_in, batch.source_mask, batch.target_mask).flatten(0, 1).float()
        total += F.cross_entropy(logits, batch.target_out.flatten(), ignore_index=PAD, reduction="sum").item()
        tokens += batch.n_target_tokens
    return total / max(tokens, 1)
