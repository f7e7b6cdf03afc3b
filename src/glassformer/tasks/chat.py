"""Chat: supervised fine-tuning of a decoder on conversations. It learns the messages of the assistant only."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from glassformer.base.plurals import counted
from glassformer.data.readers.conversations import CONVERSATION_COLUMNS, Conversation, make_conversation
from glassformer.data.readers.records import RecordReader
from glassformer.tasks.configs.shared import FileData, TaskConfig
from glassformer.tasks.conversation_task import ConversationConfig, ConversationTask
from glassformer.tasks.decoder_task import packed_flops, packed_loss, score_with_experts
from glassformer.tasks.prepared import Prepared, skipped_note

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.data.batching.packed_windows import PackedBatch
    from glassformer.models.transformer import Model
    from glassformer.training.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class ChatData(FileData[Conversation]):
    """Options that choose the data for chat: conversations from files."""

    NO_FILES = "no data: expected at least one .jsonl file with conversations"

    data: tuple[Path, ...] = ()
    """Files with conversations (.jsonl, .gz too): messages with role and content as OpenAI has them, or conversations
    with from and value as ShareGPT has them."""

    @override
    def split_key(self, example: Conversation) -> str:
        return example.messages[0]["content"] if len(example.messages) < 3 else repr(example.messages[:2])

    @override
    def read(self, paths: tuple[Path, ...]) -> Iterable[Conversation]:
        return RecordReader(paths, CONVERSATION_COLUMNS, make_conversation, self.on_bad)


@dataclass(frozen=True, kw_only=True)
class ChatConfig(ConversationConfig):
    """The complete config of fine-tuning on conversations."""

    data: ChatData = field(default_factory=ChatData)


class Chat(ConversationTask[Conversation, "PackedBatch"]):
    """Fine-tune a decoder on conversations."""

    name, title, unit = "chat", "A chat model", "conversations"
    Config: ClassVar[type[TaskConfig]] = ChatConfig

    @override
    def prepare(self, run: "RunFolder") -> Prepared[Conversation, "PackedBatch"]:
        from glassformer.data.batching.marked_rows import MarkedBatches, MarkedRows, write_marked_rows
        from glassformer.progress import track

        config, train = self.config, self.config.train
        splits, first, valid, pipeline = self.open_data(run)
        folder = run.tokens / "conversations"
        if run.has_tokens(folder.name):
            rows = MarkedRows(folder)
        else:
            marked = (row for example in track(splits.train, "tokenizing") for row in pipeline.mark(example))
            rows = write_marked_rows(folder, marked, limit=config.context)
        if not len(rows):
            raise ValueError(f"context={config.context}: all conversations are longer: expected a larger --context")
        batches = MarkedBatches(rows, config.context, train.max_tokens, train.seed, pipeline.tokenizer.pad or 0)
        batches[0]  # an error in the data is raised before the training starts
        n_learned = sum(int(rows[index][1].sum()) for index in range(len(rows)))
        notes = [
            f"{counted(len(rows), 'conversations')} to learn from ({rows.n_long:,} left out, longer than --context "
            f"{config.context}), {len(valid):,} to validate on; {n_learned:,} of {int(rows.lengths.sum()):,} tokens "
            f"are the assistant's; {counted(len(batches.windows), 'windows')}, {batches.padding_share():.1%} of them "
            "padding",
            self.show_first(pipeline.mark(first)[0], pipeline),
        ]

        def evaluate() -> dict[str, float]:
            places = [place for place, message in enumerate(valid[0].messages) if message["role"] == "assistant"]
            self.say_sample(pipeline, valid[0].messages[: places[0]] or valid[0].messages[:1])
            return score_with_experts(pipeline.model, lambda: pipeline.score(valid))

        return Prepared(
            pipeline,
            batches,
            evaluate,
            valid,
            [*notes, *skipped_note(Counter(getattr(splits.train, "skipped", ())))],
            n_train=len(rows),
            validation=self.scored_on("validation", len(valid), pipeline.scoring_method()),
        )

    @override
    def loss(self, model: Any, batch: "PackedBatch") -> "Tensor":
        return packed_loss(model, self.config.train, batch)

    @override
    def flops(self, model: "Model", batch: "PackedBatch") -> int:
        return packed_flops(model, batch)

    @override
    def sides(self, example: Conversation) -> tuple[str, str]:
        return "", "".join(message["content"] for message in example.messages)

    @override
    def show(self, example: Conversation) -> tuple[str, str]:
        return example.messages[0]["content"], example.messages[-1]["content"]
