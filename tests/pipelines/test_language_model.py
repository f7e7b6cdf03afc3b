"""The language model: texts longer than its context, and its scores."""

import math

import pytest
import torch

from glassformer.data.readers.text_documents import Document
from glassformer.decoding import GenerationConfig
from glassformer.models import DecoderModel
from glassformer.pipelines.language_model import LanguageModel, windows_in_words
from glassformer.tasks.configs.small_models import small_decoder
from glassformer.text import Tokenizer, TokenizerConfig
from glassformer.text.tokenizer import END
from pipelines.tiny_pipelines import decoder, make, tokenizer


@pytest.mark.parametrize("kind", ["characters", "bpe"])
def test_a_lowercasing_model_scores_a_text_like_its_lower_case(kind):
    text = "İI Kelvin \u212a, ΟΔΟΣ, STRASSE \u1e9e"
    tokenizer = Tokenizer.train([text], 300, TokenizerConfig(kind=kind, prefix_space=False, lowercase=True))
    config = small_decoder(vocab_size=tokenizer.vocab_size, d_model=16, d_ff=16, n_decoder_layers=1, max_len=8)
    model = LanguageModel(DecoderModel(config).eval(), tokenizer, has_documents=True)
    scores, lowered = (model.score([Document(one)]) for one in (text, tokenizer.normalize(text)))
    assert scores.values == lowered.values
    assert not scores.signatures  # nothing is unknown
    n_bytes, n_tokens = len(tokenizer.normalize(text).encode()), len(tokenizer.encode(text)) + 1
    assert n_bytes != len(text.encode())
    assert scores["bits_per_byte"] == pytest.approx(scores["loss"] * n_tokens / math.log(2) / n_bytes)


@pytest.mark.parametrize("context", [8, 64])
def test_samples_continue_beyond_the_context(context):
    torch.manual_seed(0)
    tool = LanguageModel(decoder(tokenizer(), max_len=context), tokenizer())
    config = GenerationConfig(max_new_tokens=20, min_new_tokens=20, do_sample=True, num_return_sequences=3)
    (found,) = tool.candidates_after([tool.read("the")], config, with_scores=True)
    assert len({one.text for one in found}) == 3
    assert all(one.score < 0 for one in found)
    # The first sample equals the text that is generated alone.
    assert found[0].text == tool.run(
        "the", config=GenerationConfig(max_new_tokens=20, min_new_tokens=20, do_sample=True)
    )


def test_a_prompt_longer_than_the_context_is_refused_or_cut_to_its_beginning():
    tool, config = make(LanguageModel), GenerationConfig(max_new_tokens=5)
    text = tool.tokenizer.decode(list(range(10, 90)))
    prompt = tool.read(text)
    assert len(prompt) > tool.context
    for use in (lambda: tool.run(text, config=config), lambda: list(tool.stream(text, config))):
        with pytest.raises(ValueError, match=f"the input has {len(prompt)} tokens: expected at most 64, .* --truncate"):
            use()
    tool.truncate = True
    assert tool.run([text, "the"], config=config) == tool.write_after([prompt[:64], tool.read("the")], config)
    assert tool.n_truncated == 1
    assert "".join(tool.stream(text, config)) == tool.run(text, config=config)


def test_a_prompt_begins_with_the_end_token_if_the_model_was_trained_on_documents():
    many = make(LanguageModel)
    one = LanguageModel(many.model, many.tokenizer, has_documents=False)
    assert many.read("the") == [END, *many.tokenizer.encode("the")]
    assert one.read("the") == many.tokenizer.encode("the")
    assert one.settings() == {"has_documents": False}


def test_the_scoring_method_names_the_windows():
    assert windows_in_words(128, 64) == "windows of 128 tokens every 64"
    assert make(LanguageModel).scoring_method() == "windows of 64 tokens every 32"
