"""Translation: from sentence pairs to a model folder that translates."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.checkpoint import load_model, save_model
from glassformer.checkpoint.safe_files import write_text
from glassformer.data.batches import PairBatch, TokenBudgetBatches
from glassformer.data.corpora import CORPORA, open_corpus, split_pairs
from glassformer.data.pairs import OnBad, Pair, PairReader
from glassformer.data.splits import Split
from glassformer.data.token_files import TokenFiles, write_token_files
from glassformer.decoding.beam import translate_by_beam
from glassformer.decoding.greedy import translate_greedily
from glassformer.metrics import TranslationScores, score_translations
from glassformer.models import EncoderDecoderModel, ModelConfig
from glassformer.text import Tokenizer, TokenizerConfig
from glassformer.text.tokenizer import BEGIN, END, PAD, UNKNOWN
from glassformer.training.config import TrainConfig
from glassformer.training.journal import Journal
from glassformer.training.state import TrainState
from glassformer.training.trainer import Trainer

GENERATION = "generation_config.json"
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
        sides = split_pairs(list(train), test=0.0)
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


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How a translation is searched for."""

    beam: int = 4
    """Sentences kept at each step; 1 is greedy."""
    length_penalty: float = 1.0
    max_ratio: float = 2.0
    """Longest translation: this many times the source's tokens, and 10 more."""


class Translator:
    """A trained model with its tokenizers: text in, text out."""

    def __init__(
        self,
        model: EncoderDecoderModel,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        generation: Generation | None = None,
    ):
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.generation = generation or Generation()

    @classmethod
    def from_folder(cls, folder: Path | str) -> "Translator":
        """The translator saved in a model folder."""
        folder = Path(folder)
        model = load_model(folder)
        if not isinstance(model, EncoderDecoderModel):
            raise ValueError(f"{folder} holds a model of kind {model.kind!r}: expected 'encoder_decoder'")
        joint = folder / "tokenizer.json"
        sides = [joint, joint] if joint.is_file() else [folder / f"{s}_tokenizer.json" for s in ("source", "target")]
        settings = json.loads((folder / GENERATION).read_text(encoding="utf-8"))
        return cls(model, Tokenizer.load(sides[0]), Tokenizer.load(sides[1]), Generation(**settings))

    def save(self, folder: Path, card: str) -> None:
        """Write the model folder."""
        texts = {"README.md": card, GENERATION: json.dumps(asdict(self.generation), indent=2)}
        if self.source_tokenizer is self.target_tokenizer:
            texts["tokenizer.json"] = self.source_tokenizer.to_json()
        else:
            texts["source_tokenizer.json"] = self.source_tokenizer.to_json()
            texts["target_tokenizer.json"] = self.target_tokenizer.to_json()
        save_model(folder, self.model, texts)

    def translate(self, texts: Sequence[str], *, beam: int | None = None, max_tokens: int = 4096) -> list[str]:
        """One translation for each text, in the same order; a blank text stays blank.

        Sources longer than the model's limit are cut to it.
        """
        limit = (self.model.config.max_len or 512) - 1
        sources = [ids[:limit] for ids in self.source_tokenizer.encode_batch(list(texts))]
        answers = [""] * len(texts)
        waiting = [i for i in sorted(range(len(texts)), key=lambda i: -len(sources[i])) if texts[i].strip()]
        self.model.eval()
        while waiting:
            size = max(1, max_tokens // (len(sources[waiting[0]]) + 1))
            chosen, waiting = waiting[:size], waiting[size:]
            for index, ids in zip(chosen, self._search([sources[i] for i in chosen], beam), strict=True):
                answers[index] = self.target_tokenizer.decode(ids)
        return answers

    def _search(self, sources: list[list[int]], beam: int | None) -> list[list[int]]:
        device = next(self.model.parameters()).device
        longest = max(len(ids) for ids in sources) + 1
        source = torch.tensor([[*ids, END] + [PAD] * (longest - len(ids) - 1) for ids in sources], device=device)
        limit = self.model.config.max_len or 10**9
        max_new = min(int(longest * self.generation.max_ratio) + 10, limit)
        width = self.generation.beam if beam is None else beam
        if width == 1:
            return translate_greedily(self.model, source, source != PAD, begin=BEGIN, end=END, max_new=max_new)
        found = translate_by_beam(
            self.model,
            source,
            source != PAD,
            begin=BEGIN,
            end=END,
            max_new=max_new,
            width=width,
            length_penalty=self.generation.length_penalty,
        )
        return [hypotheses[0].tokens for hypotheses in found]

    def score(self, pairs: Sequence[Pair], *, beam: int | None = None) -> TranslationScores:
        """BLEU and chrF of the translations of these sources against their targets."""
        return score_translations(
            self.translate([pair.source for pair in pairs], beam=beam), [pair.target for pair in pairs]
        )


@dataclass
class Prepared:
    """Tokenizers and token files of a corpus, ready to train on."""

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    train: TokenFiles
    valid: TokenFiles
    valid_pairs: list[Pair]
    test_pairs: list[Pair]
    n_long: int
    """Training pairs left out because a side was longer than the model's limit."""


def prepare(config: TranslationConfig, folder: Path) -> Prepared:
    """Read the pairs, train the tokenizers, write the token files."""
    splits = config.data.splits()
    valid, test = list(splits["valid"]), list(splits.get("test", []))
    if not valid:
        raise ValueError("no pairs are left for validation: expected valid_source and valid_target files, or more data")
    sizes = config.model.vocab_size, config.model.source_vocab_size
    if sizes[1] is None:
        joint = Tokenizer.train((text for pair in splits["train"] for text in pair), sizes[0], config.tokenizer)
        source_tokenizer = target_tokenizer = joint
    else:
        source_tokenizer = Tokenizer.train((p.source for p in splits["train"]), sizes[1], config.tokenizer)
        target_tokenizer = Tokenizer.train((p.target for p in splits["train"]), sizes[0], config.tokenizer)
    encoders = source_tokenizer.encode_batch, target_tokenizer.encode_batch
    max_len = (config.model.max_len or 10**9) - 1
    train_files, n_long = write_token_files(folder / "train", splits["train"], *encoders, max_len=max_len)
    valid_files, _ = write_token_files(folder / "valid", valid, *encoders, max_len=max_len)
    return Prepared(source_tokenizer, target_tokenizer, train_files, valid_files, valid, test, n_long)


def fitted_model_config(config: ModelConfig, prepared: Prepared) -> ModelConfig:
    """The config with the vocabulary the tokenizer really learned, which may be smaller than it was allowed."""
    source = None if config.source_vocab_size is None else prepared.source_tokenizer.vocab_size
    return replace(config, vocab_size=prepared.target_tokenizer.vocab_size, source_vocab_size=source)


def make_loss(model: EncoderDecoderModel, config: TrainConfig) -> Callable[[PairBatch], Tensor]:
    """The sum of token losses of a batch: smoothed cross-entropy, with word dropout and R-Drop where asked for."""

    def once(batch: PairBatch) -> tuple[Tensor, Tensor]:
        source, target = (hide_words(x, config.word_dropout) for x in (batch.source, batch.target_in))
        logits = model(source, target, batch.source_mask, batch.target_mask).flatten(0, 1)
        loss = F.cross_entropy(
            logits,
            batch.target_out.flatten(),
            ignore_index=PAD,
            reduction="sum",
            label_smoothing=config.label_smoothing,
        )
        return loss, logits

    def loss(batch: PairBatch) -> Tensor:
        first, logits = once(batch)
        if not config.r_drop:
            return first
        second, other = once(batch)
        real = batch.target_out.flatten() != PAD
        return (first + second) / 2 + config.r_drop * disagreement(logits[real], other[real])

    return loss


def hide_words(tokens: Tensor, chance: float) -> Tensor:
    """Each real token becomes <unk> with this chance; special ones stay."""
    if not chance:
        return tokens
    hidden = (torch.rand(tokens.shape, device=tokens.device) < chance) & (tokens > UNKNOWN)
    return tokens.masked_fill(hidden, UNKNOWN)


def disagreement(first: Tensor, second: Tensor) -> Tensor:
    """Half the symmetric Kullback-Leibler divergence of two predictions, summed over tokens (R-Drop, equation 2)."""
    a, b = first.log_softmax(-1), second.log_softmax(-1)
    forward = F.kl_div(a, b, reduction="sum", log_target=True)
    return (forward + F.kl_div(b, a, reduction="sum", log_target=True)) / 4


def train_translation(config: TranslationConfig, out: Path) -> TranslationScores | None:
    """Train a translator into the model folder `out`; what the run needs to go on stands in `out.run` beside it.

    Called again with the same config, it goes on where it stopped. Returns the scores on the test pairs, where there
    are any.
    """
    run = out.with_name(f"{out.name}.run")
    _remember(run / "config.json", config)
    prepared = prepare(config, run / "tokens")
    torch.manual_seed(config.train.seed)
    model = EncoderDecoderModel(fitted_model_config(config.model, prepared))
    model.set_gradient_checkpointing(config.train.gradient_checkpointing)
    translator = Translator(model, prepared.source_tokenizer, prepared.target_tokenizer)
    batches = TokenBudgetBatches(prepared.train, max_tokens=config.train.max_tokens, seed=config.train.seed)
    valid = TokenBudgetBatches(prepared.valid, max_tokens=config.train.max_tokens)
    heard = prepared.valid_pairs[:MAX_VALID]

    def evaluate() -> dict[str, float]:
        scores = translator.score(heard, beam=1)
        return {"loss": validation_loss(model, valid), "bleu": scores.bleu, "chrf": scores.chrf}

    with Journal(run, config.train) as journal:
        journal.say(
            f"{len(prepared.train):,} pairs to learn from ({prepared.n_long} too long), {len(heard)} to validate on; "
            f"{model.n_parameters():,} parameters, {prepared.target_tokenizer.vocab_size:,} tokens; "
            f"{len(batches)} batches an epoch, {batches.padding_share():.1%} of them padding"
        )
        trainer = Trainer(
            model=model,
            config=config.train,
            batches=batches,
            loss=make_loss(torch.compile(model) if config.train.compile else model, config.train),  # type: ignore[arg-type]
            evaluate=evaluate,
            folder=run / "checkpoints",
            on_update=journal.update,
            on_evaluation=journal.evaluation,
            warn=journal.say,
        )
        trainer.run()
    scores = translator.score(prepared.test_pairs) if prepared.test_pairs else None
    translator.save(out, model_card(config, trainer.state, scores))
    return scores


def _remember(path: Path, config: TranslationConfig) -> None:
    """Keep the config of a run, or raise where the folder holds the run of another one."""
    text = json.dumps(asdict(config), indent=2, default=str)
    if path.is_file() and path.read_text(encoding="utf-8") != text:
        raise ValueError(f"{path.parent} holds a run with other settings: expected the same, another out, or remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


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
