"""Masked words (Devlin et al. 2019): from texts alone to an encoder that other tasks begin with."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.data.batching.labeled_batches import IGNORED, LabeledBatch
from glassformer.data.batching.noised_batches import Frame, MaskedBatch, MaskedBatches
from glassformer.data.batching.text_rows import HeldRows, Rows
from glassformer.data.readers.plain_texts import PlainText
from glassformer.metrics.scores import Scores
from glassformer.metrics.token_accuracy import score_commonest, score_guesses
from glassformer.models import EncoderModel
from glassformer.models.costs import training_flops
from glassformer.models.transformer import Model
from glassformer.tasks.beginnings import load_beginning
from glassformer.tasks.configs.pretraining import MaskingConfig, TextData
from glassformer.tasks.configs.shared import Splits
from glassformer.tasks.encoders import EncoderTool, Reader, fresh_head, read_batch, reader_of
from glassformer.tasks.pipeline import LineAnswer, ManyTexts, Request, each_text
from glassformer.tasks.pretraining import BLANK, MAX_VALID, fill_in, put_marks, texts_of, token_rows, without_blanks
from glassformer.tasks.task import MORE_DATA, Prepared, Task, kept_tokenizer, passed_over
from glassformer.text import Tokenizer
from glassformer.text.encoded import Encoded
from glassformer.text.tokenizer import UNKNOWN
from glassformer.training.losses import label_smoothed_cross_entropy
from glassformer.training.run_folder import RunFolder

MASK = "<mask>"
"""The special token that hides a word from a model of ours."""


class WordGuesser(EncoderTool[PlainText]):
    """A trained model with its tokenizer: it fills in blanks, and makes vectors of texts."""

    task, head = "masking", "language_model"

    def __init__(self, model: EncoderModel, reader: Reader, *, share: float = 0.15):
        super().__init__(model, reader, share=share)
        self.share = share

    @overload
    def fill(self, lines: str) -> str: ...
    @overload
    def fill(self, lines: ManyTexts) -> list[str]: ...
    def fill(self, lines: str | ManyTexts) -> str | list[str]:
        """Put a word into each blank of a line, written as three underscores. Each word is one token.

        One string gives one line, a list a list. A line without blanks stays as it is.
        """
        return each_text(lines, self._fill, "lines")

    def _fill(self, lines: list[str]) -> list[str]:
        cut = [without_blanks(line) for line in lines]
        mask, limit, rows, asked = mask_of(self.reader), self.model.config.max_len, [], []
        for (_, places), read in zip(cut, self.reader.read([(line, None) for line, _ in cut]), strict=True):
            ids = put_marks(read, places, [mask] * len(places))[:limit]
            asked.append([place for place, token in enumerate(ids) if token == mask and places])
            n = len(ids)
            rows.append(Encoded(ids, read.spans[:n], read.token_types[:n], read.sources[:n]))
        words = words_of(self.reader, self.model)

        def likeliest(model: nn.Module, batch: LabeledBatch) -> Tensor:
            known = torch.from_numpy(words).to(batch.tokens.device)
            return known[read_batch(model, batch)[:, :, known].argmax(-1)]

        found = []
        for line, blanks, answer in zip(lines, asked, self.answers(rows, ask=likeliest), strict=True):
            tokens = self.reader.tokenizer.tokens(int(answer[place]) for place in blanks)
            found.append(fill_in(line, (token.strip() for token in tokens)))
        return found

    def answer_lines(self, lines: Sequence[str], request: Request) -> list[LineAnswer]:
        """As above; a line without blanks stays as it is."""
        filled = iter(self._fill([line for line in lines if BLANK in line]))
        texts = [next(filled) if BLANK in line else line for line in lines]
        return [LineAnswer(text, {"text": text}) for text in texts]

    def score(self, examples: Sequence[PlainText]) -> Scores:
        """The mean loss of hidden tokens, and how many of them are guessed; what is hidden is always the same."""
        device = next(self.model.parameters()).device
        was_training = self.model.training
        self.model.eval()
        loss, hits, count = 0.0, 0, 0
        batches = self.batches(HeldRows(texts_of(examples), self.encode, longest=self.longest), max_tokens=8192, seed=0)
        with torch.inference_mode():
            for step in range(len(batches)):
                batch = batches[step].to(device)
                logits = masked_answers(self.model, batch).flatten(0, 1).float()
                answers = batch.answers.flatten()
                loss += label_smoothed_cross_entropy(logits, answers, ignore=IGNORED, reduction="sum").item()
                hits += int((logits.argmax(-1) == answers).sum())
                count += batch.n_target_tokens
        self.model.train(was_training)
        return score_guesses(loss, hits, count)

    @property
    def longest(self) -> int:
        """Tokens of a text that the model reads at once, beside what it expects around it."""
        return max(1, (self.model.config.max_len or 512) - len(frame_of(self.reader)))

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each text alone."""
        read = self.reader.read([(text, None) for text in texts])
        return [[i for i, source in zip(one.ids, one.sources, strict=True) if source is not None] for one in read]

    def batches(self, rows: Rows, *, max_tokens: int, seed: int) -> MaskedBatches:
        """Rows with hidden tokens, as this model learns them."""
        return MaskedBatches(
            rows,
            frame_of(self.reader),
            share=self.share,
            mask=mask_of(self.reader),
            words=words_of(self.reader, self.model),
            max_tokens=max_tokens,
            seed=seed,
        )


class Masking(Task[PlainText, MaskedBatch]):
    """Texts to an encoder that knows words by their neighbours."""

    name, title, unit, sample_line = "masking", "An encoder", "texts", f"the {BLANK} sleeps"
    Config, Data, Tool = MaskingConfig, TextData, WordGuesser

    def begin(self, train: Iterable[PlainText], run: RunFolder | None = None) -> tuple[WordGuesser, list[str]]:
        """The tool before it learns, and the names of its parameters that a checkpoint to begin with did not bring."""
        config = self.config
        if config.start_from is None:
            size, how = config.model.vocab_size, config.tokenizer
            own = kept_tokenizer(run, lambda: Tokenizer.train(texts_of(train), size, how, more_special=[MASK]))
            shape = replace(config.model, vocab_size=own.vocab_size)
            return WordGuesser(EncoderModel(shape), Reader.own(own), share=config.share), []
        body, reader = load_beginning(config.start_from, EncoderModel), reader_of(config.start_from)
        if body.config.head == "language_model":
            return WordGuesser(body, reader, share=config.share), []
        narrow = body.config.table_width != body.config.d_model
        model = body.under(body.config.with_head("language_model", tie="output", head_transform=narrow))
        return WordGuesser(model, reader, share=config.share), fresh_head(model)

    def prepare(self, run: RunFolder) -> Prepared[PlainText, MaskedBatch]:
        """As above."""
        config, splits = self.config, self.config.data.splits()
        valid, test = list(islice(splits.valid, MAX_VALID)), list(splits.test)
        if not valid:
            raise ValueError(f"no texts are left for validation: {MORE_DATA}")
        tool, fresh = self.begin(splits.train, run)
        rows = token_rows(run, splits.train, tool.encode, tool.longest)
        batches = tool.batches(rows, max_tokens=config.train.max_tokens, seed=config.train.seed)
        hidden = "a special token of its own" if mask_of(tool.reader) != UNKNOWN else "<unk>"
        notes = [
            f"{len(rows):,} rows of at most {tool.longest} tokens to learn from, {rows.lengths.sum():,} in all; "
            f"{len(valid):,} texts to validate on; {tool.model.config.vocab_size:,} tokens, hidden by {hidden}"
        ]
        notes += passed_over(getattr(splits.train, "skipped", None) or Counter())
        return Prepared(
            tool,
            batches,
            lambda: dict(tool.score(valid).values),
            test or valid,
            notes,
            fresh,
            n_train=len(rows),
            is_test=bool(test),
            validation=self.scored_on("validation", len(valid)),
        )

    def unused(self) -> set[str]:
        """As above."""
        return {"r_drop", "word_dropout", "compile"}

    def loss(self, model: nn.Module, batch: MaskedBatch) -> Tensor:
        """As above."""
        logits = masked_answers(model, batch).flatten(0, 1).float()
        smoothing = self.config.train.label_smoothing
        return label_smoothed_cross_entropy(logits, batch.answers, smoothing=smoothing, ignore=IGNORED, reduction="sum")

    def flops(self, model: Model, batch: MaskedBatch) -> int:
        """As above."""
        (rows, length), config = batch.tokens.shape, model.config
        body = training_flops(config.with_head("none"), batch=rows, source_length=length)
        return body + 6 * batch.answers.numel() * config.d_model * config.vocab_size

    @classmethod
    def demo(cls) -> MaskingConfig:
        """Docstrings of the standard library."""
        usual = MaskingConfig()
        return MaskingConfig(
            data=TextData(corpus="docstrings"),
            model=replace(usual.model, vocab_size=2000, max_len=64),
            train=replace(usual.train, minutes=2.5, max_tokens=1024, warmup=40, lr=2e-3, eval_every=250),
        )

    def baseline(self, splits: Splits[PlainText]) -> tuple[str, Scores]:
        """The commonest token of all."""
        tool, _ = self.begin(splits.train)

        def hidden(texts: Iterable[PlainText]) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
            rows = HeldRows(texts_of(texts), tool.encode, longest=tool.longest)
            batches = tool.batches(rows, max_tokens=8192, seed=0)
            for step in range(len(batches)):
                answers = batches[step].answers.numpy()
                yield answers[answers != IGNORED]

        held_out = [*splits.test] or [*splits.valid]
        size = tool.model.config.vocab_size
        return "the commonest token", score_commonest(hidden(splits.train), hidden(held_out), size)

    def sides(self, example: PlainText) -> tuple[str, str]:
        """As above."""
        return example.text, ""

    def show(self, example: PlainText) -> tuple[str, str]:
        """An example for people: a text with a blank, and the text."""
        words = example.text.split()[:12]
        hidden = [*words]
        hidden[len(words) // 2] = BLANK
        return " ".join(hidden), " ".join(words)


def masked_answers(model: nn.Module, batch: MaskedBatch) -> Tensor:
    """Logits of the hidden tokens alone, for most are not: (B, T) -> (B, P, V)."""
    body: Any = model  # a compiled model's `encode` is the one that was not compiled
    hidden = body.encode(batch.tokens, batch.mask)
    chosen = hidden.gather(1, batch.places[:, :, None].expand(-1, -1, hidden.shape[-1]))  # (B, P, C)
    return body.apply_head(chosen)


def mask_of(reader: Reader) -> int:
    """What hides a word: a checkpoint's own token for it; of ours <mask>, or <unk>, which no text of ours holds."""
    tokenizer = reader.tokenizer
    if isinstance(tokenizer, Tokenizer):
        return tokenizer.special_id(MASK) if tokenizer.has_special(MASK) else UNKNOWN
    if tokenizer.mask is None:
        raise ValueError("the tokenizer has no token to hide words by: expected a mask_token")
    return tokenizer.mask


def words_of(reader: Reader, model: EncoderModel) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """The tokens that texts are made of."""
    size = min(reader.tokenizer.vocab_size, model.config.vocab_size)
    return np.array([index for index in range(size) if index not in reader.tokenizer.special_ids], dtype=np.int64)


def frame_of(reader: Reader) -> Frame:
    """What stands around every text."""
    read = reader.read([("a", None)])[0]
    own = [place for place, source in enumerate(read.sources) if source is not None]
    return Frame(read.ids[: own[0]], read.ids[own[-1] + 1 :], reader.pad)
