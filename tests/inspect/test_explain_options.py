"""Options of an explanation are checked, and become generation settings."""

import pytest

from glassformer.decoding import GenerationConfig
from glassformer.inspect.explain_options import PARTS, ExplainOptions


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"beam": 0}, "beam"),
        ({"beem": 2}, "unknown option 'beem': did you mean 'beam'"),
        ({"parts": ["lense"]}, "parts holds 'lense': did you mean 'lens'"),
        ({"ablate": "x"}, "ablate='x': expected a list of names"),
        ({"target": 3}, "target=3: expected a text"),
        ({"position": 1.5}, "position=1.5: expected a whole number"),
        ({"sample": True, "temperature": 0.0}, "temperature=0.0: expected more than 0"),
    ],
)
def test_wrong_options_are_refused(values, error):
    with pytest.raises(ValueError, match=error):
        ExplainOptions.from_dict(values)


def test_options_become_generation_settings():
    base = GenerationConfig(num_beams=4, max_new_tokens=10, length_penalty=0.6)
    assert ExplainOptions().generation(base, max_new_tokens=20) == base
    assert ExplainOptions(beam=2).generation(base, max_new_tokens=5).num_beams == 2
    drawn = ExplainOptions(sample=True, temperature=0.5, top_k=3).generation(base, max_new_tokens=5)
    assert (drawn.do_sample, drawn.num_beams, drawn.temperature, drawn.top_k) == (True, 1, 0.5, 3)
    decoder = GenerationConfig(do_sample=True, top_p=0.9, eos_token_id=(2, 3))
    assert not ExplainOptions().generation(decoder, max_new_tokens=5).do_sample


def test_options_are_json_values():
    found = ExplainOptions(ablate=["positions"]).to_json("a text")
    assert found["text"] == "a text"
    assert found["ablate"] == ["positions"]
    assert found["parts"] == list(PARTS)
