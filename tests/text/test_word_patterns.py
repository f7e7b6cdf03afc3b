"""The patterns cut texts where the tokenizers that they come from do."""

import pytest
from tokenizers import Regex, pre_tokenizers

from glassformer.text.word_patterns import CUTS, GPT2_WORDS, LLAMA3_WORDS, QWEN2_WORDS

EXPECTED = {
    GPT2_WORDS: ["I", "'m", " here", ",", " 1234", "  ", " x", "\n\n"],
    LLAMA3_WORDS: ["I", "'m", " here", ",", " ", "123", "4", "  ", " x", "\n\n"],
    QWEN2_WORDS: ["I", "'m", " here", ",", " ", "1", "2", "3", "4", "  ", " x", "\n\n"],
}


@pytest.mark.parametrize("pattern", EXPECTED, ids=["gpt2", "llama3", "qwen2"])
def test_a_pattern_cuts_words_spaces_and_numbers(pattern):
    step = pre_tokenizers.Split(Regex(pattern), "isolated")
    assert [part for part, _ in step.pre_tokenize_str("I'm here, 1234   x\n\n")] == EXPECTED[pattern]


@pytest.mark.parametrize("name", CUTS)
def test_every_rule_keeps_the_whole_text(name):
    text = "a 12,345 b's\t\tc -- d\n"
    steps = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in CUTS[name]])
    assert "".join(part for part, _ in steps.pre_tokenize_str(text)) == text
