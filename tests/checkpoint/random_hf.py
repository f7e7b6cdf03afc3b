"""Random HF configs over the settings that HF's model classes read, heads and ties included.

Most draws are models that must load. About one in five has an odd setting: one that must be refused, by its name.
"""

import random
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import transformers

with warnings.catch_warnings():  # HF's DeBERTa uses torch.jit, which is deprecated
    warnings.simplefilter("ignore")
    import transformers.models.deberta.modeling_deberta
    import transformers.models.deberta_v2.modeling_deberta_v2

PAD = 1
ACTIVATIONS = ["gelu", "relu", "silu", "gelu_new", "swish", "gelu_pytorch_tanh", "gelu_fast"]
ROBERTAS = ("Roberta", "XLMRoberta", "Camembert")
Odd = list[tuple[dict[str, Any], str]]
"""Settings that are refused, each with a pattern of the error."""


@dataclass
class Drawn:
    """HF's config, the class to build, and a pattern of the error if the model must be refused."""

    config: Any
    class_name: str
    refusal: str | None


def draw(family: str, seed: int) -> Drawn:
    """Return the random config of this seed."""
    choose = random.Random(f"{family} {seed}")
    prefix, settings, heads, odd = DRAWS[family](choose)
    refusal = None
    head = choose.choice(heads)
    if choose.random() < 0.2 and seed:  # one model at least must load
        changes, refusal = choose.choice(odd)
        settings = {**settings, **changes}
        head = settings.pop("head", head)
    if head == "ForQuestionAnswering":
        settings["num_labels"] = 2  # HF's own class cannot run with another number
    config = getattr(transformers, f"{prefix}{'Text' if prefix == 'Gemma3' else ''}Config")(**settings)
    # Gemma 3 has two bodies: one for text alone.
    return Drawn(config, f"{prefix}{'Text' if (prefix, head) == ('Gemma3', 'Model') else ''}{head}", refusal)


def build(drawn: Drawn, seed: int) -> Any:
    """Build a model of that config with weights so large that mistakes show in its outputs."""
    torch.manual_seed(seed)
    drawn.config._attn_implementation = "eager"
    drawn.config._experts_implementation = "eager"  # HF's grouped products need widths that are multiples of 4
    model = getattr(transformers, drawn.class_name)(drawn.config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not (drawn.class_name.startswith(("Marian", "Pegasus")) and "embed_positions" in name):
                parameter.normal_(std=0.4)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    return model


def _encoder(choose: random.Random, prefix: str) -> tuple[str, dict[str, Any], list[str], Odd]:
    n_heads = choose.choice([1, 2, 4])
    width = n_heads * choose.choice([3, 4])
    settings = {
        "vocab_size": choose.choice([41, 60]),
        "hidden_size": width,
        "num_hidden_layers": choose.choice([1, 2, 3]),
        "num_attention_heads": n_heads,
        "intermediate_size": choose.choice([10, 17]),
        "max_position_embeddings": choose.choice([14, 28]),
        "type_vocab_size": choose.choice([1, 2, 3]),
        "hidden_act": choose.choice(ACTIVATIONS),
        "layer_norm_eps": choose.choice([1e-12, 1e-5, 1e-2]),
        "tie_word_embeddings": choose.random() < 0.5,
        "num_labels": choose.choice([1, 2, 5]),
        "pad_token_id": choose.choice([0, PAD, 3]) if prefix in ROBERTAS else PAD,
    }
    if prefix in ("Albert", "Electra"):
        settings["embedding_size"] = choose.choice([5, 7, width])
    odd: Odd = [
        ({"is_decoder": True}, "is_decoder=True"),
        ({"hidden_act": "quick_gelu", "head": "Model"}, "hidden_act='quick_gelu'"),
        ({"head": "ForMultipleChoice"}, "ForMultipleChoice"),
    ]
    heads = ["Model", "ForMaskedLM", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"]
    heads += ["ForQuestionAnswering"]
    if prefix in ("Bert", "MegatronBert", "Albert", "Electra"):
        heads.append("ForPreTraining")
    if prefix in ("Bert", "MegatronBert"):
        heads.append("ForNextSentencePrediction")
    if prefix == "Albert":
        odd = [entry for entry in odd if "is_decoder" not in entry[0]]
        odd.append(({"num_hidden_groups": 2, "num_hidden_layers": 2}, "num_hidden_groups=2"))
        odd.append(({"inner_group_num": 2}, "inner_group_num=2"))
    if prefix == "MPNet":
        odd = [entry for entry in odd if "is_decoder" not in entry[0]]
        odd.append(({"relative_attention_num_buckets": 40}, "relative_attention_num_buckets=40"))
    return prefix, settings, heads, odd


def _nomic(choose: random.Random) -> tuple[str, dict[str, Any], list[str], Odd]:
    prefix, settings, heads, odd = _encoder(choose, "NomicBert")
    width = settings["hidden_size"] = settings["num_attention_heads"] * 4
    settings["head_dim"] = choose.choice([width // settings["num_attention_heads"], 6])
    table = rope(choose, settings["head_dim"], settings["max_position_embeddings"])
    settings["rope_parameters"] = table
    odd = [
        ({"hidden_act": "quick_gelu", "head": "Model"}, "hidden_act='quick_gelu'"),
        ({"rope_parameters": {"rope_type": "proportional", "rope_theta": 9.0, "factor": 2.0}}, "type 'proportional'"),
    ]
    return prefix, settings, [head for head in heads if head != "ForQuestionAnswering"], odd


def _deberta(choose: random.Random, prefix: str) -> tuple[str, dict[str, Any], list[str], Odd]:
    prefix, settings, heads, odd = _encoder(choose, prefix)
    settings |= {
        "type_vocab_size": choose.choice([0, 2]),
        "relative_attention": True,
        "pos_att_type": choose.choice(["p2c|c2p", ["c2p", "p2c"]]),
        "position_biased_input": False,
        "max_relative_positions": choose.choice([-1, 9, 6]),
        "pooler_hidden_act": choose.choice(["gelu", "relu", "tanh"]),
        "pooler_hidden_size": settings["hidden_size"],
    }
    odd = [
        ({"hidden_act": "quick_gelu", "head": "Model"}, "hidden_act='quick_gelu'"),
        ({"pos_att_type": ["c2p"]}, "pos_att_type=.'c2p'., which is not supported"),
        ({"position_biased_input": True}, "position_biased_input=True"),
        ({"legacy": False, "head": "ForMaskedLM"}, "legacy=False"),
    ]
    if prefix == "Deberta":
        return prefix, settings, heads, [*odd, ({"talking_head": True}, "talking_head=True")]
    settings |= {
        "share_att_key": choose.random() < 0.7,
        "norm_rel_ebd": choose.choice(["layer_norm", "layer_norm", "none"]),
        "position_buckets": choose.choice([4, 5, 8, -1]),
        "conv_kernel_size": choose.choice([0, 0, 3, 5]),
        "conv_act": choose.choice(["gelu", "tanh"]),
    }
    if settings["position_buckets"] > 0 and settings["max_relative_positions"] == 6:
        settings["max_relative_positions"] = 9
    odd.append(({"head": "ForMultipleChoice"}, "ForMultipleChoice"))
    odd.append(({"conv_kernel_size": 3, "conv_act": "mish"}, "conv_act='mish'"))
    return prefix, settings, heads, odd


def _modernbert(choose: random.Random) -> tuple[str, dict[str, Any], list[str], Odd]:
    n_heads, depth = choose.choice([1, 2, 4]), choose.choice([1, 2, 3, 4])
    thetas = {name: choose.choice([100.0, 10000.0]) for name in ("full_attention", "sliding_attention")}
    settings: dict[str, Any] = {
        "vocab_size": choose.choice([41, 60]),
        "hidden_size": n_heads * choose.choice([4, 6]),
        "intermediate_size": choose.choice([10, 17]),
        "num_hidden_layers": depth,
        "num_attention_heads": n_heads,
        "hidden_activation": choose.choice(ACTIVATIONS),
        "max_position_embeddings": choose.choice([14, 28]),
        "norm_eps": choose.choice([1e-5, 1e-2]),
        "local_attention": choose.choice([2, 4, 6, 128]),
        "classifier_activation": choose.choice(ACTIVATIONS),
        "classifier_pooling": choose.choice(["cls", "mean"]),
        "rope_parameters": {name: {"rope_type": "default", "rope_theta": theta} for name, theta in thetas.items()},
        "layer_types": choose.choice([None, [choose.choice([*thetas]) for _ in range(depth)]]),
        "tie_word_embeddings": choose.random() < 0.5,
        "num_labels": choose.choice([1, 2, 5]),
        "pad_token_id": PAD,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0),
    }
    for name in ("norm_bias", "attention_bias", "mlp_bias", "decoder_bias", "classifier_bias"):
        settings[name] = choose.random() < 0.4
    scaled = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}
    odd: Odd = [
        ({"hidden_activation": "quick_gelu", "head": "Model"}, "hidden_activation='quick_gelu'"),
        ({"head": "ForMultipleChoice"}, "ForMultipleChoice"),
        ({"rope_parameters": {**settings["rope_parameters"], "full_attention": scaled}}, "in full_attention layers"),
    ]
    heads = ["Model", "ForMaskedLM", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"]
    return "ModernBert", settings, [*heads, "ForQuestionAnswering"], odd


def _distilbert(choose: random.Random) -> tuple[str, dict[str, Any], list[str], Odd]:
    n_heads = choose.choice([1, 2, 4])
    settings = {
        "vocab_size": choose.choice([41, 60]),
        "dim": n_heads * choose.choice([3, 4]),
        "hidden_dim": choose.choice([10, 17]),
        "n_layers": choose.choice([1, 2, 3]),
        "n_heads": n_heads,
        "max_position_embeddings": choose.choice([14, 28]),
        "activation": choose.choice(ACTIVATIONS),
        "tie_word_embeddings": choose.random() < 0.5,
        "layer_norm_eps": choose.choice([1e-5, 1e-2]),  # which HF's model does not read
        "pad_token_id": PAD,
        "sinusoidal_pos_embds": choose.random() < 0.5,
    }
    heads = ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
    odd: Odd = [
        ({"head": "ForMultipleChoice"}, "ForMultipleChoice"),
        ({"activation": "mish"}, "activation='mish'"),
    ]
    return "DistilBert", settings, heads, odd


def _gpt2(choose: random.Random) -> tuple[str, dict[str, Any], list[str], Odd]:
    n_heads = choose.choice([1, 2, 4])
    settings = {
        "vocab_size": choose.choice([41, 60]),
        "n_positions": choose.choice([14, 28]),
        "n_embd": n_heads * choose.choice([3, 4]),
        "n_layer": choose.choice([1, 2, 3]),
        "n_head": n_heads,
        "n_inner": choose.choice([None, 10]),
        "activation_function": choose.choice(ACTIVATIONS),
        "layer_norm_epsilon": choose.choice([1e-5, 1e-2]),
        "tie_word_embeddings": choose.random() < 0.5,
        "reorder_and_upcast_attn": choose.random() < 0.3,
        "scale_attn_weights": choose.random() < 0.7,
        "scale_attn_by_inverse_layer_idx": choose.random() < 0.3,
        "pad_token_id": PAD,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    odd: Odd = [
        ({"head": "ForSequenceClassification"}, "GPT2ForSequenceClassification"),
        ({"head": "ForTokenClassification"}, "GPT2ForTokenClassification"),
        ({"activation_function": "tanh"}, "activation_function='tanh'"),
    ]
    return "GPT2", settings, ["LMHeadModel", "LMHeadModel", "Model"], odd


def rope(choose: random.Random, n_features: int, length: int) -> dict[str, Any]:
    """Return random rotary parameters for heads with this many rotated features. Texts of 8 tokens fit all of them."""
    kind = choose.choice(["default", "default", "linear", "dynamic", "llama3", "yarn", "longrope"])
    found: dict[str, Any] = {"rope_type": kind, "rope_theta": choose.choice([100.0, 10000.0, 5e5])}
    if kind != "default":
        found["factor"] = choose.choice([1.5, 4.0])
    if kind in ("llama3", "yarn", "longrope"):
        found["original_max_position_embeddings"] = choose.choice([10, length])
    if kind == "llama3":
        found |= {"low_freq_factor": choose.choice([0.1, 1.0]), "high_freq_factor": choose.choice([2.0, 4.0])}
    if kind == "yarn":
        more = [{}, {"beta_fast": 3.0, "beta_slow": 0.5}, {"attention_factor": 0.8}, {"mscale": 0.7}]
        found |= choose.choice([*more, {"mscale": 0.7, "mscale_all_dim": 1.5}])
    if kind == "longrope":
        found |= choose.choice([{}, {"attention_factor": 1.3}])
        for key in ("short_factor", "long_factor"):
            found[key] = [choose.choice([1.0, 1.5, 4.0]) for _ in range(n_features // 2)]
    return found


def _llama(choose: random.Random, prefix: str) -> tuple[str, dict[str, Any], list[str], Odd]:
    groups = choose.choice([1, 2])
    n_heads = groups * choose.choice([1, 2, 3])
    head_dim = choose.choice([4, 6])
    width = n_heads * 4
    length = choose.choice([14, 28])
    settings: dict[str, Any] = {
        "vocab_size": choose.choice([41, 60]),
        "hidden_size": width,
        "intermediate_size": choose.choice([10, 17]),
        "num_hidden_layers": choose.choice([1, 2, 3]),
        "num_attention_heads": n_heads,
        "num_key_value_heads": groups,
        "head_dim": head_dim,
        "hidden_act": choose.choice(["silu", *ACTIVATIONS]),
        "max_position_embeddings": length,
        "rms_norm_eps": choose.choice([1e-6, 1e-2]),
        "rope_parameters": rope(choose, head_dim, length),
        "tie_word_embeddings": choose.random() < 0.5,
        "attention_bias": choose.random() < 0.5,  # which Mistral and Qwen 2 do not read
        "mlp_bias": choose.random() < 0.5,  # which Llama alone reads
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": PAD,
    }
    scaled = {"rope_type": "proportional", "rope_theta": 100.0, "factor": 2.0}
    truncated = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 2.0, "truncate": False}
    odd: Odd = [
        ({"rope_parameters": scaled}, "rotary positions of type 'proportional'"),
        ({"rope_parameters": truncated}, "yarn with truncate=False"),
        ({"head": "ForSequenceClassification"}, "ForSequenceClassification"),
        ({"head": "ForTokenClassification"}, "ForTokenClassification"),
        ({"hidden_act": "relu2"}, "hidden_act='relu2'"),
    ]
    if prefix == "Mistral":
        settings["sliding_window"] = choose.choice([None, 3, 5])
    if prefix.startswith("Qwen"):
        settings |= {"use_sliding_window": choose.random() < 0.5, "sliding_window": choose.choice([None, 3, 5])}
        settings["max_window_layers"] = choose.choice([0, 1, settings["num_hidden_layers"]])
        odd.append(({"layer_types": ["chunked_attention"] * settings["num_hidden_layers"]}, "layer_types=.*chunked"))
    return prefix, settings, ["ForCausalLM", "ForCausalLM", "Model"], odd


def _experts(choose: random.Random, prefix: str) -> tuple[str, dict[str, Any], list[str], Odd]:
    prefix, settings, heads, odd = _llama(choose, prefix)
    n_experts, key = choose.choice([2, 3, 5]), "num_local_experts" if prefix == "Mixtral" else "num_experts"
    settings |= {key: n_experts, "num_experts_per_tok": choose.choice([1, 2, n_experts])}
    settings |= {"router_aux_loss_coef": choose.choice([0.0, 0.01]), "norm_topk_prob": choose.random() < 0.5}
    odd = [entry for entry in odd if "layer_types" not in entry[0] or prefix == "Qwen2Moe"]
    odd.append(({"num_experts_per_tok": n_experts + 1}, f"experts_per_token={n_experts + 1}: expected at most"))
    if prefix == "Mixtral":
        settings["sliding_window"] = choose.choice([None, 3, 5])
        odd.append(({"router_jitter_noise": 0.1}, "router_jitter_noise=0.1"))
    if prefix in ("Qwen2Moe", "Qwen3Moe"):
        settings |= {"moe_intermediate_size": choose.choice([7, 12]), "mlp_only_layers": choose.choice([[], [], [0]])}
        settings["decoder_sparse_step"] = choose.choice([1, 1, 2])
    if prefix == "Qwen2Moe":
        settings["sliding_window"] = choose.choice([3, 5])
        settings |= {"shared_expert_intermediate_size": choose.choice([5, 9]), "qkv_bias": choose.random() < 0.5}
    if prefix == "Olmoe":
        settings["head_dim"] = settings["hidden_size"] // settings["num_attention_heads"]
        settings["rope_parameters"] = rope(choose, settings["head_dim"], settings["max_position_embeddings"])
        odd = [entry for entry in odd if "head" not in entry[0]]  # HF has no other heads
        odd.append(({"clip_qkv": 0.5}, "clip_qkv=0.5"))
    return prefix, settings, heads, odd


def _phi3(choose: random.Random) -> tuple[str, dict[str, Any], list[str], Odd]:
    prefix, settings, heads, odd = _llama(choose, "Phi3")
    width, length = settings["hidden_size"] // settings["num_attention_heads"], settings["max_position_embeddings"]
    part = choose.choice([1.0, 0.5])
    table: dict[str, Any] = {"rope_type": "default"}
    if choose.random() < 0.6:
        table = {"rope_type": "longrope"}
        for key in ("short_factor", "long_factor"):
            table[key] = [choose.choice([1.0, 1.5, 4.0]) for _ in range(int(width * part) // 2)]
    settings |= {"rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": part, **table}}
    settings |= {"original_max_position_embeddings": choose.choice([10, length])}
    settings |= {"sliding_window": choose.choice([None, 3]), "head_dim": width}
    return prefix, settings, heads, [entry for entry in odd if "rope_parameters" not in entry[0]]


def _with_family_settings(choose: random.Random, prefix: str) -> tuple[str, dict[str, Any], list[str], Odd]:
    prefix, settings, heads, odd = _llama(choose, prefix)
    if prefix == "StableLm":
        width = settings["hidden_size"] = settings["num_attention_heads"] * 8
        settings["head_dim"] = width // settings["num_attention_heads"]
        settings["rope_parameters"] = {"rope_theta": 100.0, "partial_rotary_factor": choose.choice([0.25, 0.5, 1.0])}
        settings |= {"use_qkv_bias": choose.random() < 0.5, "layer_norm_eps": choose.choice([1e-5, 1e-2])}
        odd = [entry for entry in odd if "rope_parameters" not in entry[0]]
        odd.append(({"qk_layernorm": True}, "qk_layernorm=True"))
        settings["use_parallel_residual"] = choose.random() < 0.5
    if prefix == "Cohere":
        settings |= {"logit_scale": choose.choice([0.0625, 1.0, 0.3]), "layer_norm_eps": choose.choice([1e-5, 1e-2])}
        odd.append(({"use_qk_norm": True}, "use_qk_norm=True"))
        odd = [entry for entry in odd if "head" not in entry[0]]  # HF has no other heads
    if prefix == "Granite":
        settings["embedding_multiplier"] = choose.choice([1.0, 12.0])
        settings["residual_multiplier"] = choose.choice([1.0, 0.22])
        settings["attention_multiplier"] = choose.choice([0.5, 0.015625])
        settings["logits_scaling"] = choose.choice([1.0, 13.0])
        settings["head_dim"] = settings["hidden_size"] // settings["num_attention_heads"]
        settings["rope_parameters"] = rope(choose, settings["head_dim"], settings["max_position_embeddings"])
        odd = [entry for entry in odd if "head" not in entry[0]]  # HF has no other heads
    return prefix, settings, heads, [entry for entry in odd if entry[0].get("head") != "ForTokenClassification"]


def _neox(choose: random.Random) -> tuple[str, dict[str, Any], list[str], Odd]:
    n_heads, head_dim, length = choose.choice([1, 2, 4]), choose.choice([8, 16]), choose.choice([14, 28])
    part = choose.choice([0.25, 0.5, 1.0] if head_dim == 16 else [0.5, 1.0])
    rotary = rope(choose, int(head_dim * part), length)
    settings = {
        "vocab_size": choose.choice([41, 60]),
        "hidden_size": n_heads * head_dim,
        "intermediate_size": choose.choice([10, 17]),
        "num_hidden_layers": choose.choice([1, 2, 3]),
        "num_attention_heads": n_heads,
        "max_position_embeddings": length,
        "hidden_act": choose.choice(ACTIVATIONS),
        "layer_norm_eps": choose.choice([1e-5, 1e-2]),
        "use_parallel_residual": choose.random() < 0.7,
        "attention_bias": choose.random() < 0.7,
        "rope_parameters": {**rotary, "partial_rotary_factor": part},
        "tie_word_embeddings": choose.random() < 0.5,
        "pad_token_id": PAD,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    odd: Odd = [
        ({"head": "ForSequenceClassification"}, "GPTNeoXForSequenceClassification"),
        ({"hidden_act": "tanh"}, "hidden_act='tanh'"),
        ({"rope_parameters": {"rope_type": "proportional", "rope_theta": 9.0, "factor": 2.0}}, "type 'proportional'"),
    ]
    return "GPTNeoX", settings, ["ForCausalLM", "ForCausalLM", "Model"], odd


def _gptj(choose: random.Random) -> tuple[str, dict[str, Any], list[str], Odd]:
    n_heads, head_dim = choose.choice([1, 2, 4]), choose.choice([4, 6])
    settings = {
        "vocab_size": choose.choice([41, 60]),
        "n_positions": choose.choice([14, 28]),
        "n_embd": n_heads * head_dim,
        "n_layer": choose.choice([1, 2, 3]),
        "n_head": n_heads,
        "n_inner": choose.choice([None, 10]),
        "rotary_dim": choose.choice([2, 4, head_dim]),
        "activation_function": choose.choice(ACTIVATIONS),
        "layer_norm_epsilon": choose.choice([1e-5, 1e-2]),
        "tie_word_embeddings": choose.random() < 0.5,
        "pad_token_id": PAD,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    odd: Odd = [
        ({"head": "ForSequenceClassification"}, "GPTJForSequenceClassification"),
        ({"activation_function": "tanh"}, "activation_function='tanh'"),
    ]
    return "GPTJ", settings, ["ForCausalLM", "ForCausalLM", "Model"], odd


def _phi(choose: random.Random) -> tuple[str, dict[str, Any], list[str], Odd]:
    _, settings, heads, odd = _neox(choose)
    groups = choose.choice([1, settings["num_attention_heads"]])
    settings |= {"num_key_value_heads": groups, "qk_layernorm": choose.random() < 0.4}
    odd = [entry if "head" not in entry[0] else (entry[0], "PhiForSequenceClassification") for entry in odd]
    return "Phi", settings, heads, odd


def _falcon(choose: random.Random) -> tuple[str, dict[str, Any], list[str], Odd]:
    _, settings, heads, _ = _neox(choose)
    for name in ("intermediate_size", "hidden_act", "use_parallel_residual", "attention_bias", "layer_norm_eps"):
        del settings[name]
    n_heads = settings["num_attention_heads"]
    head_dim = settings["hidden_size"] // n_heads
    settings |= {
        "rope_parameters": rope(choose, head_dim, settings["max_position_embeddings"]),
        "ffn_hidden_size": choose.choice([None, 10]),
        "activation": choose.choice(ACTIVATIONS),
        "layer_norm_epsilon": choose.choice([1e-5, 1e-2]),
        "bias": choose.random() < 0.5,
        "new_decoder_architecture": choose.random() < 0.5,
        "multi_query": choose.random() < 0.5,
        "parallel_attn": choose.random() < 0.7,
    }
    if settings["new_decoder_architecture"]:
        settings |= {"parallel_attn": True, "num_ln_in_parallel_attn": choose.choice([None, 1, 2])}
        settings["num_kv_heads"] = choose.choice([1, n_heads // 2 or 1, None])
    odd: Odd = [
        ({"alibi": True}, "alibi=True"),
        ({"head": "ForTokenClassification"}, "FalconForTokenClassification"),
        ({"activation": "tanh"}, "activation='tanh'"),
    ]
    return "Falcon", settings, heads, odd


def _layer_types(choose: random.Random, n_layers: int) -> list[str]:
    return [choose.choice(["full_attention", "sliding_attention"]) for _ in range(n_layers)]


def _gemma_now(choose: random.Random, prefix: str) -> tuple[str, dict[str, Any], list[str], Odd]:
    """Gemma 2 and Gemma 3 (text)."""
    _, settings, heads, odd = _llama(choose, prefix)
    settings["hidden_activation"] = settings.pop("hidden_act")
    settings |= {
        "query_pre_attn_scalar": choose.choice([4, 7, 256]),
        "sliding_window": choose.choice([3, 5]),
        "final_logit_softcapping": choose.choice([None, 3.0]),
        "layer_types": _layer_types(choose, settings["num_hidden_layers"]) if choose.random() < 0.8 else None,
    }
    odd = [({"hidden_activation": "relu2"}, "hidden_activation='relu2'")]
    odd.append(({"use_bidirectional_attention": True}, "use_bidirectional_attention=True"))
    if prefix == "Gemma2":
        settings["attn_logit_softcapping"] = choose.choice([None, 0.5, 2.0])
    else:
        whole = rope(choose, settings["head_dim"], settings["max_position_embeddings"])
        local = {"rope_type": "default", "rope_theta": choose.choice([100.0, 10000.0])}
        settings["rope_parameters"] = {"full_attention": whole, "sliding_attention": local}
        odd.append(({"attn_logit_softcapping": 2.0}, "attn_logit_softcapping=2.0"))
        prefix = "Gemma3"
    return prefix, settings, heads, odd


def _olmo(choose: random.Random, prefix: str) -> tuple[str, dict[str, Any], list[str], Odd]:
    _, settings, heads, odd = _llama(choose, prefix)
    settings["head_dim"] = settings["hidden_size"] // settings["num_attention_heads"]
    settings["rope_parameters"] = rope(choose, settings["head_dim"], settings["max_position_embeddings"])
    odd = [entry for entry in odd if "head" not in entry[0]]
    if prefix == "Olmo":
        settings["clip_qkv"] = choose.choice([None, 0.5])
    if prefix == "Olmo3":
        local = {"rope_type": "default", "rope_theta": choose.choice([100.0, 10000.0])}
        settings |= {"sliding_window": choose.choice([3, 5]), "layer_types": _layer_types(choose, 4)}
        settings["layer_types"] = settings["layer_types"][: settings["num_hidden_layers"]]
        tables = {"full_attention": settings["rope_parameters"], "sliding_attention": local}
        settings["rope_parameters"] = tables
        odd = [({"hidden_act": "relu2"}, "hidden_act='relu2'")]
    return prefix, settings, heads, odd


def _smollm3(choose: random.Random) -> tuple[str, dict[str, Any], list[str], Odd]:
    _, settings, heads, odd = _llama(choose, "SmolLM3")
    n_layers = settings["num_hidden_layers"]
    settings["no_rope_layers"] = choose.choice([None, [choose.choice([0, 1]) for _ in range(n_layers)]])
    settings |= {"use_sliding_window": choose.random() < 0.5, "sliding_window": choose.choice([3, 5])}
    settings["no_rope_layer_interval"] = choose.choice([2, 4])
    if choose.random() < 0.4:
        settings["layer_types"] = _layer_types(choose, n_layers)
    return "SmolLM3", settings, heads, odd


def _cohere2(choose: random.Random) -> tuple[str, dict[str, Any], list[str], Odd]:
    _, settings, heads, odd = _with_family_settings(choose, "Cohere")
    settings["head_dim"] = settings["hidden_size"] // settings["num_attention_heads"]
    settings["rope_parameters"] = rope(choose, settings["head_dim"], settings["max_position_embeddings"])
    n_layers = settings["num_hidden_layers"]
    settings |= {"sliding_window": choose.choice([3, 5]), "layer_types": _layer_types(choose, n_layers)}
    return "Cohere2", settings, heads, [entry for entry in odd if "use_qk_norm" not in entry[0]]


def _opt(choose: random.Random) -> tuple[str, dict[str, Any], list[str], Odd]:
    n_heads = choose.choice([1, 2, 4])
    width = n_heads * choose.choice([3, 4])
    settings = {
        "vocab_size": choose.choice([41, 60]),
        "hidden_size": width,
        "word_embed_proj_dim": width,
        "ffn_dim": choose.choice([10, 17]),
        "num_hidden_layers": choose.choice([1, 2, 3]),
        "num_attention_heads": n_heads,
        "max_position_embeddings": choose.choice([14, 28]),
        "activation_function": choose.choice(ACTIVATIONS),
        "do_layer_norm_before": choose.random() < 0.7,
        "enable_bias": choose.random() < 0.7,
        "tie_word_embeddings": choose.random() < 0.5,
        "pad_token_id": PAD,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    odd: Odd = [
        ({"word_embed_proj_dim": 5}, "word_embed_proj_dim=5"),
        ({"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine=False"),
        ({"head": "ForSequenceClassification"}, "OPTForSequenceClassification"),
        ({"activation_function": "tanh"}, "activation_function='tanh'"),
    ]
    return "OPT", settings, ["ForCausalLM", "ForCausalLM", "Model"], odd


def _t5(choose: random.Random, prefix: str) -> tuple[str, dict[str, Any], list[str], Odd]:
    settings = {
        "vocab_size": choose.choice([41, 60]),
        "d_model": choose.choice([8, 12]),
        "d_kv": choose.choice([4, 5]),
        "d_ff": choose.choice([10, 17]),
        "num_layers": choose.choice([1, 2]),
        "num_decoder_layers": choose.choice([None, 1, 3]),
        "num_heads": choose.choice([1, 2, 3]),
        "relative_attention_num_buckets": choose.choice([8, 12]),
        "relative_attention_max_distance": choose.choice([10, 20]),
        "feed_forward_proj": choose.choice(
            ["relu", "gelu", "gelu_new", "silu", "gated-gelu", "gated-silu", "gated-relu"]
        ),
        "layer_norm_epsilon": choose.choice([1e-6, 1e-2]),
        "tie_word_embeddings": choose.random() < 0.5,
        "decoder_start_token_id": PAD,
        "pad_token_id": PAD,
        "eos_token_id": 0,
    }
    odd: Odd = [
        ({"feed_forward_proj": "tanh"}, "feed_forward_proj='tanh'"),
        ({"head": "EncoderModel"}, f"{prefix}EncoderModel"),
        ({"head": "ForTokenClassification"}, f"{prefix}ForTokenClassification"),
        ({"relative_attention_max_distance": 4, "relative_attention_num_buckets": 12}, "relative_max_distance=4"),
    ]
    return prefix, settings, ["ForConditionalGeneration", "ForConditionalGeneration", "Model"], odd


def _bart(choose: random.Random, prefix: str) -> tuple[str, dict[str, Any], list[str], Odd]:
    n_heads, inner = choose.choice([1, 2, 4]), choose.choice([10, 17])
    settings = {
        "vocab_size": choose.choice([41, 60]),
        "d_model": n_heads * choose.choice([3, 4]),
        "encoder_layers": choose.choice([1, 2]),
        "decoder_layers": choose.choice([1, 3]),
        "encoder_attention_heads": n_heads,
        "decoder_attention_heads": n_heads,
        "encoder_ffn_dim": inner,
        "decoder_ffn_dim": inner,
        "max_position_embeddings": choose.choice([14, 28]),
        "activation_function": choose.choice(ACTIVATIONS),
        "scale_embedding": choose.random() < 0.5,
        "tie_word_embeddings": choose.random() < 0.5,
        "pad_token_id": PAD,
        "bos_token_id": 2,
        "eos_token_id": 0,
        "forced_eos_token_id": None,
        "decoder_start_token_id": PAD,
    }
    odd: Odd = [
        ({"decoder_ffn_dim": 11}, "different ffn_dim"),
        ({"d_model": 12, "encoder_attention_heads": 3, "decoder_attention_heads": 2}, "different attention_heads"),
        ({"activation_function": "tanh"}, "activation_function='tanh'"),
        ({"head": "ForCausalLM"}, f"{prefix}ForCausalLM"),
    ]
    heads = ["ForConditionalGeneration", "ForConditionalGeneration", "Model"]
    if prefix in ("MBart", "M2M100"):
        settings["normalize_before"] = True  # which HF does not read
    if prefix == "M2M100":
        settings["d_model"] = n_heads * 4
        settings["pad_token_id"] = choose.choice([0, PAD, 3])
        odd = [entry for entry in odd if "head" not in entry[0]]
    elif prefix == "Bart":
        odd.append(({"head": "ForSequenceClassification"}, "BartForSequenceClassification"))
        odd.append(({"head": "ForQuestionAnswering"}, "BartForQuestionAnswering"))
    elif prefix == "Marian":
        heads = ["MTModel", "MTModel", "Model"]
        settings["share_encoder_decoder_embeddings"] = choose.random() < 0.5
        if not settings["share_encoder_decoder_embeddings"]:
            settings["decoder_vocab_size"] = choose.choice([None, 47])
        untied = {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": False, "decoder_vocab_size": 47}
        odd.append((untied, "model?.decoder.embed_tokens.weight is|decoder.embed_tokens.weight is"))
    return prefix, settings, heads, odd


DRAWS = {
    "bert": lambda choose: _encoder(choose, "Bert"),
    "roberta": lambda choose: _encoder(choose, "Roberta"),
    "xlm-roberta": lambda choose: _encoder(choose, "XLMRoberta"),
    "camembert": lambda choose: _encoder(choose, "Camembert"),
    "deberta-v2": lambda choose: _deberta(choose, "DebertaV2"),
    "deberta": lambda choose: _deberta(choose, "Deberta"),
    "modernbert": _modernbert,
    "mpnet": lambda choose: _encoder(choose, "MPNet"),
    "nomic_bert": _nomic,
    "distilbert": _distilbert,
    "albert": lambda choose: _encoder(choose, "Albert"),
    "electra": lambda choose: _encoder(choose, "Electra"),
    "gpt2": _gpt2,
    "llama": lambda choose: _llama(choose, "Llama"),
    "mistral": lambda choose: _llama(choose, "Mistral"),
    "qwen2": lambda choose: _llama(choose, "Qwen2"),
    "qwen3": lambda choose: _llama(choose, "Qwen3"),
    "mixtral": lambda choose: _experts(choose, "Mixtral"),
    "qwen2_moe": lambda choose: _experts(choose, "Qwen2Moe"),
    "qwen3_moe": lambda choose: _experts(choose, "Qwen3Moe"),
    "olmoe": lambda choose: _experts(choose, "Olmoe"),
    "phi3": _phi3,
    "stablelm": lambda choose: _with_family_settings(choose, "StableLm"),
    "gemma2": lambda choose: _gemma_now(choose, "Gemma2"),
    "gemma3_text": lambda choose: _gemma_now(choose, "Gemma3Text"),
    "olmo": lambda choose: _olmo(choose, "Olmo"),
    "olmo2": lambda choose: _olmo(choose, "Olmo2"),
    "olmo3": lambda choose: _olmo(choose, "Olmo3"),
    "smollm3": _smollm3,
    "cohere2": _cohere2,
    "cohere": lambda choose: _with_family_settings(choose, "Cohere"),
    "gpt_neox": _neox,
    "gptj": _gptj,
    "phi": _phi,
    "falcon": _falcon,
    "granite": lambda choose: _with_family_settings(choose, "Granite"),
    "gemma": lambda choose: _with_family_settings(choose, "Gemma"),
    "opt": _opt,
    "t5": lambda choose: _t5(choose, "T5"),
    "mt5": lambda choose: _t5(choose, "MT5"),
    "umt5": lambda choose: _t5(choose, "UMT5"),
    "bart": lambda choose: _bart(choose, "Bart"),
    "marian": lambda choose: _bart(choose, "Marian"),
    "pegasus": lambda choose: _bart(choose, "Pegasus"),
    "mbart": lambda choose: _bart(choose, "MBart"),
    "m2m_100": lambda choose: _bart(choose, "M2M100"),
    "megatron-bert": lambda choose: _encoder(choose, "MegatronBert"),
}
