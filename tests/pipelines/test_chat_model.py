"""Fine-tuned chat models: their scores, and the folders that are refused."""

import pytest

from glassformer.checkpoint import load_model
from glassformer.data.readers.conversations import AnswerPair, Conversation
from glassformer.decoding import GenerationConfig
from glassformer.pipelines.chat_model import ChatModel, PreferenceModel
from glassformer.pipelines.load import load
from glassformer.pipelines.pretrained_base import read_base
from tasks.pretrained_models import save_decoder

USER = {"role": "user", "content": "one"}


@pytest.fixture
def folder(tmp_path):
    save_decoder(tmp_path / "hf")
    return tmp_path / "hf"


def test_a_saved_model_loads_with_its_template_and_generation_settings(folder, tmp_path):
    model = ChatModel(load_model(folder), read_base(folder))
    model.save(tmp_path / "m", "card")
    again = load(tmp_path / "m")
    assert isinstance(again, ChatModel)
    assert again.template == model.template
    assert again.generation == model.generation
    assert again.sample_answer([USER]) == model.sample_answer([USER])
    (tmp_path / "m" / "origin.json").unlink()
    with pytest.raises(ValueError, match=r"origin\.json|manifest"):
        load(tmp_path / "m")


def test_long_conversations_are_counted_and_left_out(folder):
    model = ChatModel(load_model(folder), read_base(folder))
    short = Conversation((USER, {"role": "assistant", "content": "eins"}))
    long = Conversation((USER, {"role": "assistant", "content": "eins " * 200}))
    assert model.score([short, long]).values == model.score([short]).values
    assert model.n_truncated == 1
    with pytest.raises(ValueError, match="no token of an answer to score on"):
        model.score([long])
    pairs = PreferenceModel(load_model(folder), read_base(folder))
    found = pairs.score([AnswerPair((USER,), "eins", "eins " * 9), AnswerPair((USER,), "eins " * 9, "eins")])
    assert found["win_rate"] == 50
    with pytest.raises(ValueError, match="no pair of answers to score on"):
        pairs.score([])


def test_lines_are_messages_unless_the_caller_continues_them(folder):
    model = ChatModel(load_model(folder), read_base(folder))
    short = GenerationConfig(max_new_tokens=5, min_new_tokens=5)
    asked, continued = (model.run("one two", chat=chat, config=short) for chat in (True, False))
    assert asked != continued
    assert model.run("one two", config=short) == asked
    assert model.run(["one two"], config=short) == [asked]
