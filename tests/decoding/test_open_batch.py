"""Opening a batch: padding, limits of new tokens, and wrong inputs."""

import pytest
import torch

from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.open_batch import check_inputs, generated_text_of, limit_by_source, open_batch, sequences_of
from glassformer.models import build_model, preset
from glassformer.pipelines.translator import Translator
from glassformer.runtime.step_runner import inference
from pipelines import tiny_pipelines
from recording import BEGIN, DECODERS, END, PAIR, make

DECODER, ENCODER_DECODER = make(DECODERS["alibi"]), make(PAIR)


def test_prompts_are_padded_on_the_left():
    with inference(DECODER), open_batch(DECODER, [[5], [6, 7, 8]], GenerationConfig(), None, 1) as batch:
        assert batch.mask.tolist() == [[False, False, True], [True, True, True]]
        assert batch.given[0, -1] == 5
        assert batch.given[1].tolist() == [6, 7, 8]
        assert batch.max_new == [40, 38]  # the model's max_len is 40, and the last token is not read


def test_sources_are_encoded_and_texts_begin_with_begin():
    config = GenerationConfig(max_new_tokens=30, max_source_ratio=2.0)
    with inference(ENCODER_DECODER), open_batch(ENCODER_DECODER, [[5], [6, 7]], config, BEGIN, 1) as batch:
        assert batch.given.tolist() == [[BEGIN], [BEGIN]]
        assert batch.max_new == [12, 14]
        assert batch.runner.memory.shape[:2] == (2, 2)


def test_the_limit_by_the_source_is_at_most_that_of_the_request():
    assert limit_by_source(GenerationConfig(max_new_tokens=20), 3) == 20
    assert limit_by_source(GenerationConfig(max_new_tokens=20, max_source_ratio=1.5), 4) == 16
    assert limit_by_source(GenerationConfig(max_new_tokens=20, max_source_ratio=9.0), 4) == 20


def test_samples_of_an_input_are_neighbors():
    config = GenerationConfig(do_sample=True, num_return_sequences=2)
    rows = sequences_of(DECODER, [[5], [6]], config, None, [3, 4])
    assert [(row.given, row.max_new, row.number) for row in rows] == [
        ([5], 3, 0),
        ([5], 3, 1),
        ([6], 4, 0),
        ([6], 4, 1),
    ]
    rows[0].add(9, END)
    rows[0].add(END, END)
    assert generated_text_of(rows[0])[:4] == ([9], None, None, "end")


def test_wrong_inputs_are_refused():
    with pytest.raises(ValueError, match="input 1 is empty: expected at least one token"):
        check_inputs(DECODER, [[5], []], None)
    with pytest.raises(ValueError, match="input 0 has 41 tokens: expected at most max_len=40"):
        check_inputs(DECODER, [[5] * 41], None)
    with pytest.raises(ValueError, match="begin=None: expected the token it begins with"):
        check_inputs(ENCODER_DECODER, [[5]], None)
    for wrong in ([5, 6], [[5], None], 5):
        with pytest.raises(
            TypeError, match=r"inputs is .*: expected a list of lists of token ids, such as \[\[5, 6\]\]"
        ):
            check_inputs(DECODER, wrong, None)
    with pytest.raises(ValueError, match="stop_strings without a tokenizer"):
        sequences_of(DECODER, [[5]], GenerationConfig(stop_strings=("x",)), None, [3])


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # in torch.compile itself
def test_a_model_that_generates_no_text_is_refused_by_its_class():
    expected = "expected a DecoderModel or an EncoderDecoderModel"
    with pytest.raises(TypeError, match=f"model is of the class EncoderModel: {expected}$"):
        check_inputs(build_model(preset("tiny-bert-base")), [[5]], None)
    with pytest.raises(
        TypeError, match=rf"OptimizedModule: {expected}; .*load\(path, compile='on'\), or by record_steps"
    ):
        check_inputs(torch.compile(DECODER), [[5]], None)
    with pytest.raises(TypeError, match=rf"Translator: {expected}, which a pipeline has as `pipeline.model`$"):
        check_inputs(tiny_pipelines.make(Translator), [[5]], None)
