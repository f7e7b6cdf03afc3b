"""Small random GGUF files for tests."""

import gguf
import numpy as np
from tokenizers import pre_tokenizers

WIDTH, INNER, LAYERS, HEADS, KV_HEADS, VOCAB = 64, 96, 2, 4, 2, 260
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
Kind = gguf.GGMLQuantizationType


def layer_shapes(head_dim=WIDTH // HEADS):
    return {
        "attn_norm.weight": (WIDTH,),
        "attn_q.weight": (HEADS * head_dim, WIDTH),
        "attn_k.weight": (KV_HEADS * head_dim, WIDTH),
        "attn_v.weight": (KV_HEADS * head_dim, WIDTH),
        "attn_output.weight": (WIDTH, HEADS * head_dim),
        "ffn_norm.weight": (WIDTH,),
        "ffn_gate.weight": (INNER, WIDTH),
        "ffn_up.weight": (INNER, WIDTH),
        "ffn_down.weight": (WIDTH, INNER),
    }


def shapes(extra=None, **options):
    layer = layer_shapes(**options) | (extra or {})
    whole = {"token_embd.weight": (VOCAB, WIDTH), "output_norm.weight": (WIDTH,)}
    return whole | {f"blk.{i}.{name}": shape for i in range(LAYERS) for name, shape in layer.items()}


def random_tensors(all_shapes=None):
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in (all_shapes or shapes()).items()}


def write(path, architecture="llama", tensors=None, kind=Kind.F32, raw=None, tokenizer=True, ids=True, **changes):
    """Write a small GGUF file with matrices of type `kind`. `raw` tensors are stored as given; None drops a value."""
    values = {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": WIDTH,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 50000.0,
    } | changes
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in values.items():
        key = f"{architecture}.{name}"
        if isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    if tokenizer:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list([*BYTES, "ab", "abc", "<|begin|>", "<|end|>"])
        writer.add_token_types([1] * 258 + [3, 3])
        writer.add_token_merges(["a b", "ab c"])
        writer.add_chat_template("{{ messages }}")
    if tokenizer and ids:
        writer.add_bos_token_id(258)
        writer.add_eos_token_id(259)
    for name, tensor in (random_tensors() if tensors is None else tensors).items():
        form = kind if tensor.ndim == 2 else Kind.F32
        stored, form = (raw or {}).get(name, (gguf.quantize(tensor, form), form))
        writer.add_tensor(name, stored, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
