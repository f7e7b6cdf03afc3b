"""Tasks that answer messages: the options that they refuse, and the model that they need."""

import pytest

import glassformer
from glassformer.pipelines.language_model import LanguageModel
from glassformer.tasks.chat import Chat, ChatConfig
from glassformer.tasks.conversation_task import ConversationConfig
from pipelines.tiny_pipelines import make
from tasks.talk_data import QUICK, write_conversations


def test_a_model_that_was_trained_here_has_no_chat_template(tmp_path):
    make(LanguageModel).save(tmp_path / "m", "card")
    write_conversations(tmp_path / "c.jsonl")
    with pytest.raises(ValueError, match="has no chat template: expected a pretrained model"):
        glassformer.train(
            "chat", data=tmp_path / "c.jsonl", start_from=tmp_path / "m", out=tmp_path / "o", updates=1, **QUICK
        )


def test_options_without_effect_are_named():
    assert issubclass(ChatConfig, ConversationConfig)
    assert {"word_dropout", "bpe_dropout", "r_drop"} <= Chat(ChatConfig()).unused()
