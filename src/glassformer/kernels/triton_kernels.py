"""GPU kernels in Triton: cache writes, beam reordering and token choice, and attention by `triton_attention.py`.

Triton comes with torch's CUDA builds; without it `HAS_TRITON` is False and `kernel_registry.py` uses plain torch.

The functions with `@triton.jit` run on the GPU, as many parallel programs; `TritonKernels` launches them. Their
arguments `k_b`, `k_h` and the like are strides: of `k` by batch row and head.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from glassformer.kernels.kernel_set import (
    MAX_CHOICES,
    MAX_QUERIES,
    KernelSet,
    NewTokens,
    NormWeights,
    PaddingMask,
    StepNumbers,
    is_exporting,
)
from glassformer.kernels.triton_attention import attend_filled
from glassformer.kernels.triton_choice import (
    DTYPES,
    best_token,
    best_tokens,
    can_choose,
    can_choose_several,
    choose_token,
)
from glassformer.kernels.triton_launch import HAS_TRITON, early_launch, launches_early, on_device
from glassformer.kernels.triton_products import max_fused_rows, multiply_rows
from glassformer.kernels.triton_rows import (
    embed_rows,
    find_row_angles,
    gate_rows,
    mask_padding_rows,
    normalize_rows,
    number_rows,
    rotate_rows,
)
from glassformer.kernels.triton_tiles import add_and_normalize_rows, multiply_in_parts, multiply_many_rows

HEAD_SIZES = (16, 32, 64, 128)
MANY_ROWS = 1 << 14
"""The most rows, of all texts together, for which layers are fused: those of a step, an encoder or a prompt."""

if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def _write_token(  # type: ignore[no-untyped-def]
        k, v, keys, values, position, k_b, k_h, v_b, v_h, to_b, to_h, to_s, p_b, heads, width: tl.constexpr,
        waits: tl.constexpr,
    ):  # fmt: skip
        """Copy the new key and value of one batch row and head (one program each) into the cache at `position`.

        `p_b` is the stride of `position` by batch row, 0 if all rows write at one position.
        """
        if waits:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
        row, head = (tl.program_id(0) // heads).to(tl.int64), (tl.program_id(0) % heads).to(tl.int64)
        numbers = tl.arange(0, width)
        to = row * to_b + head * to_h + tl.load(position + row * p_b) * to_s + numbers
        tl.store(keys + to, tl.load(k + row * k_b + head * k_h + numbers))
        tl.store(values + to, tl.load(v + row * v_b + head * v_h + numbers))

    @triton.jit  # type: ignore[untyped-decorator]
    def _move_rows(  # type: ignore[no-untyped-def]
        keys, values, rows, position, row_b, row_h, heads,
        n_rows: tl.constexpr, room: tl.constexpr, width: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        """Copy row `rows[i]` of the cache to row i, in place, for `TritonKernels.move_rows`.

        One program per group of rows, head and block of numbers reads all rows of its group before it writes any.
        """
        group, head = (tl.program_id(0) // heads).to(tl.int64), (tl.program_id(0) % heads).to(tl.int64)
        filled = tl.load(position) * width
        if tl.program_id(1) * block < filled:
            own = tl.arange(0, room)
            is_row = own < n_rows
            source = tl.load(rows + group * n_rows + own, mask=is_row, other=0)
            numbers = tl.program_id(1) * block + tl.arange(0, block)
            is_there = is_row[:, None] & (numbers < filled)[None, :]
            source = source[:, None] * row_b + head * row_h + numbers[None, :]
            target = (group * n_rows + own)[:, None] * row_b + head * row_h + numbers[None, :]
            k = tl.load(keys + source, mask=is_there)
            v = tl.load(values + source, mask=is_there)
            tl.debug_barrier()
            tl.store(keys + target, k, mask=is_there)
            tl.store(values + target, v, mask=is_there)


class TritonKernels(KernelSet):
    """The Triton implementations of the operations.

    An operation falls back to plain torch if its kernel does not support the tensors.
    """

    name = "triton"

    @override
    def can_attend_to_cache(self, like: Tensor) -> bool:
        return like.dtype in DTYPES and not is_exporting()

    @override
    def reads_only_filled(self, keys: Tensor, like: Tensor) -> bool:
        return self.can_attend_to_cache(like) and _fits(keys) and keys.dtype == like.dtype

    @override
    def can_attend(self, q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> bool:
        is_small = 0 < q.shape[2] <= MAX_QUERIES and q.shape[0] > 0
        return is_small and self.can_attend_to_cache(q) and added.dtype == q.dtype and _fits(q, k, v)

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, added: Tensor, key_end: Tensor, scale: float) -> Tensor:
        return attend_filled(q, k, v, added, key_end, scale)

    @override
    def can_rotate_within(self, keys: Tensor, angles: tuple[Tensor, Tensor]) -> bool:
        fits = all(2 * table.shape[-1] == keys.shape[-1] and table.stride(-1) == 1 for table in angles)
        return fits and angles[0].stride() == angles[1].stride() and self.has_row_kernels(keys) and _fits(keys)

    @override
    def write_and_attend(self, q: Tensor, new: NewTokens, added: Tensor, key_end: Tensor, scale: float) -> Tensor:
        keys, values, _ = new.place
        is_single = new.k.shape[2] == 1 and (new.angles is None or q.shape[2] == 1)
        if not _fits(new.k, new.v, keys) or not is_single:
            return super().write_and_attend(q, new, added, key_end, scale)
        return attend_filled(q, keys, values, added, key_end, scale, new)

    @override
    def has_row_kernels(self, *tensors: Tensor) -> bool:
        first = tensors[0]
        return (
            not (torch.is_grad_enabled() or torch.compiler.is_compiling() or is_exporting())
            and first.dtype in DTYPES
            and first.numel() > 0
            and all(x.dtype == first.dtype and x.device == first.device and x.stride(-1) == 1 for x in tensors)
        )

    @override
    def can_embed(self, tokens: Tensor, table: Tensor) -> bool:
        return tokens.numel() > 0 and tokens.dtype == torch.long and self.has_row_kernels(table)

    @override
    def embed(
        self, tokens: Tensor, table: Tensor, scale: float | None, positions: Tensor, position_table: Tensor | None
    ) -> Tensor:
        is_same = position_table is None or position_table.dtype == table.dtype
        embed: Any = embed_rows if is_same and self.can_embed(tokens, table) else super().embed
        found: Tensor = embed(tokens, table, scale, positions, position_table)
        return found

    @override
    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        return normalize_rows(x, weight, None, eps, centers=False)

    @override
    def layer_norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        return normalize_rows(x, weight, bias, eps, centers=True)

    @override
    def silu_gate(self, gate: Tensor, up: Tensor) -> Tensor:
        return gate_rows(gate, up)

    @override
    def can_find_angles(self, positions: Tensor) -> bool:
        is_plain = not (torch.is_grad_enabled() or torch.compiler.is_compiling() or is_exporting())
        return is_plain and positions.numel() > 0

    @override
    def find_angles(self, positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        return find_row_angles(positions, frequencies)

    @override
    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotate_rows(x, cos, sin)

    @override
    def can_number_step(self, real: Tensor, dtype: torch.dtype) -> bool:
        is_plain = not (torch.is_grad_enabled() or torch.compiler.is_compiling() or is_exporting())
        return is_plain and dtype in DTYPES and len(real) > 0 and real.is_contiguous()

    @override
    def number_step(
        self, real: Tensor, position: Tensor, dtype: torch.dtype, max_len: int | None = None
    ) -> StepNumbers:
        return number_rows(real, position, dtype, max_len)

    @override
    def mask_padding(self, real: Tensor, dtype: torch.dtype) -> PaddingMask:
        return mask_padding_rows(real, dtype)

    @override
    def can_fuse_linear(self, x: Tensor) -> bool:
        n_rows = x.numel() // max(x.shape[-1], 1)
        is_plain = not torch.is_grad_enabled() and not torch.compiler.is_compiling() and not is_exporting()
        return is_plain and x.dtype in DTYPES and 0 < n_rows <= MANY_ROWS

    @override
    def fuses_norms(self, x: Tensor) -> bool:
        return x.numel() <= max_fused_rows(x) * x.shape[-1]

    @override
    def fused_linear(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        norm: NormWeights | None = None,
        activation: str | None = None,
        gated: bool = False,
        residual: Tensor | None = None,
    ) -> Tensor:
        given = {"norm": norm, "activation": activation, "gated": gated, "residual": residual}
        tensors = [tensor for tensor in (weight, bias, residual, *(norm or ())) if isinstance(tensor, Tensor)]
        is_same = all(tensor.dtype == x.dtype and tensor.device == x.device for tensor in tensors)
        if not self.can_fuse_linear(x) or not is_same or not weight.is_contiguous() or x.stride(-1) != 1:
            return super().fused_linear(x, weight, bias, **given)  # type: ignore[arg-type]
        multiply: Any = multiply_rows if self.fuses_norms(x) else multiply_many_rows
        found: Tensor = multiply(x, weight, bias, **given)
        return found

    @override
    def linear_in_parts(self, x: Tensor, weight: Tensor) -> Tensor:
        return multiply_in_parts(x, weight)

    @override
    def add_and_normalize(
        self, x: Tensor, parts: Tensor | None, bias: Tensor | None, norm: NormWeights | None
    ) -> tuple[Tensor, Tensor]:
        tensors = [tensor for tensor in (bias, *(norm or ())) if isinstance(tensor, Tensor)]
        is_same = all(tensor.dtype == x.dtype and tensor.device == x.device for tensor in tensors)
        if not self.can_fuse_linear(x) or not is_same or x.stride(-1) != 1:
            return super().add_and_normalize(x, parts, bias, norm)
        return add_and_normalize_rows(x, parts, bias, norm)

    @override
    def write_token(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> None:
        if len(k) == 0 or not _fits(k, v, keys):
            super().write_token(k, v, keys, values, position)
        else:
            _write(k, v, keys, values, position, 0)

    @override
    def can_write_rows(self, k: Tensor, v: Tensor, keys: Tensor) -> bool:
        return len(k) > 0 and _fits(k, v, keys)

    @override
    def write_rows(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        _write(k, v, keys, values, positions, positions.stride(0))

    @override
    def move_rows(
        self, keys: Tensor, values: Tensor, rows: Tensor, *, width: int | None, position: Tensor, length: int | None
    ) -> None:
        # A program holds a whole group, and one group of all rows is too large for that.
        if width is None or len(keys) == 0 or not _fits(keys) or not keys.is_contiguous():
            super().move_rows(keys, values, rows, width=width, position=position, length=length)
            return
        _, heads, capacity, numbers = keys.shape
        block = 1024
        launch: Any = _move_rows[(len(rows) // width * heads, triton.cdiv(capacity * numbers, block))]
        with on_device(keys.device):
            launch(
                keys, values, rows, position, *keys.stride()[:2], heads,
                width, triton.next_power_of_2(width), numbers, block, num_warps=4,
            )  # fmt: skip

    @override
    def best_token(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        return best_token(scores) if can_choose(scores) else super().best_token(scores)

    @override
    def best_tokens(self, scores: Tensor, bias: Tensor, count: int) -> tuple[Tensor, Tensor]:
        if count > MAX_CHOICES or not can_choose_several(scores):
            return super().best_tokens(scores, bias, count)
        return best_tokens(scores, bias, count)

    @override
    def choose_token(
        self, scores: Tensor, bias: Tensor, tokens: Tensor, position: Tensor, first: Tensor, results: Tensor
    ) -> None:
        choose: Any = choose_token if can_choose(scores) else super().choose_token
        choose(scores, bias, tokens, position, first, results)


def _write(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, position: Tensor, stride: int) -> None:
    """Write new keys and values (B, G, 1, D) into the cache, row b at `position[b * stride]`."""
    batch, heads, _, width = k.shape
    launch: Any = _write_token[(batch * heads,)]
    with on_device(k.device):
        launch(
            k, v, keys, values, position,
            *k.stride()[:2], *v.stride()[:2], *keys.stride()[:3], stride, heads, width, launches_early(k.device),
            num_warps=1, **early_launch(k.device),
        )  # fmt: skip


@cache
def has_triton_kernels(device: torch.device) -> bool:
    """Return whether these kernels run on a device: Triton is installed, and the GPU is Ampere or newer."""
    return HAS_TRITON and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def _fits(*tensors: Tensor) -> bool:
    """Return whether the kernels support these query, key, value or cache tensors, whose last axis is the head size.

    They need a head size in HEAD_SIZES, a dtype in DTYPES, one device, a contiguous last axis, and no gradients.
    """
    first = tensors[0]
    return (
        first.dtype in DTYPES
        and first.shape[-1] in HEAD_SIZES
        and all(x.shape[-1] == first.shape[-1] and x.stride(-1) == 1 for x in tensors)
        and all(x.dtype == first.dtype and x.device == first.device for x in tensors)
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))
    )
