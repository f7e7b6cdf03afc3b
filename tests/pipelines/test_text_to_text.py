"""An encoder-decoder of another library writes what HF Transformers writes."""

import random

import pytest
import torch

from checkpoint import hf_models
from glassformer.pipelines.load import load
from glassformer.pipelines.text_to_text import TextToText
from pipelines.hf_folders import save_tokenizer
from pipelines.tiny_pipelines import make


@pytest.mark.parametrize("family", hf_models.PAIRS)
def test_an_encoder_decoder_writes_what_hf_writes(family, tmp_path):
    draw, class_name = hf_models.PAIRS[family]
    config = draw(random.Random(0))
    config.num_decoder_layers = getattr(config, "num_layers", None)
    theirs = hf_models.make(config, class_name, 0)
    theirs.generation_config.num_beams, theirs.generation_config.max_length = 2, 9
    theirs.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, around="$0 </s>")
    model = load(tmp_path)
    assert isinstance(model, TextToText)
    ids = torch.tensor([model.source_tokenizer.encode("the cat sat")])
    written = theirs.generate(
        ids, num_beams=2, max_length=9, do_sample=False, eos_token_id=0, pad_token_id=1, bad_words_ids=[[1]]
    )
    expected = written[0, 1:].tolist()
    expected = expected[: expected.index(0)] if 0 in expected else expected
    assert model.run(["the cat sat", ""]) == [model.target_tokenizer.decode(expected), ""]


def test_a_long_source_keeps_its_last_token():
    tool = make(TextToText)
    tool.truncate = True
    (ids,) = tool.read_sources(["the old cat " * 60])
    assert len(ids) == tool.model.config.max_len
    assert ids[-1] == tool.source_tokenizer.encode("the old cat " * 60)[-1]
