"""llama2.c files: tensors, tokenizers, and refused files."""

import random
import struct
import time

import numpy as np
import pytest
import tokenizers
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from glassformer.checkpoint import CorruptFolderError
from glassformer.checkpoint.llama2c import read_llama2c

WIDTH, INNER, LAYERS, HEADS, KV_HEADS, VOCAB, LENGTH = 32, 48, 3, 4, 2, 270, 16
SIZES = (WIDTH, INNER, LAYERS, HEADS, KV_HEADS, VOCAB, LENGTH)


def pairs_from_halves(weight, n_heads):
    """Reorder rows of HF's q and k as llama2.c's exporter does."""
    return weight.view(n_heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def hf_model(*, tied=True):
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=LENGTH,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def write(path, model, sizes=SIZES, tail=()):
    """Write a file that llama2.c reads."""
    layers = model.model.layers
    tensors = [
        model.model.embed_tokens.weight,
        *(layer.input_layernorm.weight for layer in layers),
        *(pairs_from_halves(layer.self_attn.q_proj.weight, HEADS) for layer in layers),
        *(pairs_from_halves(layer.self_attn.k_proj.weight, KV_HEADS) for layer in layers),
        *(layer.self_attn.v_proj.weight for layer in layers),
        *(layer.self_attn.o_proj.weight for layer in layers),
        *(layer.post_attention_layernorm.weight for layer in layers),
        *(layer.mlp.gate_proj.weight for layer in layers),
        *(layer.mlp.down_proj.weight for layer in layers),
        *(layer.mlp.up_proj.weight for layer in layers),
        model.model.norm.weight,
        torch.full((2, LENGTH, WIDTH // HEADS // 2), 7.0),  # the rotary table, which is not used
        *tail,
    ]
    data = b"".join(tensor.detach().numpy().astype("<f4").tobytes() for tensor in tensors)
    path.write_bytes(struct.pack("<7i", *sizes) + data)
    return path


def write_tokenizer(path, pieces=((" a", -1.0), ("ab", -2.0))):
    tokens = [("<unk>", 0.0), ("\n<s>\n", 0.0), ("\n</s>\n", 0.0)]
    tokens += [(f"<0x{byte:02X}>", 0.0) for byte in range(256)]
    tokens += [*pieces, *((letter, -1e9) for letter in " abcdefgh")]
    data = struct.pack("<i", max(len(token) for token, _ in tokens))
    for token, score in tokens:
        data += struct.pack("<fi", score, len(token.encode())) + token.encode()
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("tied", [True, False])
def test_hf_gives_the_same_outputs_with_the_read_tensors(tmp_path, tied):
    model = hf_model(tied=tied)
    tail = () if tied else (model.lm_head.weight,)
    sizes = SIZES if tied else (*SIZES[:5], -VOCAB, LENGTH)
    found = read_llama2c(write(tmp_path / "model.bin", model, sizes, tail))
    assert found.config["tie_word_embeddings"] == tied
    state = {name: found.tensors[name] for name in found.tensors.keys()}  # noqa: SIM118
    assert all(found.tensors.shape(name) == tensor.shape for name, tensor in state.items())
    theirs = model.state_dict()
    if tied:
        del theirs["lm_head.weight"]
    assert state.keys() == theirs.keys()
    assert all(torch.equal(state[name], theirs[name]) for name in theirs)
    again = LlamaForCausalLM(LlamaConfig(**found.config)).eval()
    again.load_state_dict(state, strict=not tied)
    ids = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
    assert found.tokenizer_json is None


def test_a_tensor_is_a_copy_that_may_be_trained(tmp_path):
    found = read_llama2c(write(tmp_path / "model.bin", hf_model())).tensors
    found["model.norm.weight"].zero_()
    assert found["model.norm.weight"].abs().min() > 0


@pytest.mark.parametrize(("name", "given"), [("tokenizer.bin", False), ("tok270.bin", False), ("words.bin", True)])
def test_the_tokenizer_is_found_or_given(tmp_path, name, given):
    path = write(tmp_path / "model.bin", hf_model())
    beside = write_tokenizer(tmp_path / name)
    found = read_llama2c(path, beside if given else None)
    tokenizer = tokenizers.Tokenizer.from_str(found.tokenizer_json)
    assert tokenizer.encode("ab a").tokens == ["<s>", "▁a", "b", "▁a"]
    assert tokenizer.encode("é", add_special_tokens=False).tokens == ["▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("ab aé\n").ids) == "ab aé\n"
    assert tokenizer.get_vocab_size() == VOCAB
    assert (found.tokenizer_config["bos_token"], found.tokenizer_config["eos_token"]) == ("<s>", "</s>")


def test_one_of_several_tokenizers_must_be_named(tmp_path):
    path = write(tmp_path / "model.bin", hf_model())
    for name in ("tok1.bin", "tok2.bin"):
        write_tokenizer(tmp_path / name)
    with pytest.raises(ValueError, match=r"tok1.bin, tok2.bin: expected one, or tokenizer="):
        read_llama2c(path)
    assert read_llama2c(path, tmp_path / "tok2.bin").tokenizer_json


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((WIDTH, INNER, LAYERS, HEADS, KV_HEADS, VOCAB + 1, LENGTH), "bytes: expected .* by its header"),
        ((WIDTH, INNER, LAYERS, HEADS, KV_HEADS, -VOCAB, LENGTH), "bytes: expected .* by its header"),
        ((2**31 - 1,) * 7, "expected dim, hidden_dim"),
        ((2**20, 2**31 - 1, 4096, 2**19, 1, -(2**31), 2**31 - 1), "bytes: expected .* by its header"),
        ((WIDTH, INNER, 0, HEADS, KV_HEADS, VOCAB, LENGTH), "has the header .*: expected dim"),
        ((WIDTH, INNER, LAYERS, 3, 3, VOCAB, LENGTH), "heads that divide dim into even parts"),
        ((WIDTH, INNER, LAYERS, HEADS, 3, VOCAB, LENGTH), "has the header"),
        ((0x616B3432, 1, 1, 1, 1, 1, 1), "a later version of llama2.c's format"),
    ],
)
def test_a_header_that_does_not_fit_the_file_is_refused(tmp_path, sizes, message):
    path = write(tmp_path / "model.bin", hf_model(), sizes)
    with pytest.raises(ValueError, match=message) as caught:
        read_llama2c(path)
    assert str(path) in str(caught.value)


def test_truncated_files_are_refused(tmp_path):
    path = write(tmp_path / "model.bin", hf_model())
    whole = path.read_bytes()
    for size in (0, 27, 28, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptFolderError, match=f"has {size} bytes"):
            read_llama2c(path)
    with pytest.raises(FileNotFoundError):
        read_llama2c(tmp_path / "nothing.bin")


def test_mutated_tokenizers_load_or_are_refused_quickly(tmp_path):
    path, other = write(tmp_path / "model.bin", hf_model()), write_tokenizer(tmp_path / "tokenizer.bin")
    good, rng, refused = other.read_bytes(), random.Random(0), []
    for turn in range(200):
        data = bytearray(good)
        if turn % 4 == 0:
            del data[rng.randrange(len(data)) :]
        for _ in range(rng.choice([1, 1, 2, 8])):
            at = rng.randrange(len(data) + 1)
            data[at : at + 1] = rng.choice([b"\xff", b"\x00", bytes([rng.randrange(256)]), b"\xff" * 4, b""])
        other.write_bytes(data)
        start = time.perf_counter()
        try:
            tokenizers.Tokenizer.from_str(read_llama2c(path).tokenizer_json).encode("ab a")
        except ValueError as error:
            refused.append(str(error))
        assert time.perf_counter() - start < 60  # generous, for a busy machine
    assert 50 < len(refused) < 200
    assert all(str(other) in message for message in refused)


def test_a_piece_score_that_is_not_a_number_is_refused(tmp_path):
    path = write(tmp_path / "model.bin", hf_model())
    write_tokenizer(tmp_path / "tokenizer.bin", (("ab", np.nan), ("ac", -1.0)))
    with pytest.raises(ValueError, match="'ab' has the score nan"):
        read_llama2c(path)
