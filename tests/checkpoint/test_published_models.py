"""The configs of published models, at their full size: every tensor of HF's model has its place in ours.

The models are built without memory. `test_random_hf.py` compares the numbers of small ones.
"""

import pytest
import torch
import transformers
from transformers import initialization

from glassformer.checkpoint.hf import FAMILIES
from glassformer.checkpoint.hf.name_tables import needed_rules
from glassformer.models.costs import count_parameters
from glassformer.models.factory import build_on_meta

LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
PUBLISHED = {
    "SpanBERT base": (
        "BertForMaskedLM",
        {"model_type": "bert", "vocab_size": 28996, "type_vocab_size": 2, "hidden_act": "gelu"},
        {},
    ),
    "Flan-T5 small": (
        "T5ForConditionalGeneration",
        {"model_type": "t5", "d_ff": 1024, "num_heads": 6, "num_layers": 8, "vocab_size": 32128}
        | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        {"gated": True, "tie": "embeddings", "scale_output": False},
    ),
    "CodeLlama 7B": (
        "LlamaForCausalLM",
        {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "vocab_size": 32016, "max_position_embeddings": 16384}
        | {"rope_theta": 1000000, "rms_norm_eps": 1e-5, "rope_scaling": None},
        {"rope_theta": 1e6, "max_len": 16384},
    ),
    "Llama 3.1 8B": (
        "LlamaForCausalLM",
        {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0}
        | {"max_position_embeddings": 131072, "rope_scaling": LLAMA_3 | {"original_max_position_embeddings": 8192}},
        {"rope_scaling": "llama3", "rope_original_len": 8192},
    ),
    "Phi-3 mini 128k": (
        "Phi3ForCausalLM",
        {"model_type": "phi3", "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192}
        | {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "rms_norm_eps": 1e-5}
        | {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "sliding_window": 262144}
        | {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}},
        {"rope_scaling": "longrope", "max_len": 4096, "rope_factor": 32.0, "sliding_window": 262144},
    ),
    "Gemma 2B": (
        "GemmaForCausalLM",
        {"model_type": "gemma", "vocab_size": 256000, "hidden_size": 2048, "intermediate_size": 16384}
        | {"num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256}
        | {"max_position_embeddings": 8192},
        {"norm": "offset_rms", "scale_embeddings": True, "activation": "gelu_tanh", "tie": "output"},
    ),
    "StableLM 2 1.6B": (
        "StableLmForCausalLM",
        {"model_type": "stablelm", "vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 5632}
        | {"num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 32, "use_qkv_bias": True}
        | {"max_position_embeddings": 4096, "partial_rotary_factor": 0.25, "rope_theta": 10000},
        {"rope_width": 16, "qkv_bias": True, "norm": "layer"},
    ),
    "Granite 3.1 2B": (
        "GraniteForCausalLM",
        {"model_type": "granite", "vocab_size": 49155, "hidden_size": 2048, "intermediate_size": 8192}
        | {"num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "rope_theta": 5e6}
        | {"embedding_multiplier": 12.0, "attention_multiplier": 0.015625, "residual_multiplier": 0.22}
        | {"logits_scaling": 8.0, "tie_word_embeddings": True, "max_position_embeddings": 131072},
        {"output_multiplier": 0.125, "embedding_multiplier": 12.0, "scale": 0.015625},
    ),
    "OPT 125M": (
        "OPTForCausalLM",
        {"model_type": "opt", "vocab_size": 50272, "hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 12}
        | {"num_attention_heads": 12, "max_position_embeddings": 2048, "word_embed_proj_dim": 768},
        {"position_offset": 2, "tie": "output"},
    ),
    "Pythia 160M": (
        "GPTNeoXForCausalLM",
        {"model_type": "gpt_neox", "vocab_size": 50304, "hidden_size": 768, "intermediate_size": 3072}
        | {"num_hidden_layers": 12, "num_attention_heads": 12, "rotary_pct": 0.25, "rotary_emb_base": 10000}
        | {"max_position_embeddings": 2048},
        {"rope_width": 16, "parallel_ffn": "two_norms"},
    ),
    "Falcon 40B": (
        "FalconForCausalLM",
        {"model_type": "falcon", "vocab_size": 65024, "hidden_size": 8192, "num_hidden_layers": 60}
        | {"num_attention_heads": 128, "num_kv_heads": 8, "new_decoder_architecture": True},
        {"parallel_ffn": "two_norms", "n_kv_heads": 8, "d_ff": 32768},
    ),
    "mT5 small": (
        "MT5ForConditionalGeneration",
        {"model_type": "mt5", "vocab_size": 250112, "tie_word_embeddings": False},
        {"gated": True, "n_heads": 6, "n_encoder_layers": 8},
    ),
    "UMT5 small": (
        "UMT5ForConditionalGeneration",
        {"model_type": "umt5", "vocab_size": 256384, "tie_word_embeddings": False},
        {"share_relative_bias": False, "scale_output": False},
    ),
    "NLLB-200 600M": (
        "M2M100ForConditionalGeneration",
        {"model_type": "m2m_100", "vocab_size": 256206, "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12}
        | {"encoder_attention_heads": 16, "decoder_attention_heads": 16, "scale_embedding": True}
        | {"encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "max_position_embeddings": 1024, "pad_token_id": 1}
        | {"activation_function": "relu"},
        {"position_offset": 2, "sinusoid_full_range": True, "norm_placement": "pre"},
    ),
    "mBART-50": (
        "MBartForConditionalGeneration",
        {"model_type": "mbart", "vocab_size": 250054, "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12}
        | {"encoder_attention_heads": 16, "decoder_attention_heads": 16, "scale_embedding": True}
        | {"encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "max_position_embeddings": 1024}
        | {"activation_function": "relu", "normalize_before": True, "add_final_layer_norm": True},
        {"position_offset": 2, "embedding_norm": True, "norm_placement": "pre", "activation": "relu"},
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_tensor_of_a_published_model_has_its_place(name):
    class_name, values, settings = PUBLISHED[name]
    values = {**values, "architectures": [class_name]}
    theirs_class = getattr(transformers, class_name)
    with torch.device("meta"), initialization.no_init_weights():
        theirs = theirs_class(theirs_class.config_class(**values))
    # A tied copy is not stored. The config of these families says so, or the stored tensors do.
    stored = {key: tuple(value.shape) for key, value in theirs.named_parameters()}
    whole = {"num_attention_heads": 12, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}
    whole = {**whole, **values} if values["model_type"] == "bert" else values
    family = FAMILIES[values["model_type"]]
    bias = {"final_logits_bias": (1, values["vocab_size"])} if hasattr(theirs, "final_logits_bias") else {}
    config = family.read_config(whole, frozenset(stored | bias))
    for key, expected in settings.items():
        assert getattr(config, key) == expected, key
    ours = build_on_meta(config)
    assert ours.n_parameters() == count_parameters(config)
    shapes = {key: tuple(parameter.shape) for key, parameter in ours.named_parameters()}
    found = {rule.hf_name: rule.hf_shape(shapes) for rule in needed_rules(family, config, shapes)}
    ties = {"lm_head.weight", "cls.predictions.decoder.bias", *(copy for copy, _ in family.copies)}
    assert {key: shape for key, shape in found.items() if key not in ties} == {
        key: shape for key, shape in (stored | bias).items() if key not in ties
    }
