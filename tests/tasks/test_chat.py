"""Fine-tuning on conversations: what is learned, the saved model, and what is refused."""

import pytest
import torch

import glassformer
from glassformer.pipelines.generator import Generator
from glassformer.tasks.chat import Chat, ChatConfig, ChatData
from glassformer.text.chat_training import mark_conversation
from tasks.pretrained_models import save_decoder
from tasks.talk_data import QUICK, train_chat, write_conversations


def test_a_chat_model_answers_messages_and_is_a_generator(tmp_path, capsys):
    folder = train_chat(tmp_path)
    told = capsys.readouterr().err
    assert "[eins<|im_end|>]" in told or "[drei<|im_end|>]" in told or "[vier<|im_end|>]" in told or "[zwei" in told
    assert "sample: " in told
    tool = glassformer.load(folder)
    assert isinstance(tool, Generator)
    assert tool.can_chat
    assert "".join(tool.chat([{"role": "user", "content": "two 3"}]))
    glassformer.convert(folder, to="hf", out=tmp_path / "again")
    again = glassformer.load(tmp_path / "again")
    assert again.can_chat
    ids = torch.tensor([tool.answer_to([{"role": "user", "content": "two 3"}])])
    with torch.no_grad():
        torch.testing.assert_close(again.model(ids), tool.model(ids))


def test_the_loss_is_that_of_the_assistants_tokens(tmp_path):
    folder = train_chat(tmp_path, updates=2)
    tool = glassformer.load(folder)
    examples = ChatData(data=(tmp_path / "c.jsonl",)).examples()[:3]
    total, count = 0.0, 0
    for example in examples:
        (marked,) = mark_conversation(example.messages, tool.template, tool.tokenizer)
        with torch.no_grad():
            log_probs = tool.model(torch.tensor([marked.ids])).log_softmax(-1)[0]
        for place, counts in enumerate(marked.is_learned):
            if counts:
                total, count = total - log_probs[place - 1, marked.ids[place]].item(), count + 1
    assert tool.score(examples)["loss"] == pytest.approx(total / count, abs=1e-5)


def test_the_default_context_is_the_limit_of_the_model(tmp_path, capsys):
    save_decoder(tmp_path / "hf")
    write_conversations(tmp_path / "c.jsonl")
    options = {name: value for name, value in QUICK.items() if name != "context"}
    glassformer.train(
        "chat", data=tmp_path / "c.jsonl", start_from=tmp_path / "hf", out=tmp_path / "o", updates=1, **options
    )
    assert "longer than --context 128" in capsys.readouterr().err


def test_what_does_not_fit_is_refused(tmp_path):
    save_decoder(tmp_path / "bare", template=None)
    write_conversations(tmp_path / "c.jsonl")

    def train(name, **options):
        glassformer.train("chat", data=tmp_path / "c.jsonl", out=tmp_path / name, updates=1, **{**QUICK, **options})

    with pytest.raises(ValueError, match="train chat needs a trained model to start with: expected --from MODEL"):
        train("a")
    with pytest.raises(ValueError, match="the model has no chat template: expected --chat-template FILE"):
        train("b", start_from=tmp_path / "bare")
    save_decoder(tmp_path / "hf")
    with pytest.raises(ValueError, match="context=500: expected at most 128, the limit of the model"):
        train("c", start_from=tmp_path / "hf", context=500)
    with pytest.raises(ValueError, match="context=8: all conversations are longer"):
        train("d", start_from=tmp_path / "hf", context=8)
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    (tmp_path / "t.jinja").write_text(template, encoding="utf-8")
    train("e", start_from=tmp_path / "bare", chat_template=tmp_path / "t.jinja")
    assert glassformer.load(tmp_path / "e").tokenizer.chat_template == template
    task = Chat(ChatConfig())
    example = ChatData(data=(tmp_path / "c.jsonl",)).examples()[0]
    assert task.show(example) == (example.messages[0]["content"], example.messages[-1]["content"])
