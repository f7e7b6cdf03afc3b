"""Our search against HF's `generate` on the same model: greedy, beams with every stopping rule, logit rules."""

from dataclasses import replace

import pytest
import torch
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from glassformer.decoding import GenerationConfig, generate
from glassformer.models import preset
from oracle import random_model
from recording import assert_same, written_by_hf

END = 0


class HFWrapper(PreTrainedModel, GenerationMixin):
    """One of our decoder-only models with the interface that HF's `generate` calls. It has no cache."""

    config_class = PretrainedConfig
    main_input_name = "input_ids"
    _is_stateful = True

    def __init__(self, model):
        super().__init__(
            PretrainedConfig(vocab_size=model.config.vocab_size, is_decoder=True, use_cache=False, num_hidden_layers=1)
        )
        self.inner = model
        self.anchor = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids, attention_mask=None, **_):
        return CausalLMOutputWithPast(logits=self.inner(input_ids, attention_mask))

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **_):
        return {"input_ids": input_ids, "attention_mask": attention_mask}


SEARCHES = [
    GenerationConfig(),
    GenerationConfig(num_beams=4, num_return_sequences=4),
    GenerationConfig(num_beams=4, num_return_sequences=4, length_penalty=0.0),
    GenerationConfig(num_beams=3, num_return_sequences=3, length_penalty=2.0),
    GenerationConfig(num_beams=3, num_return_sequences=3, length_penalty=-1.0),
    GenerationConfig(num_beams=4, num_return_sequences=4, early_stopping=True),
    GenerationConfig(num_beams=4, num_return_sequences=4, early_stopping=False),
    GenerationConfig(num_beams=4, num_return_sequences=2, no_repeat_ngram_size=2, repetition_penalty=1.4),
    GenerationConfig(num_beams=2, min_new_tokens=5, suppress_tokens=(3, 4)),
    GenerationConfig(repetition_penalty=1.4, no_repeat_ngram_size=3),
    GenerationConfig(forced_eos_token_id=END),
    GenerationConfig(forced_eos_token_id=5),
    GenerationConfig(num_beams=4, num_return_sequences=4, forced_eos_token_id=END),
    GenerationConfig(num_beams=3, num_return_sequences=3, length_penalty=2.0, forced_eos_token_id=END),
    GenerationConfig(num_beams=4, num_return_sequences=4, early_stopping=True, forced_eos_token_id=END),
    GenerationConfig(num_beams=4, early_stopping=False, no_repeat_ngram_size=2, forced_eos_token_id=END),
    GenerationConfig(num_beams=3, num_return_sequences=3, forced_eos_token_id=5),
]
NAMES = ["num_beams", "num_return_sequences", "length_penalty", "early_stopping", "no_repeat_ngram_size"]
NAMES += ["repetition_penalty", "min_new_tokens", "forced_eos_token_id"]


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
@pytest.mark.parametrize("config", SEARCHES, ids=range(len(SEARCHES)))
@pytest.mark.parametrize("max_new_tokens", [1, 7, 12])
def test_texts_and_scores_equal_hfs(name, config, max_new_tokens):
    torch.manual_seed(max_new_tokens)
    model = random_model(preset(name, vocab_size=11))
    config = replace(config, max_new_tokens=max_new_tokens, min_new_tokens=min(config.min_new_tokens, max_new_tokens))
    prompts = torch.randint(1, 11, (3, 4))
    wrapper = HFWrapper(model)
    theirs = wrapper.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=END,
        pad_token_id=END,
        suppress_tokens=list(config.suppress_tokens) or None,
        return_dict_in_generate=True,
        output_scores=True,
        **{field: getattr(config, field) for field in NAMES},
    )
    # Our log-probabilities are those before the rules and HF's those after them: they are equal without rules.
    has_log_probs = config == replace(GenerationConfig(), max_new_tokens=max_new_tokens)
    ours = generate(model, prompts.tolist(), config, end=END, with_log_probs=has_log_probs)
    expected = written_by_hf(wrapper, theirs, start=4, end=END)
    if config.num_beams == 1 and not has_log_probs:
        assert [text.tokens for (text,) in ours] == [text.tokens for text in expected]
    else:
        # HF fills up its list where the rules leave fewer texts than beams.
        expected = [text for text in expected if text.score is None or text.score > -1e8]
        assert_same([[text] for text in expected], [[text] for texts in ours for text in texts], tolerance=1e-4)
