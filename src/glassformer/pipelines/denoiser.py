"""A pretrained denoising encoder-decoder (T5, BART) that fills in blanks with any number of words."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from typing_extensions import override

from glassformer.data.batching.data_order import Numbers
from glassformer.data.batching.noise import Noised, hide_spans, infill, shuffle_sentences, span_counts, written_spans
from glassformer.data.batching.noised_batches import DenoisingBatches
from glassformer.data.batching.text_rows import InMemoryRows, Rows
from glassformer.data.readers.plain_texts import PlainText
from glassformer.decoding import GenerationConfig
from glassformer.models import EncoderDecoderModel
from glassformer.pipelines.blanks import BLANK, fill_in, put_marks, texts_of, without_blanks
from glassformer.pipelines.examples import NoiseName
from glassformer.pipelines.pipeline import (
    WRITING_BATCH_TOKENS,
    Candidate,
    LineAnswer,
    LineRequest,
    answer_of,
    candidate_of,
    check_texts,
)
from glassformer.pipelines.seq2seq_pipeline import Seq2SeqPipeline
from glassformer.runtime.shared_work import divide_work
from glassformer.text import Tokenizer
from glassformer.text.tokenizer import PAD

if TYPE_CHECKING:  # `glassformer run` imports no metrics
    from glassformer.metrics.scores import Scores

MASK, SENTINEL = "<mask>", "<extra_id_{}>"
"""Special tokens that replace hidden text. The noise "infilling" uses MASK for every span. The noise "spans" numbers
the spans of a text: <extra_id_0>, <extra_id_1>, ..."""


ROOM = 3
"""How many tokens shorter than `max_len` a training text is: BEGIN or END and two sentinels must fit too."""


class Denoiser(Seq2SeqPipeline[PlainText]):
    """An encoder-decoder, pretrained like T5 or BART, that fills in each blank with any number of words.

    Three settings describe how its training texts were corrupted. `noise` is the method: "spans" as in T5, or
    "infilling" as in BART. `share` is the fraction of the tokens that was hidden, and `mean_span` is the mean number of
    tokens in a hidden span.
    """

    task = "denoising"
    search = GenerationConfig(num_beams=4, max_source_ratio=2.0)

    def __init__(
        self,
        model: EncoderDecoderModel,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        generation: GenerationConfig | None = None,
        *,
        noise: NoiseName,
        share: float,
        mean_span: float,
    ):
        super().__init__(
            model, source_tokenizer, target_tokenizer, generation, noise=noise, share=share, mean_span=mean_span
        )
        self.noise, self.share, self.mean_span = noise, share, mean_span
        self.longest = max(1, (model.config.max_len or 512) - ROOM)
        special = specials_of(noise, self.longest, share, mean_span)
        missing = [name for name in special if not source_tokenizer.has_special(name)]
        if missing:
            raise ValueError(
                f"the tokenizer has no {missing[0]}, which {noise} with share={share} and mean_span={mean_span} "
                "need: expected a model that `glassformer train denoising` wrote with these, or none to begin with"
            )
        self.marks = [source_tokenizer.special_id(name) for name in special]

    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Return each line with its blanks (`___`) filled in. A line without blanks is returned unchanged."""
        config, lines = request.generation or self.generation, check_texts(lines, "lines")
        if config.stop_strings:
            raise ValueError(f"stop_strings={config.stop_strings}: expected none, because the model fills in blanks")
        with_blanks = [index for index, line in enumerate(lines) if BLANK in line]
        sources = [self.encode_source(lines[index]) for index in with_blanks]
        answers = [[Candidate(line)] for line in lines]
        for index, several in zip(
            with_blanks, self._generate(self.read_sources(sources), config, request.with_scores), strict=True
        ):
            filled = [self._filled(lines[index], written.tokens) for written in several]
            pairs = zip(several, filled, strict=True)
            answers[index] = [candidate_of(written, text, config.length_penalty) for written, text in pairs]
        return [answer_of(one, request) for one in answers]

    @override
    def encode_source(self, text: str) -> list[int]:
        """Return the token ids of a line without END, with a mark in place of each blank."""
        line, places = without_blanks(text)
        marks = self.marks if self.noise == "spans" else self.marks * len(places)
        if len(marks) < len(places):
            raise ValueError(f"a line has {len(places)} blanks: expected at most {len(marks)}")
        (read,) = self.source_tokenizer.offsets_batch([(line, None)])
        return put_marks(read, places, marks)[:-1]  # `read_sources` puts END back

    def _filled(self, line: str, tokens: list[int]) -> str:
        """Return `line` with its blanks filled in, given the `tokens` that the decoder generated for it.

        With the noise "infilling" the decoder writes the whole line; with "spans" it writes only the hidden spans.
        """
        decode = self.target_tokenizer.decode
        if self.noise == "infilling":
            return decode(tokens)
        return fill_in(line, map(decode, written_spans(tokens, self.marks).values()))

    def score(self, examples: Sequence[PlainText]) -> "Scores":
        """Corrupt the examples and return how well the model predicts the target tokens: mean loss and accuracy.

        Each token is predicted from the correct tokens before it (teacher forcing).
        """
        from glassformer.metrics.token_accuracy import score_token_accuracy
        from glassformer.training.losses import label_smoothed_cross_entropy

        device = next(self.model.parameters()).device
        was_training = self.model.training
        self.model.eval()
        rows = InMemoryRows(texts_of(examples), self.source_tokenizer.encode_batch, longest=self.longest)
        batches = self.batches(rows, max_tokens=self.batch_tokens or WRITING_BATCH_TOKENS, seed=0)

        def compare(step: int) -> tuple[float, int, int]:
            batch = batches[step]
            self.model.source_embeddings.check("source", batch.source)  # on the host: a wrong id makes a GPU
            self.model.target_embeddings.check("target", batch.target_in)  # unusable
            batch = batch.to(device)
            logits = self.model(batch.source, batch.target_in, batch.source_mask, batch.target_mask)
            logits, answers = logits.flatten(0, 1).float(), batch.target_out.flatten()
            loss = label_smoothed_cross_entropy(logits, answers, ignore=PAD, reduction="sum").item()
            return loss, int(((logits.argmax(-1) == answers) & (answers != PAD)).sum()), batch.n_target_tokens

        with torch.inference_mode():
            found = divide_work(range(len(batches)), lambda steps: [compare(step) for step in steps])
        self.model.train(was_training)
        loss, hits, count = (sum(numbers) for numbers in zip((0.0, 0, 0), *found, strict=True))
        return score_token_accuracy(loss, int(hits), int(count))

    def scoring_method(self) -> str:
        """Describe how `score` predicts: each token from the correct tokens before it (teacher forcing)."""
        return "each token predicted after the correct ones"

    def batches(self, rows: Rows, *, max_tokens: int, seed: int) -> DenoisingBatches:
        """Return batches for training and scoring, whose sources are texts corrupted by the method `self.noise`.

        `rows` are the tokenized texts, and `max_tokens` limits the size of a batch.
        """
        if self.noise == "spans":
            spans = partial(hide_spans, share=self.share, mean_span=self.mean_span, sentinels=self.marks)
            return DenoisingBatches(rows, spans, self._span_sizes, max_tokens=max_tokens, seed=seed)
        size = self.source_tokenizer.vocab_size
        tokens = self.source_tokenizer.tokens(range(size))
        stops = [index for index, text in enumerate(tokens) if text.endswith((".", "!", "?"))]
        infilling = partial(
            _infill, share=self.share, mean_span=self.mean_span, mask=self.marks[0], stops=np.array(stops, np.int64)
        )
        return DenoisingBatches(rows, infilling, lambda lengths: (lengths, lengths), max_tokens=max_tokens, seed=seed)

    def _span_sizes(self, lengths: Numbers) -> tuple[Numbers, Numbers]:
        hidden, spans = span_counts(lengths, self.share, self.mean_span)
        return lengths - hidden + spans, hidden + spans + 1


def specials_of(noise: NoiseName, longest: int, share: float, mean_span: float) -> list[str]:
    """Return the special tokens that the tokenizer of a denoiser needs for texts of at most `longest` tokens.

    The noise "spans" needs a different token for each hidden span of a text, and one more. "infilling" needs only MASK.
    """
    if noise == "infilling":
        return [MASK]
    most = int(span_counts(np.arange(1, longest + 1), share, mean_span)[1].max())
    return [SENTINEL.format(number) for number in range(most + 1)]


def _infill(ids: Numbers, random: np.random.Generator, *, stops: Numbers, mask: int, **how: float) -> Noised:
    shuffled = shuffle_sentences(ids, random, stops=stops)
    return Noised(infill(shuffled, random, mask=mask, **how), ids)
