"""A long text that is cut into parts has the tokens of the whole text, or is not cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from glassformer.text import long_texts
from glassformer.text.long_texts import TextEncoder
from glassformer.text.word_patterns import CUTS, GPT2_WORDS, LLAMA3_WORDS

WORDS = ["The", "cat's", "1,234", "56 7", "a", "b", "I'm", "naïve", "été", "e\N{COMBINING ACUTE ACCENT}", "日本", "x_y"]
SPACES = [" ", " ", " ", "  ", "\n", " \n ", "\t", "\N{NO-BREAK SPACE}", "\N{IDEOGRAPHIC SPACE}", ""]
OTHERS = ["'s", "...", "?!", "🦙", "▁", "Ġ", "<mark>", "</s>", "\N{COMBINING ACUTE ACCENT}", "ß", "ﬁ", "Σ"]
PIECES = st.one_of(st.sampled_from(WORDS), st.sampled_from(SPACES), st.sampled_from(OTHERS), st.text(max_size=3))
LONG = st.lists(st.tuples(st.sampled_from(WORDS + OTHERS), st.sampled_from(SPACES), PIECES), max_size=12).map(
    lambda rows: "".join(piece for row in rows for piece in row)
)


def split(*patterns):
    return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]


STEPS = {
    "white space": [pre_tokenizers.WhitespaceSplit()],
    "words": [pre_tokenizers.Whitespace()],
    "bert": [pre_tokenizers.BertPreTokenizer()],
    "gpt2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "gpt2, prefixed": [pre_tokenizers.ByteLevel(add_prefix_space=True)],
    "digits, gpt2": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "metaspace": [pre_tokenizers.Metaspace()],
    "metaspace, first": [pre_tokenizers.Metaspace(prepend_scheme="first")],
    **{
        f"gguf {name}": [*split(*CUTS[name]), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        for name in ("smollm", "qwen2", "llama-bpe", "default")
    },
}
NORMALIZERS = [
    None,
    normalizers.NFC(),
    normalizers.NFKD(),
    normalizers.BertNormalizer(),
    normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]),
]


def make(steps, normalizer=None, *, model=None, around=False, added=()):
    """Return a tokenizer with merges learned from the words."""
    inner = Tokenizer(models.BPE(unk_token="<unk>") if model is None else model)
    if steps:
        inner.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    if normalizer is not None:
        inner.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=alphabet)
    inner.train_from_iterator([" ".join(WORDS), *WORDS] * 3, trainer)
    inner.add_tokens(list(added))
    if around:
        inner.post_processor = processors.TemplateProcessing(
            single="<s> $A </s> </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    return inner


@pytest.mark.parametrize("name", STEPS)
@given(data=st.data(), texts=st.lists(LONG, min_size=1, max_size=3), special=st.booleans(), part=st.integers(1, 9))
def test_parts_have_the_tokens_of_the_whole_text(name, data, texts, special, part):
    key = name, data.draw(st.integers(0, len(NORMALIZERS) - 1)), data.draw(st.booleans())
    if key not in MADE:
        MADE[key] = make(STEPS[name], NORMALIZERS[key[1]], around=key[2], added=["<mark>"])
    inner = MADE[key]
    assert long_texts.cuts_at_spaces(inner)
    whole = [inner.encode(text, add_special_tokens=special).ids for text in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_texts, "LONG_TEXT", 0)
        patch.setattr(long_texts, "PART", part)
        assert TextEncoder(inner).encode(texts, special=special) == whole


MADE = {}


def test_a_long_text_is_cut_into_parts_of_the_chosen_size():
    text = "word and more words " * 2_000
    parts = list(long_texts._parts_of(text))
    assert "".join(parts) == text
    assert all(long_texts.PART <= len(part) < long_texts.PART + 20 for part in parts[:-1])
    assert len(parts[-1]) < 2 * long_texts.PART
    assert list(long_texts._parts_of("日本語" * 5_000)) == ["日本語" * 5_000]  # no place to cut


REFUSED = {
    "no steps": make([]),
    "bytes alone": make([pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
    "spaces as letters": make([pre_tokenizers.Metaspace(split=False)]),
    "another pattern": make(split(r"\w+ \w+")),
    "the gaps of a pattern": make([pre_tokenizers.Split(Regex(GPT2_WORDS), "isolated", invert=True)]),
    "a removed pattern": make([pre_tokenizers.Split(Regex(LLAMA3_WORDS), "removed")]),
    "another pattern first": make([*split(r"a b"), pre_tokenizers.WhitespaceSplit()]),
    "the first word is changed": make([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
    "replaced spaces": make([pre_tokenizers.WhitespaceSplit()], normalizers.Replace(" ", "_")),
    "stripped parts": make([pre_tokenizers.ByteLevel(add_prefix_space=False)], normalizers.Strip()),
    "a token with a space": make([pre_tokenizers.WhitespaceSplit()], added=["a b"]),
    "a token with a space when normalized": make(
        [pre_tokenizers.WhitespaceSplit()],
        normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()]),
        added=[AddedToken("x\N{DIAERESIS}y", normalized=True)],
    ),
    "a token that takes the next space": make(
        [pre_tokenizers.WhitespaceSplit()], added=[AddedToken("a", rstrip=True, normalized=False)]
    ),
    "dropout": make([pre_tokenizers.WhitespaceSplit()], model=models.BPE(dropout=0.5)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_text_is_not_cut_where_its_tokens_could_change(name, monkeypatch):
    inner, text = REFUSED[name], "a b The cat's 56 7 " * 40
    assert not long_texts.cuts_at_spaces(inner)
    monkeypatch.setattr(long_texts, "LONG_TEXT", 0)
    monkeypatch.setattr(long_texts, "PART", 2)
    monkeypatch.setattr(long_texts, "_parts_of", None)  # it would fail
    assert len(TextEncoder(inner).encode([text], special=True)) == 1
    if name != "dropout":
        assert TextEncoder(inner).encode([text], special=True) == [inner.encode(text).ids]


def test_a_truncating_or_padding_tokenizer_is_not_used_for_parts():
    for change in ({"truncation": True}, {"padding": True}):
        inner = make([pre_tokenizers.WhitespaceSplit()])
        assert long_texts.cuts_at_spaces(inner)
        if "truncation" in change:
            inner.enable_truncation(5)
        else:
            inner.enable_padding()
        assert not long_texts.cuts_at_spaces(inner)


def in_parts(inner, text, monkeypatch):
    monkeypatch.setattr(long_texts, "LONG_TEXT", 0)
    monkeypatch.setattr(long_texts, "PART", 5)
    return TextEncoder(inner).encode([text], special=True)[0]


@pytest.mark.parametrize("single", ["<s> $A </s>", "$A </s> </s>", "<s> $A", "<s> $A </s> $A"])
def test_special_tokens_stand_where_the_template_says(single, monkeypatch):
    words = {"<s>": 0, "</s>": 1, "C": 2, "G": 3, "CG": 4}
    inner = Tokenizer(models.BPE(words, [("C", "G")]))  # the letter a has no token
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 0), ("</s>", 1)])
    text = "CG GC CCG a G CG " * 20
    assert long_texts.cuts_at_spaces(inner)
    assert in_parts(inner, text, monkeypatch) == inner.encode(text).ids
    assert in_parts(inner, "a a a a a a a a a", monkeypatch) == inner.encode("a").ids  # no token at all


def test_a_step_in_python_has_no_description_and_is_not_cut(monkeypatch):
    class Words:
        def pre_tokenize(self, text):
            text.split(lambda number, part: part.split(" ", "removed"))

    inner = make([pre_tokenizers.WhitespaceSplit()])
    inner.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Words())
    text = "a b The cat's " * 9
    assert in_parts(inner, text, monkeypatch) == inner.encode(text).ids


def test_the_description_of_a_step_is_that_of_the_file():
    inner = make(STEPS["gguf qwen2"])
    assert long_texts._state(inner.pre_tokenizer) == json.loads(inner.to_str())["pre_tokenizer"]
