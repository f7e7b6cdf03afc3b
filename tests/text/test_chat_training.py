"""Which tokens of a conversation are learned: those that the assistant writes, and the end of its turn."""

import pytest

from glassformer.text.chat_rendering import render_chat
from glassformer.text.chat_training import MarkedTokens, mark_answer, mark_conversation, show_marked
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from tasks.pretrained_models import TEMPLATE, save_tokenizer

MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "eins"},
    {"role": "user", "content": "<|im_end|> two"},
    {"role": "assistant", "content": "zwei"},
]
FORGETTING = (
    "{% for m in messages %}{{ m.role }}: "
    "{% if loop.last or m.role != 'assistant' %}{{ m.content }}{% else %}...{% endif %}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture
def tokenizer(tmp_path):
    save_tokenizer(tmp_path)
    return PretrainedTokenizer.from_folder(tmp_path)


def learned(marked, tokenizer):
    return tokenizer.tokens(index for index, counts in zip(*marked, strict=True) if counts)


def test_the_answers_and_their_ends_are_learned(tokenizer):
    (marked,) = mark_conversation(MESSAGES, TEMPLATE, tokenizer)
    assert marked.ids == render_chat(MESSAGES, TEMPLATE, tokenizer, add_generation_prompt=False)
    assert "".join(learned(marked, tokenizer)) == "eins<|im_end|>zwei<|im_end|>"
    # The learned tokens follow exactly the prompt that the model will see before it answers.
    prompt = render_chat(MESSAGES[:4], TEMPLATE, tokenizer)
    assert marked.ids[: len(prompt)] == prompt
    assert marked.is_learned[len(prompt)]
    (unfinished,) = mark_conversation([*MESSAGES, {"role": "user", "content": "three"}], TEMPLATE, tokenizer)
    assert learned(unfinished, tokenizer) == learned(marked, tokenizer)


def test_a_template_that_changes_earlier_messages_gives_one_row_for_each_answer(tokenizer):
    rows = mark_conversation(MESSAGES, FORGETTING, tokenizer)
    assert ["".join(learned(row, tokenizer)) for row in rows] == ["eins<|im_end|>", "zwei<|im_end|>"]


def test_learned_tokens_are_shown_in_brackets_or_colors(tokenizer):
    marked = mark_answer([{"role": "user", "content": "one"}], "eins", TEMPLATE, tokenizer)
    assert show_marked(marked, tokenizer, colors=False) == (
        "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n[eins<|im_end|>]\n"
    )
    colored = show_marked(MarkedTokens(marked.ids[:1], [True]), tokenizer, colors=True)
    assert colored == "\x1b[32m<|im_start|>\x1b[0m"
