"""Small operations of a GPU's decoding steps in Triton: embeddings, norms, rotations, gate, positions and masks.

Each replaces several of torch's kernels, which take longer to launch than to run. The functions with `@triton.jit` run
on the GPU, as many parallel programs; the Python functions launch them.
"""

from typing import Any

import torch
from torch import Tensor

from glassformer.kernels.kernel_set import PaddingMask, StepNumbers
from glassformer.kernels.triton_launch import HAS_TRITON, early_launch, launches_early, on_device

GATE_BLOCK = 1024
"""The numbers that one program of `gate_rows` computes."""
NUMBER_BLOCK = 1 << 14
"""The most keys that a program of `number_rows` reads at once."""

if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def _embed(  # type: ignore[no-untyped-def]
        tokens, table, positions, position_table, out, scale, t_b, t_t, p_b, p_t, length,
        width: tl.constexpr, block: tl.constexpr, has_scale: tl.constexpr, has_positions: tl.constexpr,
        waits: tl.constexpr,
    ):  # fmt: skip
        """Write the embedding of one token (one program each): its row of `table`, scaled, plus its position's row."""
        if waits:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
        row, column = (tl.program_id(0) // length).to(tl.int64), (tl.program_id(0) % length).to(tl.int64)
        numbers = tl.arange(0, block)
        is_there = numbers < width
        kind = out.dtype.element_ty
        values = tl.load(table + tl.load(tokens + row * t_b + column * t_t) * width + numbers, mask=is_there, other=0.0)
        if has_scale:
            values = (values.to(tl.float32) * scale).to(kind)
        if has_positions:
            position = tl.load(positions + row * p_b + column * p_t)
            added = tl.load(position_table + position * width + numbers, mask=is_there, other=0.0)
            values = (values.to(tl.float32) + added.to(tl.float32)).to(kind)
        tl.store(out + tl.program_id(0).to(tl.int64) * width + numbers, values, mask=is_there)

    @triton.jit  # type: ignore[untyped-decorator]
    def _normalize(  # type: ignore[no-untyped-def]
        x, weight, bias, out, x_r, eps, width: tl.constexpr, block: tl.constexpr, centers: tl.constexpr,
        has_weight: tl.constexpr, has_bias: tl.constexpr, waits: tl.constexpr,
    ):  # fmt: skip
        """Compute the layer norm, or without `centers` the RMS norm, of one row (one program each)."""
        if waits:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
        row, numbers = tl.program_id(0).to(tl.int64), tl.arange(0, block)
        is_there = numbers < width
        values = tl.load(x + row * x_r + numbers, mask=is_there, other=0.0).to(tl.float32)
        if centers:
            values = tl.where(is_there, values - tl.sum(values, 0) / width, 0.0)
        values = values / tl.sqrt(tl.sum(values * values, 0) / width + eps)
        if has_weight:
            values *= tl.load(weight + numbers, mask=is_there, other=0.0).to(tl.float32)
        if has_bias:
            values += tl.load(bias + numbers, mask=is_there, other=0.0).to(tl.float32)
        tl.store(out + row * width + numbers, values.to(out.dtype.element_ty), mask=is_there)

    @triton.jit  # type: ignore[untyped-decorator]
    def _find_angles(  # type: ignore[no-untyped-def]
        positions, frequencies, cos, sin, p_b, p_t, length, half: tl.constexpr, block: tl.constexpr,
        waits: tl.constexpr,
    ):  # fmt: skip
        """Write cosine and sine of the angles of one token (one program each), in the dtype of the frequencies."""
        pairs = tl.arange(0, block)
        is_pair = pairs < half
        if waits:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
        frequency = tl.load(frequencies + pairs, mask=is_pair, other=0.0)
        row, token = (tl.program_id(0) // length).to(tl.int64), (tl.program_id(0) % length).to(tl.int64)
        angles = tl.load(positions + row * p_b + token * p_t).to(frequency.dtype) * frequency
        at = tl.program_id(0).to(tl.int64) * half + pairs
        tl.store(cos + at, tl.cos(angles), mask=is_pair)
        tl.store(sin + at, tl.sin(angles), mask=is_pair)

    @triton.jit  # type: ignore[untyped-decorator]
    def _rotate(  # type: ignore[no-untyped-def]
        x, cos, sin, out, x_b, x_h, x_t, c_b, c_t, o_b, o_h, o_t, length, heads,
        room: tl.constexpr, half: tl.constexpr, block: tl.constexpr, waits: tl.constexpr,
    ):  # fmt: skip
        """Rotate the pairs (x[i], x[i + half]) of all heads of one token (one program each)."""
        if waits:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
        row, token = (tl.program_id(0) // length).to(tl.int64), (tl.program_id(0) % length).to(tl.int64)
        head, pairs = tl.arange(0, room)[:, None], tl.arange(0, block)[None, :]
        is_pair = pairs < half
        is_there = (head < heads) & is_pair
        angle = row * c_b + token * c_t + pairs
        c = tl.load(cos + angle, mask=is_pair, other=0.0).to(tl.float32)
        s = tl.load(sin + angle, mask=is_pair, other=0.0).to(tl.float32)
        at = row * x_b + head * x_h + token * x_t + pairs
        first = tl.load(x + at, mask=is_there, other=0.0).to(tl.float32)
        second = tl.load(x + at + half, mask=is_there, other=0.0).to(tl.float32)
        at = row * o_b + head * o_h + token * o_t + pairs
        kind = out.dtype.element_ty
        tl.store(out + at, (first * c - second * s).to(kind), mask=is_there)
        tl.store(out + at + half, (second * c + first * s).to(kind), mask=is_there)

    @triton.jit  # type: ignore[untyped-decorator]
    def _gate(gate, up, out, g_r, u_r, width, block: tl.constexpr):  # type: ignore[no-untyped-def]
        """Compute silu(gate) * up for a block of one row (one program each)."""
        row = tl.program_id(0).to(tl.int64)
        numbers = tl.program_id(1) * block + tl.arange(0, block)
        is_there = numbers < width
        one = tl.load(gate + row * g_r + numbers, mask=is_there, other=0.0).to(tl.float32)
        two = tl.load(up + row * u_r + numbers, mask=is_there, other=0.0).to(tl.float32)
        result = one * tl.sigmoid(one) * two
        tl.store(out + row * width + numbers, result.to(out.dtype.element_ty), mask=is_there)

    @triton.jit  # type: ignore[untyped-decorator]
    def _number_step(  # type: ignore[no-untyped-def]
        real, position, positions, added, key_end, n_keys, last, block: tl.constexpr, waits: tl.constexpr
    ):
        """Mark the new token of one row (one program each) as real, and write the numbers of `number_step`."""
        if waits:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
        row, place = tl.program_id(0).to(tl.int64), tl.load(position)
        count = 0
        for first in range(0, n_keys, block):
            keys = first + tl.arange(0, block)
            is_there = keys < n_keys
            is_real = tl.load(real + row * n_keys + keys, mask=is_there, other=0) != 0
            count += tl.sum((is_real & (keys < place)).to(tl.int32), 0)
            is_real = is_real | (keys == place)
            tl.store(added + row * n_keys + keys, tl.where(is_real, 0.0, float("-inf")), mask=is_there)
        tl.store(real + row * n_keys + place, 1)
        tl.store(positions + row, tl.minimum(count, last).to(tl.int64))
        if row == 0:
            tl.store(key_end, place + 1)

    @triton.jit  # type: ignore[untyped-decorator]
    def _mask_padding(  # type: ignore[no-untyped-def]
        real, added, is_empty, safe, key_end, n_keys, block: tl.constexpr, waits: tl.constexpr
    ):
        """Write the additive form of the mask of one row (one program each), for `mask_padding_rows`."""
        if waits:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
        row = tl.program_id(0).to(tl.int64)
        end = 0
        for first in range(0, n_keys, block):
            keys = first + tl.arange(0, block)
            is_real = tl.load(real + row * n_keys + keys, mask=keys < n_keys, other=0) != 0
            end = tl.maximum(end, tl.max(tl.where(is_real, keys + 1, 0), 0))
        for first in range(0, n_keys, block):
            keys = first + tl.arange(0, block)
            is_real = tl.load(real + row * n_keys + keys, mask=keys < n_keys, other=0) != 0
            masked = tl.where(is_real, 0.0, float("-inf"))
            tl.store(added + row * n_keys + keys, masked, mask=keys < n_keys)
            tl.store(safe + row * n_keys + keys, tl.where(end == 0, 0.0, masked), mask=keys < n_keys)
        tl.store(is_empty + row, end == 0)
        tl.store(key_end + row, end)


def embed_rows(
    tokens: Tensor, table: Tensor, scale: float | None, positions: Tensor, position_table: Tensor | None
) -> Tensor:
    """Return the embeddings (B, T, C) of tokens at their positions, as `KernelSet.embed`."""
    (batch, length), width = tokens.shape, table.shape[1]
    out = torch.empty(batch, length, width, dtype=table.dtype, device=table.device)
    positions = positions.expand(batch, length)
    launch: Any = _embed[(batch * length,)]
    block = triton.next_power_of_2(width)
    with on_device(table.device):
        # Without enable_fp_fusion=False, one instruction would compute product and sum and not round the product.
        launch(
            tokens, table.contiguous(), positions,
            table if position_table is None else position_table.contiguous(), out, 1.0 if scale is None else scale,
            *tokens.stride(), *positions.stride(), length,
            width=width, block=block, has_scale=scale is not None, has_positions=position_table is not None,
            waits=launches_early(table.device), num_warps=4 if block <= 4096 else 8, enable_fp_fusion=False,
            **early_launch(table.device),
        )  # fmt: skip
    return out


def normalize_rows(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, centers: bool) -> Tensor:
    """Return the norm of each row of x (..., C), as `KernelSet.layer_norm` and `KernelSet.rms_norm`."""
    width = x.shape[-1]
    rows = x.reshape(-1, width)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch: Any = _normalize[(len(rows),)]
    block = triton.next_power_of_2(width)
    with on_device(x.device):
        launch(
            rows, rows if weight is None else weight, rows if bias is None else bias, out, rows.stride(0), eps,
            width=width, block=block, centers=centers, has_weight=weight is not None, has_bias=bias is not None,
            waits=launches_early(x.device), num_warps=4 if block <= 4096 else 8, **early_launch(x.device),
        )  # fmt: skip
    return out


def find_row_angles(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the rotary angles of positions (B, T), as `KernelSet.find_angles`."""
    (batch, length), half = positions.shape, len(frequencies)
    cos = torch.empty(batch, 1, length, half, dtype=frequencies.dtype, device=frequencies.device)
    sin = torch.empty_like(cos)
    launch: Any = _find_angles[(batch * length,)]
    with on_device(cos.device):
        launch(
            positions, frequencies, cos, sin, *positions.stride(), length, half,
            triton.next_power_of_2(half), launches_early(cos.device), num_warps=1, **early_launch(cos.device),
        )  # fmt: skip
    return cos, sin


def rotate_rows(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the rotated x (B, H, T, D), as `KernelSet.rotate`."""
    batch, heads, length, width = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    cos, sin = (part.expand(batch, 1, length, width // 2) for part in (cos, sin))
    if cos.stride(-1) != 1 or cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    launch: Any = _rotate[(batch * length,)]
    with on_device(x.device):
        launch(
            x, cos, sin, out, *x.stride()[:3], cos.stride(0), cos.stride(2), *out.stride()[:3], length, heads,
            room=triton.next_power_of_2(heads), half=width // 2, block=triton.next_power_of_2(width // 2),
            waits=launches_early(x.device), num_warps=4, **early_launch(x.device),
        )  # fmt: skip
    return out


def gate_rows(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up, all (..., C)."""
    width = gate.shape[-1]
    one, two = gate.reshape(-1, width), up.reshape(-1, width)
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    launch: Any = _gate[(len(one), triton.cdiv(width, GATE_BLOCK))]
    with on_device(gate.device):
        launch(one, two, out, one.stride(0), two.stride(0), width, GATE_BLOCK, num_warps=4)
    return out


def number_rows(real: Tensor, position: Tensor, dtype: torch.dtype, max_len: int | None) -> StepNumbers:
    """Return the numbers of a step, as `KernelSet.number_step`."""
    batch, n_keys = real.shape
    positions = torch.empty(batch, 1, dtype=torch.long, device=real.device)
    added = torch.empty(batch, 1, 1, n_keys, dtype=dtype, device=real.device)
    key_end = torch.empty(1, dtype=torch.long, device=real.device)
    last = (1 << 31) - 1 if max_len is None else max_len - 1
    launch: Any = _number_step[(batch,)]
    block = min(triton.next_power_of_2(n_keys), NUMBER_BLOCK)
    with on_device(real.device):
        launch(
            real.view(torch.uint8), position, positions, added, key_end, n_keys, last, block,
            launches_early(real.device), num_warps=max(4, min(16, block // 512)), **early_launch(real.device),
        )  # fmt: skip
    return StepNumbers(positions, added, key_end)


def mask_padding_rows(real: Tensor, dtype: torch.dtype) -> PaddingMask:
    """Return the additive form of a mask (B, S) that is True for real tokens, as `KernelSet.mask_padding`."""
    batch, n_keys = real.shape
    added = torch.empty(batch, 1, 1, n_keys, dtype=dtype, device=real.device)
    safe = torch.empty_like(added)
    is_empty = torch.empty(batch, 1, 1, 1, dtype=torch.bool, device=real.device)
    key_end = torch.empty(batch, dtype=torch.long, device=real.device)
    launch: Any = _mask_padding[(batch,)]
    block = min(triton.next_power_of_2(n_keys), NUMBER_BLOCK)
    with on_device(real.device):
        launch(
            real.view(torch.uint8), added, is_empty.view(torch.uint8), safe, key_end, n_keys, block,
            launches_early(real.device), num_warps=max(1, min(16, block // 128)), **early_launch(real.device),
        )  # fmt: skip
    return PaddingMask(added, is_empty, safe, key_end)
