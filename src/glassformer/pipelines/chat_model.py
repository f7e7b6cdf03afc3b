"""Decoders that were fine-tuned on conversations or preferences. `glassformer chat`, `run` and `serve` use them."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from typing_extensions import override

from glassformer.checkpoint.hf.generation_settings import GENERATION
from glassformer.data.readers.conversations import AnswerPair, Conversation, Message
from glassformer.decoding import GenerationConfig
from glassformer.decoding.scoring import score_texts
from glassformer.models import DecoderModel
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.pipeline_registry import TASK
from glassformer.pipelines.pretrained_base import PretrainedBase, read_base
from glassformer.pipelines.seq2seq_pipeline import read_search
from glassformer.pipelines.settings import check_settings
from glassformer.pipelines.trained_pipeline import ModelLoader, TrainedPipeline

if TYPE_CHECKING:  # `glassformer run` imports no metrics
    from glassformer.metrics.scores import Scores
    from glassformer.text.chat_training import MarkedTokens

ChatExample = TypeVar("ChatExample", Conversation, AnswerPair)
BATCH_TOKENS = 2048
"""The most tokens of a batch that is scored, unless `batch_tokens` is given: the logits take most of the memory."""


class ConversationPipeline(Generator, TrainedPipeline[ChatExample], Generic[ChatExample]):
    """The base class of decoders that were fine-tuned to answer messages, with their tokenizer and chat template."""

    answers_messages = True

    def __init__(self, model: DecoderModel, base: PretrainedBase, generation: GenerationConfig | None = None):
        super().__init__(model, base.source, generation)
        self.base = base
        self.base_files = base.files

    @override
    @classmethod
    def read_folder(cls, folder: Path, read_model: ModelLoader) -> Self:
        model, about = cls.open_folder(folder, DecoderModel, read_model)
        check_settings(cls, about, folder / TASK)
        base = read_base(folder)
        if base is None:
            raise ValueError(f"{folder} has no origin.json: expected it, for a model that was fine-tuned")
        return cls(model, base, read_search(folder))

    @override
    def files(self) -> dict[str, str]:
        return {**self.base_files, GENERATION: json.dumps(self.generation.to_dict(), indent=2)}

    @property
    def template(self) -> str:
        """The model's chat template."""
        found = self.base.source.chat_template
        if found is None:
            raise ValueError("the model has no chat template: expected one in its tokenizer_config.json")
        return found

    def mark(self, conversation: Conversation) -> "list[MarkedTokens]":
        """Render a conversation with the chat template, and mark the tokens that the assistant wrote."""
        from glassformer.text.chat_training import mark_conversation  # imports jinja2

        return mark_conversation(conversation.messages, self.template, self.base.source)

    def mark_sides(self, preference: AnswerPair) -> "tuple[MarkedTokens, MarkedTokens]":
        """Render a conversation with the preferred and with the rejected answer, and mark the tokens of the answer."""
        from glassformer.text.chat_training import mark_answer

        chosen, rejected = (
            mark_answer(preference.messages, answer, self.template, self.base.source)
            for answer in (preference.chosen, preference.rejected)
        )
        return chosen, rejected

    def answer_log_probs(self, rows: "Sequence[MarkedTokens]") -> list[tuple[float, int]]:
        """Return the sum of the log-probabilities of the marked tokens of each row, and their number."""
        found = score_texts(self.model, [row.ids for row in rows], batch_tokens=self.batch_tokens or BATCH_TOKENS)
        return [
            (sum(p for p, counts in zip(each, row.is_learned[1:], strict=True) if counts), sum(row.is_learned[1:]))
            for each, row in zip(found, rows, strict=True)
        ]

    def fits(self, row: "MarkedTokens") -> bool:
        """Whether the model can read a row: its context is long enough."""
        limit = self.model.config.max_len
        return limit is None or len(row.ids) <= limit

    def sample_answer(self, messages: Sequence[Message], *, max_new_tokens: int = 48) -> str:
        """Return the start of the most likely answer to some messages on one line, to show it during training."""
        config = replace(self.generation, max_new_tokens=max_new_tokens, do_sample=False, num_beams=1)
        (prompt,) = self.fit_prompts([self.answer_to(messages)], config)
        return " ".join(self.candidates_after([prompt], config)[0][0].text.split())

    @override
    def scoring_method(self) -> str:
        return "log-probability of the answers"


class ChatModel(ConversationPipeline[Conversation]):
    """A decoder that was fine-tuned on conversations."""

    task = "chat"

    def score(self, examples: Sequence[Conversation]) -> "Scores":
        """Return loss (nats per token of the assistant) and perplexity. Longer conversations than the context count
        in `n_truncated`, and are left out."""
        from glassformer.metrics.scores import Scores

        rows = [row for example in examples for row in self.mark(example)]
        fitting = [row for row in rows if self.fits(row)]
        self.n_truncated += len(rows) - len(fitting)
        found = self.answer_log_probs(fitting)
        n_tokens = sum(count for _, count in found)
        if not n_tokens:
            raise ValueError("no token of an answer to score on: expected at least one that fits into the context")
        loss = -sum(total for total, _ in found) / n_tokens
        return Scores({"loss": loss, "perplexity": math.exp(min(loss, 700.0))})


class PreferenceModel(ConversationPipeline[AnswerPair]):
    """A decoder that was fine-tuned on preferred and rejected answers."""

    task = "preference"

    def score(self, examples: Sequence[AnswerPair]) -> "Scores":
        """Return the share of examples, in percent, whose preferred answer has the higher log-probability.

        `win_rate` compares the sums over the tokens of an answer, and `win_rate_per_token` their means. Validations in
        training also compare with the model before the training, which a trained model does not know.
        """
        from glassformer.metrics.scores import Scores

        pairs = [pair for pair in map(self.mark_sides, examples) if all(map(self.fits, pair))]
        self.n_truncated += len(examples) - len(pairs)
        if not pairs:
            raise ValueError("no pair of answers to score on: expected at least one that fits into the context")
        found = self.answer_log_probs([side for pair in pairs for side in pair])
        chosen, rejected = found[::2], found[1::2]
        wins = sum(one[0] > other[0] for one, other in zip(chosen, rejected, strict=True))
        means = sum(
            one[0] / max(one[1], 1) > other[0] / max(other[1], 1) for one, other in zip(chosen, rejected, strict=True)
        )
        values: dict[str, Any] = {"win_rate": wins, "win_rate_per_token": means}
        return Scores({name: 100 * count / len(pairs) for name, count in values.items()})
