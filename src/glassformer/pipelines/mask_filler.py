"""A pretrained masked language model (BERT) that fills in blanks with one token each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from glassformer.data.batching.labeled_batches import IGNORED, LabeledBatch
from glassformer.data.batching.noised_batches import MaskedBatch, MaskedBatches, SurroundingTokens
from glassformer.data.batching.text_rows import InMemoryRows, Rows
from glassformer.data.readers.plain_texts import PlainText
from glassformer.models import EncoderModel
from glassformer.pipelines.blanks import (
    BLANK,
    BlankWord,
    best_choices,
    fill_in,
    put_marks,
    texts_of,
    without_blanks,
)
from glassformer.pipelines.encoder_pipeline import EncoderPipeline, Reader
from glassformer.pipelines.pipeline import (
    READING_BATCH_TOKENS,
    LineAnswer,
    LineRequest,
    ManyTexts,
    as_json_number,
    check_texts,
    each_text,
)
from glassformer.runtime.shared_work import divide_work
from glassformer.text import Tokenizer
from glassformer.text.encoded import Encoded
from glassformer.text.tokenizer import UNKNOWN

if TYPE_CHECKING:  # `glassformer run` imports no metrics
    from glassformer.metrics.scores import Scores

SHOWN_WORDS = 5
"""For how many words of a blank `run --json` shows the probability, if --n-best does not ask for more."""
MASK = "<mask>"
"""The mask token of tokenizers that were trained with Glassformer."""


class MaskFiller(EncoderPipeline[PlainText]):
    """An encoder, pretrained like BERT, that fills in each blank with one token.

    `share` is the fraction of the tokens that is masked in training and by `score`. Like every `EncoderPipeline`, it
    also turns texts into vectors.
    """

    task, head = "masking", "language_model"

    def __init__(self, model: EncoderModel, reader: Reader, *, share: float = 0.15):
        super().__init__(model, reader, share=share)
        self.share = share

    @overload
    def fill(self, lines: str) -> str: ...
    @overload
    def fill(self, lines: ManyTexts) -> list[str]: ...
    def fill(self, lines: str | ManyTexts) -> str | list[str]:
        """Return each line with its blanks (`___`) replaced by the most likely token. One string gives one string.

        A line without blanks is returned unchanged. Blanks beyond the model's limit stay; such lines are counted in
        `n_truncated`.
        """
        return each_text(lines, self._fill, "lines")

    def _fill(self, lines: list[str]) -> list[str]:
        return [
            fill_in(line, (words[0].word for words in blanks))
            for line, blanks in zip(lines, self._words_for(lines, 1), strict=True)
        ]

    @overload
    def words_for(self, lines: str, *, n: int = 5) -> list[list[BlankWord]]: ...
    @overload
    def words_for(self, lines: ManyTexts, *, n: int = 5) -> list[list[list[BlankWord]]]: ...
    def words_for(self, lines: str | ManyTexts, *, n: int = 5) -> list[list[BlankWord]] | list[list[list[BlankWord]]]:
        """Return the `n` most likely words for each blank of each line, with their probabilities, the best ones first.

        One string gives the words of its blanks. The probabilities of all tokens of the vocabulary sum to 1. Blanks
        beyond the model's limit have no words; such lines are counted in `n_truncated`.
        """
        if n < 1:
            raise ValueError(f"n={n}: expected 1 or more words for each blank")
        return each_text(lines, lambda several: self._words_for(several, n), "lines")

    def _words_for(self, lines: Sequence[str], n: int) -> list[list[list[BlankWord]]]:
        cut = [without_blanks(line) for line in lines]
        mask, limit, rows, asked = mask_of(self.reader), self.model.config.max_len, [], []
        n_cut = 0
        for (_, places), read in zip(cut, self.reader.read([(line, None) for line, _ in cut]), strict=True):
            marked = put_marks(read, places, [mask] * len(places))
            ids = marked[:limit]
            n_cut += len(ids) < len(marked)
            asked.append([place for place, token in enumerate(ids) if token == mask and places])
            length = len(ids)
            rows.append(Encoded(ids, read.spans[:length], read.token_types[:length], read.sources[:length]))
        self.count_truncated(n_cut, len(lines), limit)
        known = words_of(self.reader, self.model)
        wanted = min(2 * n + SHOWN_WORDS, len(known))  # more than n, because several tokens may be the same word

        def likeliest(model: nn.Module, batch: LabeledBatch) -> Tensor:
            """Return token ids and probabilities for the masked tokens of each text: (B, most masks, 2 wanted)."""
            assert isinstance(model, EncoderModel)
            ids = torch.from_numpy(known).to(batch.tokens.device)
            is_masked = batch.tokens == mask
            types = batch.token_types if model.config.token_types else None
            hidden = model.encode(batch.tokens, batch.mask, token_types=types)[is_masked]  # (M, C)
            logits = model.apply_head(hidden[None])[0][:, ids].float()
            best = logits.topk(wanted)
            found = torch.zeros(len(batch.tokens), int(is_masked.sum(1).max()), 2 * wanted, device=logits.device)
            order = is_masked.cumsum(1)[is_masked] - 1  # the number of each masked token in its text
            # float32 holds ids up to 2**24 exactly.
            numbers = torch.cat([ids[best.indices].float(), best.values.sub(logits.logsumexp(-1, True)).exp()], -1)
            found[is_masked.nonzero()[:, 0], order] = numbers
            return found

        return [
            [self._as_words(answer[number], n) for number in range(len(blanks))]
            for blanks, answer in zip(asked, self.answers(rows, ask=likeliest), strict=True)
        ]

    def _as_words(self, found: Tensor, n: int) -> list[BlankWord]:
        """Return the n best words. Of tokens that differ in the spaces around a word, the best one counts."""
        ids, probabilities = found.view(2, -1).tolist()
        words: dict[str, float] = {}
        for word, probability in zip(self.reader.tokenizer.tokens(map(int, ids)), probabilities, strict=True):
            words.setdefault(word.strip(), probability)
        return [BlankWord(word, probability) for word, probability in words.items()][:n]

    @override
    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Return each line with its blanks (`___`) filled in. A line without blanks is returned unchanged.

        The score of a filled line is the geometric mean of the probabilities of its words.
        """
        lines = check_texts(lines, "lines")
        n = max(request.n_best or 1, SHOWN_WORDS if request.with_scores else 1)
        found = iter(self._words_for([line for line in lines if BLANK in line], n))
        return [self._answer(line, next(found) if BLANK in line else [], request) for line in lines]

    def _answer(self, line: str, blanks: list[list[BlankWord]], request: LineRequest) -> LineAnswer:
        choices = best_choices(blanks, request.n_best or 1)
        texts = tuple(fill_in(line, words) for words, _ in choices)
        scores = tuple(as_json_number(probability) for _, probability in choices) if blanks else (None,)
        record: dict[str, Any] = {"text": texts[0]}
        if request.with_scores:
            record["blanks"] = [
                [{"word": word, "probability": as_json_number(chance)} for word, chance in words] for words in blanks
            ]
        if request.n_best is not None:
            record["n_best"] = [
                {"text": text, "score": score} for text, score in zip(texts, scores, strict=True) if blanks
            ]
        return LineAnswer(texts[0], record, texts, scores)

    def score(self, examples: Sequence[PlainText]) -> "Scores":
        """Mask tokens of the examples and return the mean loss and the accuracy of predicting them.

        The same tokens are masked in every call.
        """
        from glassformer.metrics.token_accuracy import score_token_accuracy
        from glassformer.training.losses import label_smoothed_cross_entropy

        device = next(self.model.parameters()).device
        was_training = self.model.training
        self.model.eval()
        rows = InMemoryRows(texts_of(examples), self.encode, longest=self.longest)
        batches = self.batches(rows, max_tokens=self.batch_tokens or READING_BATCH_TOKENS, seed=0)

        def compare(step: int) -> tuple[float, int, int]:
            batch = batches[step]
            self.model.embeddings.check("tokens", batch.tokens)  # on the host: a wrong id makes a GPU unusable
            batch = batch.to(device)
            logits = masked_answers(self.model, batch).flatten(0, 1).float()
            answers = batch.answers.flatten()
            loss = label_smoothed_cross_entropy(logits, answers, ignore=IGNORED, reduction="sum").item()
            return loss, int((logits.argmax(-1) == answers).sum()), batch.n_target_tokens

        with torch.inference_mode():
            found = divide_work(range(len(batches)), lambda steps: [compare(step) for step in steps])
        self.model.train(was_training)
        loss, hits, count = (sum(numbers) for numbers in zip((0.0, 0, 0), *found, strict=True))
        return score_token_accuracy(loss, int(hits), int(count))

    @property
    def longest(self) -> int:
        """The largest number of tokens of a text that the model reads at once, not counting special tokens."""
        return max(1, (self.model.config.max_len or 512) - len(surrounding_tokens(self.reader)))

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens."""
        read = self.reader.read([(text, None) for text in texts])
        return [[i for i, source in zip(one.ids, one.sources, strict=True) if source is not None] for one in read]

    def batches(self, rows: Rows, *, max_tokens: int, seed: int) -> MaskedBatches:
        """Return batches of texts with randomly masked tokens, for training and scoring.

        `rows` are the tokenized texts, and `max_tokens` limits the size of a batch.
        """
        return MaskedBatches(
            rows,
            surrounding_tokens(self.reader),
            share=self.share,
            mask=mask_of(self.reader),
            words=words_of(self.reader, self.model),
            max_tokens=max_tokens,
            seed=seed,
        )


def masked_answers(model: EncoderModel, batch: MaskedBatch) -> Tensor:
    """Return the logits at the P masked positions of each text: (B, T) -> (B, P, V).

    The head is not applied to other positions, which saves time because most tokens are not masked.
    """
    hidden = model.encode(batch.tokens, batch.mask)
    chosen = hidden.gather(1, batch.places[:, :, None].expand(-1, -1, hidden.shape[-1]))  # (B, P, C)
    return model.apply_head(chosen)


def mask_of(reader: Reader) -> int:
    """Return the id of the mask token. If a tokenizer trained with Glassformer has no <mask>, return that of <unk>.

    Raise ValueError if a pretrained tokenizer has no mask token.
    """
    tokenizer = reader.tokenizer
    if isinstance(tokenizer, Tokenizer):
        return tokenizer.special_id(MASK) if tokenizer.has_special(MASK) else UNKNOWN
    if tokenizer.mask is None:
        raise ValueError("the tokenizer has no mask token: expected a mask_token in its files")
    return tokenizer.mask


def words_of(reader: Reader, model: EncoderModel) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the ids of all tokens that a blank may be filled with: those that are not special tokens."""
    size = min(reader.tokenizer.vocab_size, model.config.vocab_size)
    return np.array([index for index in range(size) if index not in reader.tokenizer.special_ids], dtype=np.int64)


def surrounding_tokens(reader: Reader) -> SurroundingTokens:
    """Return the special tokens that the tokenizer puts around every text."""
    read = reader.read([("a", None)])[0]
    own = [place for place, source in enumerate(read.sources) if source is not None]
    return SurroundingTokens(read.ids[: own[0]], read.ids[own[-1] + 1 :], reader.pad)
