import io
import json
import sys

import pytest

from glassformer.cli import main
from glassformer.cli import terminal_chat as module
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.language_model import LanguageModel
from pipelines.tiny_pipelines import make


def call(monkeypatch, capsys, lines, *arguments, code=None):
    monkeypatch.setattr(sys, "argv", ["glassformer", "chat", *map(str, arguments)])
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    if code is None:
        main()
    else:
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == code
    return capsys.readouterr()


@pytest.fixture
def heard(monkeypatch):
    """Let a model answer each conversation with the number of its messages, and return the conversations."""
    found = []

    def answer(messages):
        found.append([dict(message) for message in messages])
        yield from (str(len(messages)), "!")

    monkeypatch.setattr(module, "_local", lambda path, given, compute: (answer, "mock"))
    return found


def test_a_conversation_has_several_turns(monkeypatch, capsys, heard):
    printed = call(monkeypatch, capsys, ["hi", "", "again", "//slash"], "m", "--system", "be brief")
    assert printed.out == "2!\n4!\n6!\n"
    assert [message["role"] for message in heard[-1]] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert heard[-1][-1]["content"] == "/slash"


def test_commands_change_the_conversation(monkeypatch, capsys, heard, tmp_path):
    file = tmp_path / "talk.json"
    lines = [
        "hi",
        "/system be kind",
        "/reset",
        "and",
        f"/save {file}",
        f"/save {file}",
        "/save",
        "/what",
        "/quit",
        "never",
    ]
    printed = call(monkeypatch, capsys, lines, "m")
    assert heard[-1] == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "and"}]
    assert len(heard) == 2
    assert [message["role"] for message in json.loads(file.read_text(encoding="utf-8"))] == [
        "system",
        "user",
        "assistant",
    ]
    assert "exists already" in printed.err
    assert "/save needs the name" in printed.err
    assert "/what is not a command" in printed.err
    assert "/reset" in printed.err


def test_an_answer_that_fails_or_is_stopped_leaves_the_conversation_usable(monkeypatch, capsys):
    heard, outcomes = [], [ValueError("too long"), KeyboardInterrupt(), None]

    def answer(messages):
        heard.append([message["content"] for message in messages])
        yield "part"
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    monkeypatch.setattr(module, "_local", lambda path, given, compute: (answer, "mock"))
    printed = call(monkeypatch, capsys, ["one", "two", "three"], "m")
    assert "too long" in printed.err
    assert "[stopped]" in printed.out
    assert heard == [["one"], ["two"], ["two", "part", "three"]]


def test_a_local_model_answers(monkeypatch, capsys):
    pipeline = make(Generator)
    monkeypatch.setattr("glassformer.pipelines.load.load", lambda *_, **__: pipeline)
    printed = call(monkeypatch, capsys, ["hi"], "m", "--max-new-tokens", 3, "--temperature", 1, "--seed", 2)
    from glassformer.cli.run_options import search_of

    search = search_of(pipeline.generation, {"max_new_tokens": 3, "temperature": 1.0, "seed": 2})
    expected = "".join(pipeline.chat([{"role": "user", "content": "hi"}], search))
    assert printed.out == f"{expected}\n"


def test_a_model_without_a_template_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("glassformer.pipelines.load.load", lambda *_, **__: make(LanguageModel))
    assert "has no chat template" in call(monkeypatch, capsys, [], "m", code=2).err
    assert "--temperature -1" in call(monkeypatch, capsys, [], "m", "--temperature", -1, code=2).err


def test_a_server_answers(monkeypatch, capsys):
    asked = []

    class Client:
        def __init__(self, address, model, key):
            asked.append((address, model, key))
            self.model = "remote"

        def answer(self, messages, settings):
            asked.append(settings)
            yield "yes"

    monkeypatch.setattr("glassformer.serve.chat_client.ChatClient", Client)
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    printed = call(monkeypatch, capsys, ["hi"], "http://127.0.0.1:1", "--max-new-tokens", 9, "--model-name", "big")
    assert printed.out == "yes\n"
    assert asked == [("http://127.0.0.1:1", "big", "from-environment"), {"max_tokens": 9}]
