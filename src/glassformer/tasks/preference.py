"""Preference: fine-tune a decoder on preferred and rejected answers, by DPO, IPO or ORPO."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from typing_extensions import override

from glassformer.base.fields import Positive
from glassformer.base.plurals import counted
from glassformer.data.readers.conversations import PREFERENCE_COLUMNS, AnswerPair, make_preference
from glassformer.data.readers.records import RecordReader
from glassformer.tasks.configs.shared import FileData, TaskConfig
from glassformer.tasks.conversation_task import ConversationConfig, ConversationTask
from glassformer.tasks.prepared import Prepared, skipped_note
from glassformer.training.train_config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.data.batching.marked_rows import MarkedRows
    from glassformer.data.batching.preference_batches import PreferenceBatch, PreferenceBatches
    from glassformer.models.transformer import Model
    from glassformer.text.chat_training import MarkedTokens
    from glassformer.training.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class PreferenceData(FileData[AnswerPair]):
    """Options that choose the data for preferences: pairs of answers from files."""

    NO_FILES = "no data: expected at least one .jsonl file with prompt, chosen and rejected"

    data: tuple[Path, ...] = ()
    """Files with prompt, chosen and rejected (.jsonl, .gz too), each a text or a list of messages."""

    @override
    def split_key(self, example: AnswerPair) -> str:
        return repr(example.messages)

    @override
    def read(self, paths: tuple[Path, ...]) -> Iterable[AnswerPair]:
        return RecordReader(paths, PREFERENCE_COLUMNS, make_preference, self.on_bad)


@dataclass(frozen=True, kw_only=True)
class PreferenceConfig(ConversationConfig):
    """The complete config of fine-tuning on preferences."""

    data: PreferenceData = field(default_factory=PreferenceData)
    train: TrainConfig = field(
        default_factory=lambda: replace(ConversationConfig().train, updates=500, max_tokens=2048, lr=5e-6)
    )
    preference_loss: Literal["dpo", "ipo", "orpo"] = "dpo"
    """Loss: dpo (Rafailov et al. 2023), ipo (Azar et al. 2023) or orpo (Hong et al. 2024), which needs no reference."""
    beta: Positive = 0.1
    """How closely the model stays to the model of --from, higher is closer; for orpo, the weight of the preferences."""


class Preference(ConversationTask[AnswerPair, "PreferenceBatch"]):
    """Fine-tune a decoder on preferred and rejected answers."""

    name, title, unit = "preference", "A chat model with preferences", "pairs"
    Config: ClassVar[type[TaskConfig]] = PreferenceConfig

    @override
    def unused(self) -> set[str]:
        return {*super().unused(), "label_smoothing"}

    @override
    def prepare(self, run: "RunFolder") -> Prepared[AnswerPair, "PreferenceBatch"]:
        from glassformer.data.batching.marked_rows import MarkedRows, write_marked_rows
        from glassformer.data.batching.preference_batches import PreferenceBatches
        from glassformer.progress import track

        config, train = self.config, self.config.train
        splits, first, valid, pipeline = self.open_data(run)
        n_long = 0

        def fitting(examples: Iterable[AnswerPair]) -> Iterable[Any]:
            nonlocal n_long
            for example in examples:
                sides = pipeline.mark_sides(example)
                if max(len(side.ids) for side in sides) <= config.context:
                    yield from sides
                else:
                    n_long += 1

        stored: list[PreferenceBatches] = []
        for name, examples in (("train", splits.train), ("valid", valid)):
            folder = run.tokens / f"pairs-{name}"
            if run.has_tokens(folder.name):
                rows = MarkedRows(folder)
            else:
                rows = write_marked_rows(folder, fitting(track(examples, "tokenizing")), limit=config.context)
            if not len(rows):
                raise ValueError(f"context={config.context}: all pairs are longer: expected a larger --context")
            reference = self.reference(run, name, pipeline, rows)
            pad = pipeline.tokenizer.pad or 0
            stored.append(PreferenceBatches(rows, reference, train.max_tokens, train.seed, pad))
        batches, checked = stored
        notes = [
            f"{counted(len(batches.rows) // 2, 'pairs')} to learn from, {len(checked.rows) // 2:,} to validate on "
            f"({n_long:,} left out, longer than --context {config.context}); "
            f"{counted(len(batches), 'batches', 'batch')} an epoch",
            self.show_first(pipeline.mark_sides(first)[0], pipeline),
        ]

        def evaluate() -> dict[str, float]:
            self.say_sample(pipeline, valid[0].messages)
            return self.check(pipeline, checked)

        return Prepared(
            pipeline,
            batches,
            evaluate,
            valid,
            [*notes, *skipped_note(Counter(getattr(splits.train, "skipped", ())))],
            n_train=len(batches.rows) // 2,
            validation=self.scored_on("validation", len(checked.rows) // 2, pipeline.scoring_method()),
        )

    def reference(self, run: "RunFolder", name: str, pipeline: Any, rows: Any) -> Any:
        """Return the log-probabilities of the answers before the training. They are computed once and stored."""
        import numpy as np

        from glassformer.checkpoint.model_folder import read_now
        from glassformer.runtime.devices import choose_device

        if self.config.preference_loss == "orpo":
            return np.zeros(len(rows), dtype=np.float32)

        def compute() -> list[float]:
            read_now(pipeline.model)
            pipeline.model.to(choose_device(self.config.train.device))
            return [total for total, _ in pipeline.answer_log_probs(marked_rows(rows))]

        return np.asarray(run.keep_json(f"reference-{name}.json", compute), dtype=np.float32)

    def check(self, pipeline: Any, batches: "PreferenceBatches") -> dict[str, float]:
        """Return accuracy (percent of pairs whose log-ratio to the reference is positive), win rate, margin and loss.

        `win_rate` compares the log-probabilities without the reference. `margin` is the mean of β times the log-ratio.
        """
        import torch

        from glassformer.training.preference_loss import preference_loss

        found = pipeline.answer_log_probs(marked_rows(batches.rows))
        order = [*range(0, len(found), 2), *range(1, len(found), 2)]  # the preferred answers, then the rejected ones
        log_probs, lengths = (torch.tensor([found[place][part] for place in order]) for part in (0, 1))
        reference, config = torch.from_numpy(batches.reference[order]), self.config
        loss = preference_loss(log_probs, lengths, reference, kind=config.preference_loss, beta=config.beta)
        chosen, rejected = (log_probs - reference).chunk(2)
        one, other = log_probs.chunk(2)
        return {
            "accuracy": 100 * float((chosen > rejected).float().mean()),
            "win_rate": 100 * float((one > other).float().mean()),
            "margin": config.beta * float((chosen - rejected).mean()),
            "loss": float(loss) / max(1, len(chosen)),
        }

    @override
    def loss(self, model: Any, batch: "PreferenceBatch") -> "Tensor":
        from glassformer.data.batching.labeled_batches import IGNORED
        from glassformer.training.preference_loss import answer_log_probs, preference_loss

        log_probs, lengths = answer_log_probs(model, batch.tokens, batch.targets, ignore=IGNORED)
        config = self.config
        return preference_loss(log_probs, lengths, batch.reference, kind=config.preference_loss, beta=config.beta)

    @override
    def flops(self, model: "Model", batch: "PreferenceBatch") -> int:
        from glassformer.models.costs import training_flops

        rows, length = batch.tokens.shape
        return training_flops(model.config, batch=rows, target_length=length)

    @override
    def sides(self, example: AnswerPair) -> tuple[str, str]:
        return "", "".join([*(message["content"] for message in example.messages), example.chosen, example.rejected])

    @override
    def show(self, example: AnswerPair) -> tuple[str, str]:
        return example.messages[-1]["content"], example.chosen


def marked_rows(rows: "MarkedRows") -> "list[MarkedTokens]":
    """Return stored rows as lists of ids and marks."""
    from glassformer.text.chat_training import MarkedTokens

    found = (rows[number] for number in range(len(rows)))
    return [MarkedTokens(ids.tolist(), (marks != 0).tolist()) for ids, marks in found]
