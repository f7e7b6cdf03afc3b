"""What the tests prove on the CPU, looked at again on a CUDA device: `make verify-gpu`.

Every kind of mask through torch's fused kernels and through flex attention, forward and backward, against the
formula; every tiny preset on the device against the CPU; a cached forward against a whole one; and what is written by
recorded steps on the device against plain steps of the CPU, by every kind of search.
"""

import copy
import sys
from dataclasses import replace

import torch

from glassformer.decoding import GeneratedText, GenerationConfig, generate
from glassformer.models import PRESETS, ModelConfig, build_model, preset
from glassformer.nn import Mask, attend

B, H, G, T, D = 2, 4, 2, 130, 64  # longer than one kernel block, and not a multiple of it
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 5e-2}


def masks() -> dict[str, Mask]:
    """Every kind of mask, with rows that may attend to nothing among them."""
    real = torch.ones(B, T, dtype=torch.bool, device="cuda")
    real[0, T // 2 :] = False
    nothing = real.clone()
    nothing[0] = False
    segments = (torch.arange(T, device="cuda") // 40).expand(B, T)
    return {
        "none": Mask(),
        "causal": Mask(causal=True),
        "window": Mask(window=20),
        "causal window": Mask(causal=True, window=20),
        "padding": Mask(real=real),
        "causal padding left": Mask(causal=True, real=real.flip(1)),
        "nothing to attend": Mask(real=nothing),
        "segments": Mask(causal=True, query_segments=segments, key_segments=segments),
        "allowed": Mask(allowed=torch.rand(B, 1, T, T, device="cuda") > 0.5),
    }


def backends_agree(dtype: torch.dtype, backend: str) -> tuple[float, str]:
    """The largest difference to the formula in float32, over outputs, gradients, masks and biases, and its mask."""
    worst = 0.0, "none"
    for name, mask in masks().items():
        for bias in (None, torch.randn(1, H, T, T, device="cuda")):
            shapes = ((B, H, T, D), (B, G, T, D), (B, G, T, D))
            qkv = [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for shape in shapes]
            exact = [x.detach().float().requires_grad_() for x in qkv]
            results = []
            for inputs, engine in ((qkv, backend), (exact, "math")):
                output = attend(*inputs, mask=mask, bias=bias, backend=engine).output  # type: ignore[arg-type]
                results.append([output, *torch.autograd.grad(output.float().square().sum(), inputs)])
            for ours, theirs in zip(*results, strict=True):
                difference = (ours.float() - theirs).abs().max() / theirs.abs().max().clamp_min(1)
                worst = max(worst, (difference.nan_to_num(torch.inf).item(), name))
    return worst


def preset_agrees(name: str) -> float:
    """The largest difference between the device and the CPU, whole and cached, in float64."""
    torch.manual_seed(0)
    model = build_model(preset(name)).double().eval()
    tokens = torch.randint(0, 40, (3, 9))
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[1, :2], mask[2, 7:] = False, False
    with torch.no_grad():
        pair = model.kind == "encoder_decoder"
        inputs = (tokens, tokens, mask, mask) if pair else (tokens, mask)
        expected = model(*inputs)
        model.cuda()
        moved = [x.cuda() for x in inputs]
        difference = (model(*moved).cpu() - expected)[mask].abs().max().item()
        if model.kind == "decoder":
            cache = model.new_cache(3, 9)
            parts = zip(moved[0].split(3, 1), moved[1].split(3, 1), strict=True)
            cached = torch.cat([model(t, m, cache=cache) for t, m in parts], 1)
            difference = max(difference, (cached.cpu() - expected)[mask].abs().max().item())
    return difference


def writers() -> dict[str, ModelConfig]:
    """Models with every kind of positions, small and with heads of a width that kernels like."""
    plain = ModelConfig(
        vocab_size=23, n_decoder_layers=2, d_model=64, n_heads=4, d_ff=24, head="language_model", max_len=40
    )
    return {
        "learned": replace(plain, positions="learned"),
        "rotary, grouped": replace(plain, positions="rotary", n_kv_heads=2),
        "alibi": replace(plain, positions="alibi"),
        "relative": replace(plain, positions="relative"),
        "window": replace(plain, positions="rotary", sliding_window=3),
        "encoder-decoder": replace(plain, n_encoder_layers=1),
    }


SEARCHES = [
    GenerationConfig(max_new_tokens=9),
    GenerationConfig(max_new_tokens=200),
    GenerationConfig(max_new_tokens=9, logit_bias={4: 2.0, 9: -3.0}, suppress_tokens=(7,), min_new_tokens=2),
    GenerationConfig(max_new_tokens=9, do_sample=True, num_return_sequences=3, seed=5),
    GenerationConfig(max_new_tokens=9, repetition_penalty=1.5, min_new_tokens=3),
    GenerationConfig(max_new_tokens=1, num_beams=3, num_return_sequences=3),
    GenerationConfig(max_new_tokens=9, num_beams=3, num_return_sequences=2),
    GenerationConfig(max_new_tokens=200, num_beams=4, num_return_sequences=2),
    GenerationConfig(max_new_tokens=30, num_beams=2, length_penalty=-1.0),
    GenerationConfig(max_new_tokens=30, num_beams=3, min_new_tokens=7, length_penalty=3.0),
    GenerationConfig(max_new_tokens=30, num_beams=2, early_stopping=True),
    GenerationConfig(max_new_tokens=30, num_beams=2, early_stopping=False, length_penalty=0.5),
    GenerationConfig(max_new_tokens=9, num_beams=4, num_beam_groups=2, diversity_penalty=0.5),
]
TEXTS = [[[5, 6, 7], [8, 9], [11, 12, 13, 14]], [[3]], [[4 + n % 19] * (1 + n % 7) for n in range(17)]]


def is_other(one: GeneratedText, two: GeneratedText) -> bool:
    """Whether two texts differ by more than rounding: of two equally good ones a search may find either."""
    if one.tokens == two.tokens:
        return False
    return one.score is None or two.score is None or abs(one.score - two.score) > 1e-5


def recordings_agree(config: ModelConfig, dtype: torch.dtype) -> tuple[int, int]:
    """How many searches were made on the device, back and forth over the same recordings, and how many found others."""
    torch.manual_seed(0)
    model = build_model(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)  # so that texts end at different times
    device = copy.deepcopy(model).cuda()
    begin = 1 if config.n_encoder_layers else None
    count = wrong = 0
    for texts in TEXTS:
        expected = [generate(model, texts, search, begin=begin, end=2) for search in SEARCHES]
        for place in [*range(len(SEARCHES)), *reversed(range(len(SEARCHES)))]:
            found = generate(device, texts, SEARCHES[place], begin=begin, end=2)
            pairs = [pair for some in zip(found, expected[place], strict=True) for pair in zip(*some, strict=True)]
            count, wrong = count + 1, wrong + any(is_other(*pair) for pair in pairs)
    return count, wrong


def main() -> int:
    """Print a line for each check; 0 when all hold."""
    good = True
    torch.backends.cuda.matmul.allow_tf32 = False
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for backend in ("sdpa", "flex"):
        for dtype, tolerance in TOLERANCE.items():
            difference, mask = backends_agree(dtype, backend)
            good &= difference < tolerance
            print(
                f"{backend} against the formula, {dtype}: {difference:.1e} with mask {mask!r}, {tolerance:.0e} allowed"
            )
    for name in PRESETS:
        if name.startswith("tiny-"):
            difference = preset_agrees(name)
            good &= difference < 1e-9
            print(f"{name}: device against CPU {difference:.1e}")
    for name, config in writers().items():
        for dtype in (torch.float64, torch.float32):  # by torch's kernels, and by ours
            count, wrong = recordings_agree(config, dtype)
            good &= not wrong
            print(f"{name}, {dtype}: {wrong} of {count} searches find others on the device than on the CPU")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
