"""Small HF models with random configs, built offline. Each family draws its own settings."""

import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers

from checkpoint import random_hf

with warnings.catch_warnings():  # HF's DeBERTa uses torch.jit, which is deprecated
    warnings.simplefilter("ignore")
    import transformers.models.deberta_v2.modeling_deberta_v2

VOCAB = 37


def _bert(draw: random.Random, name: str, **more: Any) -> Any:
    heads = draw.choice([1, 2, 4])
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": heads * draw.choice([3, 4]),
        "num_hidden_layers": draw.choice([1, 2]),
        "num_attention_heads": heads,
        "intermediate_size": draw.choice([10, 17]),
        "max_position_embeddings": 28,
        "type_vocab_size": draw.choice([1, 2]),
        "hidden_act": draw.choice(["gelu", "relu", "silu", "gelu_new"]) if name in ("Bert", "Albert") else "gelu",
        "pad_token_id": 1,
    }
    return getattr(transformers, f"{name}Config")(**{**sizes, **more})


def small_bert(prefix: str, head: str, **settings: Any) -> Any:
    """Build an HF encoder such as BertForMaskedLM, with weights so large that mistakes show in its outputs."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 10}
    config = _bert(random.Random(0), prefix, **{**sizes, "hidden_act": "gelu", **settings})
    return make(config, prefix + head, 0)


def _distilbert(draw: random.Random) -> Any:
    heads = draw.choice([1, 2, 4])
    return transformers.DistilBertConfig(
        vocab_size=VOCAB,
        dim=heads * 4,
        hidden_dim=draw.choice([10, 17]),
        n_layers=draw.choice([1, 2]),
        n_heads=heads,
        max_position_embeddings=28,
        activation=draw.choice(["gelu", "relu"]),
        pad_token_id=1,
    )


def _gpt2(draw: random.Random) -> Any:
    heads = draw.choice([1, 2, 4])
    return transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=28,
        n_embd=heads * draw.choice([3, 4]),
        n_layer=draw.choice([1, 2, 3]),
        n_head=heads,
        n_inner=draw.choice([None, 10]),
        activation_function=draw.choice(["gelu_new", "relu", "gelu"]),
        tie_word_embeddings=draw.choice([True, False]),
        bos_token_id=0,
        eos_token_id=0,
    )


def _rope(draw: random.Random, head_dim: int) -> dict[str, Any]:
    """Return rotary parameters, scaled half of the time. Texts of these tests stay below the original length."""
    theta = draw.choice([100.0, 10000.0])
    lists = {key: [draw.choice([1.0, 3.0]) for _ in range(head_dim // 2)] for key in ("short_factor", "long_factor")}
    more: dict[str, Any] = draw.choice(
        [
            {"rope_type": "default"},
            {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            {"rope_type": "yarn"},
            {"rope_type": "longrope", **lists},
        ]
    )
    scaled = {} if more["rope_type"] == "default" else {"factor": 2.0, "original_max_position_embeddings": 14}
    return {"rope_theta": theta, **scaled, **more}


def _llama(draw: random.Random, kind: str) -> Any:
    groups = draw.choice([1, 2])
    heads = groups * draw.choice([1, 2, 3])
    more: dict[str, Any] = {}
    if kind == "Llama":
        more = {"attention_bias": draw.choice([True, False]), "mlp_bias": draw.choice([True, False])}
    if kind == "Mistral":
        more = {"sliding_window": draw.choice([None, 3])}
    if kind == "Qwen3":
        more = {"attention_bias": draw.choice([True, False])}
    if kind in ("Qwen2", "Qwen3") and draw.random() < 0.5:
        more |= {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0}
    width, head_dim = heads * 4, 4 if kind == "Qwen2" else draw.choice([4, 6])
    return getattr(transformers, f"{kind}Config")(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=draw.choice([10, 17]),
        num_hidden_layers=draw.choice([1, 2]),
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=head_dim,
        max_position_embeddings=28,
        rope_parameters=_rope(draw, head_dim),
        tie_word_embeddings=draw.choice([True, False]),
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
        **more,
    )


def _drawn(draw: random.Random, family: str) -> Any:
    """Return a config of `random_hf.py` with this module's vocabulary and length."""
    prefix, settings, _, _ = random_hf.DRAWS[family](draw)
    settings |= {"vocab_size": VOCAB, "n_positions" if family == "gptj" else "max_position_embeddings": 28}
    return getattr(transformers, f"{prefix}{'Text' if prefix == 'Gemma3' else ''}Config")(**settings)


def _t5(draw: random.Random, kind: str = "T5") -> Any:
    return getattr(transformers, f"{kind}Config")(
        vocab_size=VOCAB,
        d_model=draw.choice([8, 12]),
        d_kv=draw.choice([4, 5]),
        d_ff=draw.choice([10, 17]),
        num_layers=draw.choice([1, 2]),
        num_decoder_layers=draw.choice([1, 2]),
        num_heads=draw.choice([1, 2, 3]),
        relative_attention_num_buckets=draw.choice([8, 12]),
        relative_attention_max_distance=draw.choice([10, 20]),
        feed_forward_proj=draw.choice(["relu", "gated-gelu", "gated-silu"]),
        tie_word_embeddings=draw.choice([True, False]),
        decoder_start_token_id=1,
        pad_token_id=1,
        eos_token_id=0,
    )


def _bart(draw: random.Random, kind: str) -> Any:
    heads = draw.choice([1, 2, 4])
    return getattr(transformers, f"{kind}Config")(
        vocab_size=VOCAB,
        d_model=heads * 4,
        encoder_layers=draw.choice([1, 2]),
        decoder_layers=draw.choice([1, 2]),
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=10,
        decoder_ffn_dim=10,
        max_position_embeddings=28,
        activation_function=draw.choice(["gelu", "relu", "silu"]),
        scale_embedding=draw.choice([True, False]),
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=0,
        forced_eos_token_id=None,
        decoder_start_token_id=2 if kind == "M2M100" else 1,  # M2M100 gives padding tokens no position
    )


MORE = {"phi3": "Phi3", "stablelm": "StableLm", "granite": "Granite", "gemma": "Gemma", "opt": "OPT"}
MORE |= {"cohere": "Cohere", "gpt_neox": "GPTNeoX", "gptj": "GPTJ", "phi": "Phi", "falcon": "Falcon"}
MORE |= {"gemma2": "Gemma2", "gemma3_text": "Gemma3", "olmo": "Olmo", "olmo2": "Olmo2", "olmo3": "Olmo3"}
MORE |= {"smollm3": "SmolLM3", "cohere2": "Cohere2"}
Draw = Callable[[random.Random], Any]
ENCODERS: dict[str, tuple[Draw, list[str]]] = {
    "bert": (
        lambda r: _bert(r, "Bert"),
        ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"],
    ),
    "roberta": (lambda r: _bert(r, "Roberta"), ["ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering"]),
    "xlm-roberta": (lambda r: _bert(r, "XLMRoberta"), ["ForMaskedLM", "ForSequenceClassification"]),
    "camembert": (lambda r: _bert(r, "Camembert"), ["ForMaskedLM", "ForTokenClassification"]),
    "deberta-v2": (
        lambda r: _bert(
            r,
            "DebertaV2",
            relative_attention=True,
            pos_att_type="p2c|c2p",
            share_att_key=True,
            position_biased_input=False,
            norm_rel_ebd="layer_norm",
            position_buckets=r.choice([4, 8]),
            type_vocab_size=0,
        ),
        ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"],
    ),
    "distilbert": (_distilbert, ["Model", "ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering"]),
    "albert": (
        lambda r: _bert(r, "Albert", embedding_size=r.choice([5, 7])),
        ["ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"],
    ),
    "electra": (
        lambda r: _bert(r, "Electra", embedding_size=r.choice([5, 7])),
        ["Model", "ForMaskedLM", "ForTokenClassification"],
    ),
}
DECODERS: dict[str, tuple[Draw, str]] = {
    "gpt2": (_gpt2, "GPT2LMHeadModel"),
    **{
        kind.lower(): (lambda r, kind=kind: _llama(r, kind), f"{kind}ForCausalLM")
        for kind in ("Llama", "Mistral", "Qwen2", "Qwen3")
    },
    **{family: (lambda r, family=family: _drawn(r, family), f"{name}ForCausalLM") for family, name in MORE.items()},
}
PAIRS: dict[str, tuple[Draw, str]] = {
    "t5": (_t5, "T5ForConditionalGeneration"),
    "bart": (lambda r: _bart(r, "Bart"), "BartForConditionalGeneration"),
    "marian": (lambda r: _bart(r, "Marian"), "MarianMTModel"),
    "mt5": (lambda r: _t5(r, "MT5"), "MT5ForConditionalGeneration"),
    "umt5": (lambda r: _t5(r, "UMT5"), "UMT5ForConditionalGeneration"),
    "mbart": (lambda r: _bart(r, "MBart"), "MBartForConditionalGeneration"),
    "m2m_100": (lambda r: _bart(r, "M2M100"), "M2M100ForConditionalGeneration"),
}


def make(config: Any, class_name: str, seed: int) -> Any:
    """Build a model of that class with weights so large that mistakes show in its outputs."""
    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    model = getattr(transformers, class_name)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name or "Marian" not in class_name:
                parameter.normal_(std=0.4)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    return model
