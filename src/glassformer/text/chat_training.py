"""Token ids of a conversation for training, with a mark on each token that the assistant wrote."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from glassformer.text.chat_rendering import render_chat
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer

GREEN, GRAY, PLAIN = "\x1b[32m", "\x1b[90m", "\x1b[0m"


class MarkedTokens(NamedTuple):
    """The ids of a rendered conversation, and for each id whether it is learned."""

    ids: list[int]
    is_learned: list[bool]


def mark_conversation(
    messages: Sequence[Mapping[str, str]], template: str, tokenizer: PretrainedTokenizer
) -> list[MarkedTokens]:
    """Render a conversation with the model's chat template, and mark the tokens of the assistant's messages.

    A learned message starts where the model would start to answer, and ends with the token that ends its turn. Usually
    the result has one element. If the template changes earlier messages, as those that leave out earlier thoughts do,
    each message of the assistant gives an element of its own, as the model will see it.
    """
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    apart = [mark_answer(messages[:turn], messages[turn]["content"], template, tokenizer) for turn in turns]
    last = apart[-1]
    if turns[-1] != len(messages) - 1:
        ids = render_chat(messages, template, tokenizer, add_generation_prompt=False)
        last = MarkedTokens(ids, [False] * len(ids))
    is_learned = list(last.is_learned)
    for one in apart:
        if last.ids[: len(one.ids)] != one.ids:
            return apart
        for place, learned in enumerate(one.is_learned):
            is_learned[place] = is_learned[place] or learned
    return [MarkedTokens(last.ids, is_learned)]


def mark_answer(
    messages: Sequence[Mapping[str, str]], answer: str, template: str, tokenizer: PretrainedTokenizer
) -> MarkedTokens:
    """Render a conversation with the assistant's answer at its end, and mark the tokens of the answer."""
    prompt = render_chat(messages, template, tokenizer)
    said = {"role": "assistant", "content": answer}
    whole = render_chat([*messages, said], template, tokenizer, add_generation_prompt=False)
    pairs = zip(prompt, whole, strict=False)
    begin = next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(prompt), len(whole)))
    end = len(whole)
    stops = [place for place in range(begin, end) if whole[place] in tokenizer.ends]
    if stops:  # what follows the end of a turn, such as a line break, is never generated
        end = stops[-1] + 1
    return MarkedTokens(whole, [begin <= place < end for place in range(len(whole))])


def show_marked(marked: MarkedTokens, tokenizer: PretrainedTokenizer, *, colors: bool) -> str:
    """Return a conversation as text in which the learned tokens are green, or without `colors` in brackets."""
    shown: list[str] = []
    before = False
    for piece, learned in zip(tokenizer.tokens(marked.ids), marked.is_learned, strict=True):
        if learned != before or not shown:
            shown.append((GREEN if learned else GRAY) if colors else "[" if learned else "]" if before else "")
            before = learned
        shown.append(piece)
    return "".join([*shown, PLAIN if colors else "]" * before])
