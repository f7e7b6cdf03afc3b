"""What the tests prove on the CPU, looked at again on a CUDA device: `make verify-gpu`.

Every kind of mask through torch's fused kernels and through flex attention, forward and backward, against the
formula; every tiny preset on the device against the CPU; a cached forward against a whole one.
"""

import sys

import torch

from glassformer.models import PRESETS, build_model, preset
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
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
