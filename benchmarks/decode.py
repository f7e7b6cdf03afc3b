"""Translation speed beside HF Marian and CTranslate2: the same weights, the same threads, one interleaved run.

    python benchmarks/decode.py [--batch 32] [--beam 1] [--rounds 5] [--threads 2]

Transformer-base with random weights translates sentences of 25 tokens into exactly 25 tokens each. All contenders take
turns; the median counts. Their outputs are compared with ours in float32: the last column is the share of equal tokens
(int8 rounds, and random weights make close calls, so some differ). Beside the speed stands its share of the machine's
own matrix rate in float32.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from torch import Tensor

from glassformer.decoding import GenerationConfig, generate
from glassformer.decoding.int8 import quantise
from glassformer.models import EncoderDecoderModel, ModelConfig
from glassformer.models.costs import forward_flops

VOCAB, LENGTH = 8000, 25
END, PAD = 0, VOCAB - 1  # Marian begins with its padding token, whose embedding is zero
CONFIG = ModelConfig(
    vocab_size=VOCAB,
    n_encoder_layers=6,
    n_decoder_layers=6,
    d_model=512,
    n_heads=8,
    d_ff=2048,
    max_len=256,
    scale_embeddings=True,
    sinusoid_halves=True,
    tie="all",
    head="language_model",
    output_bias=False,
    dropout=0.0,
)
NAMES = {
    "self_attn.": "self_attn.",
    "encoder_attn.": "cross_attn.",
    "self_attn_layer_norm.": "self_attn_sublayer.norm.",
    "encoder_attn_layer_norm.": "cross_attn_sublayer.norm.",
    "fc1.": "ffn.up_proj.",
    "fc2.": "ffn.down_proj.",
    "final_layer_norm.": "ffn_sublayer.norm.",
}
Translate = Callable[[], list[list[int]]]


def make_marian() -> torch.nn.Module:
    """HF's model, offline, with weights that make it choose many different tokens."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=VOCAB,
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        activation_function="relu",
        max_position_embeddings=256,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
        scale_embedding=True,
    )
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "position" not in name:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
        model.model.shared.weight[PAD] = 0
    return model


def copy_of(marian: torch.nn.Module) -> EncoderDecoderModel:
    """Our model with Marian's weights."""
    model = EncoderDecoderModel(CONFIG).eval()
    theirs, state = marian.state_dict(), model.state_dict()
    for name in state:
        if "tokens" in name or name == "head.out_proj.weight":
            state[name] = theirs["model.shared.weight"]
        elif "positions" not in name:
            old, new = next((old, new) for old, new in NAMES.items() if f".{new}" in name)
            state[name] = theirs["model." + name.replace(f".{new}", f".{old}", 1)]
    model.load_state_dict(state)
    return model


def ours(model: EncoderDecoderModel, sources: list[list[int]], beam: int) -> Translate:
    """Glassformer."""
    config = GenerationConfig(max_new_tokens=LENGTH, min_new_tokens=LENGTH, num_beams=beam, suppress_tokens=(PAD,))
    return lambda: [w[0].tokens for w in generate(model, sources, config, begin=PAD, end=END, max_batch_tokens=10**6)]


def hf(marian: torch.nn.Module, sources: Tensor, beam: int) -> Translate:
    """HF Transformers."""

    @torch.inference_mode()
    def translate() -> list[list[int]]:
        written = marian.generate(
            input_ids=sources,
            attention_mask=torch.ones_like(sources),
            num_beams=beam,
            do_sample=False,
            min_new_tokens=LENGTH,
            max_new_tokens=LENGTH,
            early_stopping="never" if beam > 1 else False,
            bad_words_ids=[[PAD]],
        )
        return written[:, 1:].tolist()

    return translate


def ctranslate2(
    marian: torch.nn.Module, sources: list[list[int]], beam: int, kind: str, threads: int, folder: str
) -> Translate:
    """CTranslate2, converted from the same weights."""
    import ctranslate2
    from ctranslate2.converters.transformers import MarianMTLoader

    if not os.listdir(folder):
        spec = MarianMTLoader().get_model_spec(marian)
        words = ["</s>", *(f"t{index}" for index in range(1, VOCAB - 1))]
        spec.register_source_vocabulary(words)
        spec.register_target_vocabulary(words)
        for name, value in (("eos_token", "</s>"), ("unk_token", "t1"), ("bos_token", "</s>")):
            setattr(spec.config, name, value)
        spec.config.decoder_start_token, spec.config.add_source_eos = "</s>", False
        spec.validate()
        spec.optimize()
        spec.save(folder)
    translator = ctranslate2.Translator(folder, compute_type=kind, inter_threads=1, intra_threads=threads)
    texts = [[f"t{token}" for token in row] for row in sources]

    def translate() -> list[list[int]]:
        found = translator.translate_batch(
            texts, beam_size=beam, min_decoding_length=LENGTH, max_decoding_length=LENGTH
        )
        return [[int(word[1:]) for word in result.hypotheses[0]] for result in found]

    return translate


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    marian = make_marian()
    model = copy_of(marian)
    sources = torch.randint(2, VOCAB - 1, (arguments.batch, LENGTH))
    rows, beam = sources.tolist(), arguments.beam
    with tempfile.TemporaryDirectory() as folder:
        contenders: dict[str, Translate] = {"glassformer, float32": ours(model, rows, beam)}
        contenders["glassformer, int8"] = ours(quantise(model), rows, beam)
        contenders["HF Marian, float32"] = hf(marian, sources, beam)
        for kind in ("float32", "int8"):
            contenders[f"CTranslate2, {kind}"] = ctranslate2(marian, rows, beam, kind, arguments.threads, folder)
        texts = {name: translate() for name, translate in contenders.items()}
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(arguments.rounds):
            for name, translate in contenders.items():
                began = time.perf_counter()
                translate()
                times[name].append(time.perf_counter() - began)
    report(texts, times, arguments.batch, beam)


def report(texts: dict[str, list[list[int]]], times: dict[str, list[float]], batch: int, beam: int) -> None:
    """The table, and what the machine can do."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    seconds = []
    for _ in range(9):
        began = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - began)
    rate = 2 * 1024**3 / min(seconds)
    whole = forward_flops(CONFIG, batch=batch, source_length=LENGTH, target_length=LENGTH)
    encoder = forward_flops(CONFIG, batch=batch, source_length=LENGTH, target_length=1)
    flops = encoder + beam * (whole - encoder)
    print(f"batch {batch}, beam {beam}: {flops / 1e9:.0f} GFLOP; float32 products at {rate / 1e9:.0f} GFLOP/s\n")
    print("| engine | ms | tokens/s | share of the float32 rate | tokens equal to ours in float32 |")
    print("|---|---|---|---|---|")
    right = texts["glassformer, float32"]
    for name, values in times.items():
        median = statistics.median(values)
        same = sum(x == y for one, two in zip(texts[name], right, strict=True) for x, y in zip(one, two, strict=False))
        share = flops / median / rate
        equal = same / (batch * LENGTH)
        print(f"| {name} | {median * 1e3:.0f} | {batch * LENGTH / median:,.0f} | {share:.0%} | {equal:.1%} |")


if __name__ == "__main__":
    main()
