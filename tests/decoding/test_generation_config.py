"""GenerationConfig: validation and JSON."""

import json
import math

import numpy as np
import pytest

from glassformer.decoding import GenerationConfig


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"max_new_tokens": -5}, "max_new_tokens=-5"),
        ({"num_beams": 0}, "num_beams=0"),
        ({"top_p": 1.5, "do_sample": True}, r"top_p=1.5: expected 0.0 to 1.0"),
        ({"top_k": -1, "do_sample": True}, "top_k=-1: expected 0 or more"),
        ({"temperature": 0.0, "do_sample": True}, "temperature=0.0: expected more than 0"),
        ({"temperature": float("nan"), "do_sample": True}, "temperature=nan"),
        ({"min_p": float("nan"), "do_sample": True}, "min_p=nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0"),
        ({"logit_bias": {5: float("nan")}}, r"logit_bias\[5\]=nan"),
        ({"early_stopping": "soon"}, "early_stopping='soon'"),
        ({"early_stopping": 1}, "early_stopping=1"),
        ({"max_source_ratio": float("inf")}, "max_source_ratio=inf: expected a finite number"),
        ({"length_penalty": float("nan")}, "length_penalty=nan: expected a finite number"),
        ({"length_penalty": 10**400}, "length_penalty=1000"),
        ({"coverage_penalty": float("inf")}, "coverage_penalty=inf: expected a finite number"),
        ({"presence_penalty": "much"}, "presence_penalty='much': expected a finite number"),
        ({"temperature": float("inf"), "do_sample": True}, "temperature=inf: expected a finite number"),
        ({"repetition_penalty": True}, "repetition_penalty=True: expected a finite number"),
        ({"do_sample": 1}, "do_sample=1: expected True or False"),
        ({"seed": 1.5}, "seed=1.5: expected a whole number"),
        ({"min_new_tokens": 1.0}, "min_new_tokens=1.0: expected a whole number"),
        ({"max_new_tokens": 2**63}, "max_new_tokens=9223372036854775808: expected at most"),
        ({"suppress_tokens": (-1,)}, "token of suppress_tokens=-1: expected 0 or more"),
        ({"prefix": "abc"}, "prefix='abc': expected a list"),
        ({"forced_eos_token_id": -1}, "forced_eos_token_id=-1: expected 0 or more"),
        ({"stop_strings": (3,)}, "stop_strings holds 3"),
        ({"logit_bias": {5: "x"}}, r"logit_bias\[5\]='x': expected a finite number"),
        ({"logit_bias": {5: float("inf")}}, r"logit_bias\[5\]=inf"),
        ({"logit_bias": [5]}, r"logit_bias=\[5\]: expected a table"),
        ({"bad_words_ids": ((),)}, "an empty run"),
        ({"stop_strings": ("",)}, "an empty string"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens=9: expected at most max_new_tokens=8"),
        ({"prefix": (1, 2, 3), "max_new_tokens": 2}, "prefix has 3 tokens"),
        ({"do_sample": True, "num_beams": 2}, "expected one or the other"),
        ({"top_k": 3}, "top_k=3 without do_sample=True"),
        ({"num_return_sequences": 2}, "num_return_sequences=2: expected at most num_beams=1"),
        ({"num_beams": 4, "num_beam_groups": 3}, "expected a divisor of num_beams=4"),
        ({"num_beams": 4, "diversity_penalty": 1.0}, "expected num_beam_groups > 1"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(wrong, message):
    with pytest.raises(ValueError, match=message):
        GenerationConfig(**wrong)


def test_numpy_numbers_are_accepted():
    assert GenerationConfig(temperature=np.float32(0.5), top_k=np.int64(3), do_sample=True).top_k == 3


def test_settings_round_trip_through_json_without_defaults():
    config = GenerationConfig(
        repetition_penalty=1.2,
        logit_bias={3: 1.5, 4: -math.inf},
        bad_words_ids=((1, 2), (3,)),
        prefix=(4,),
        forced_eos_token_id=6,
        stop_strings=("a", "b"),
    )
    text = json.dumps(config.to_dict(), allow_nan=False)
    assert GenerationConfig.from_dict(json.loads(text)) == config
    assert GenerationConfig().to_dict() == {}
    with pytest.raises(ValueError, match=r"unknown setting 'num_beam'.*did you mean 'num_beams'"):
        GenerationConfig.from_dict({"num_beam": 3})
