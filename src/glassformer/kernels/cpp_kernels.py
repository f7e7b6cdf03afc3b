"""CPU kernels in C++: attention, norms, rotary positions and gates of a step, token choice, sampling, int8.

The sources are in `cpp/`; `cpp_library.py` compiles them on first use.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from glassformer.kernels.kernel_set import (
    MAX_CHOICES,
    BeamState,
    ExtendedBeams,
    KernelSet,
    SamplingSettings,
    is_exporting,
)

HEAD_SIZES = (16, 32, 64, 128)
MAX_QUERIES = 48
"""With up to this many queries and keys, `attend` is faster than torch's attention: 4 times with 10, twice with 40."""
INT8_CHANNELS = 32
"""The int8 product computes at most this many outputs together, so weight scales are padded to a multiple of it."""


class CppKernels(KernelSet):
    """The C++ implementations of the operations. `operations` is the loaded library, `torch.ops.glassformer_cpu`.

    The model must compute in float32; cached keys and values may be float16. An operation falls back to plain torch if
    its kernel does not support the tensors.
    """

    name = "c++"
    max_queries = MAX_QUERIES

    def __init__(self, operations: Any):
        self.operations = operations
        # Looked up once: a step calls each of them for every layer.
        self._rms_norm, self._layer_norm = operations.rms_norm.default, operations.layer_norm.default
        self._silu_gate, self._rotate = operations.silu_gate.default, operations.rotate.default
        self._write_token = operations.write_token.default

    @override
    def can_attend_to_cache(self, like: Tensor) -> bool:
        return like.dtype == torch.float32 and like.device.type == "cpu" and not is_exporting()

    @override
    def reads_only_filled(self, keys: Tensor, like: Tensor) -> bool:
        return self.can_attend_to_cache(like) and _fits(keys)

    @override
    def can_attend(self, q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> bool:
        is_small = 0 < q.shape[2] <= MAX_QUERIES and q.shape[0] > 0
        is_usual = is_small and self.can_attend_to_cache(q) and added.dtype == q.dtype
        return is_usual and v.shape[-1] == q.shape[-1] and _fits(q) and _fits(k, v)

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, added: Tensor, key_end: Tensor, scale: float) -> Tensor:
        mixed: Tensor = self.operations.attend(q, k, v, added, key_end, scale)
        return mixed

    @override
    def has_row_kernels(self, *tensors: Tensor) -> bool:
        # torch.compile fuses the plain operations by itself; they have gradients, too.
        is_plain = not torch.is_grad_enabled() and not torch.compiler.is_compiling() and not is_exporting()
        return is_plain and all(x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() for x in tensors)

    @override
    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        y: Tensor = self._rms_norm(x, weight, eps)
        return y

    @override
    def layer_norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        y: Tensor = self._layer_norm(x, weight, bias, eps)
        return y

    @override
    def silu_gate(self, gate: Tensor, up: Tensor) -> Tensor:
        y: Tensor = self._silu_gate(gate, up)
        return y

    @override
    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y: Tensor = self._rotate(x, cos, sin)
        return y

    @override
    def write_token(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> None:
        fits = self.has_row_kernels(k, v) and all(x.stride(-1) == 1 for x in (k, v, keys, values))
        if fits and (self.has_row_kernels(keys, values) or _fits(keys, values)):
            self._write_token(k, v, keys, values, position)
        else:
            super().write_token(k, v, keys, values, position)

    @override
    def move_rows(
        self, keys: Tensor, values: Tensor, rows: Tensor, *, width: int | None, position: Tensor, length: int | None
    ) -> None:
        if len(keys) == 0 or not _fits(keys) or not keys.is_contiguous():
            super().move_rows(keys, values, rows, width=width, position=position, length=length)
            return
        filled = position if length is None else torch.full_like(position, length)
        self.operations.move(keys, values, rows, filled, len(rows) if width is None else width)

    @override
    def best_token(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        if not _fits_choice(scores):
            return super().best_token(scores)
        highest, tokens = self.operations.best(scores)
        return highest, tokens

    @override
    def best_tokens(self, scores: Tensor, bias: Tensor, count: int) -> tuple[Tensor, Tensor]:
        if count > MAX_CHOICES or not _fits_choice(scores):
            return super().best_tokens(scores, bias, count)
        values, tokens = self.operations.best_few(scores, bias, count)
        return values, tokens

    @override
    def can_extend_beams(self, logs: Tensor) -> bool:
        return _fits_choice(logs)

    @override
    def extend_beams(
        self, logs: Tensor, tokens: Tensor, beams: BeamState, *, end: int, divisor: float
    ) -> ExtendedBeams:
        return ExtendedBeams(
            *self.operations.extend_beams(logs.contiguous(), tokens.contiguous(), *beams, end, divisor)
        )

    @override
    def can_sample(self, logits: Tensor) -> bool:
        return _fits_choice(logits) and logits.dim() == 2

    @override
    def sample_tokens(self, logits: Tensor, settings: Sequence[SamplingSettings], numbers: Sequence[float]) -> Tensor:
        tokens: Tensor = self.operations.sample(logits, list(chain.from_iterable(settings)), list(numbers))
        return tokens

    def sampling_weights(self, logits: Tensor, settings: SamplingSettings) -> Tensor:
        """Return the weights by which `sample_tokens` draws from a row of logits (V,) -> (V,).

        They are proportional to the probabilities. The weight of a token that the settings drop is 0.
        """
        weights: Tensor = self.operations.sampling_weights(logits, list(settings))
        return weights

    def instruction_set(self) -> str:
        """Return the CPU instructions that the int8 products use: amx, vnni, avx512, avx2, dotprod or neon."""
        return str(self.operations.instruction_set())

    def pack_int8(self, weight: Tensor) -> Tensor:
        """Return int8 weights (out, in) in the layout that `operations.linear` reads."""
        packed: Tensor = self.operations.pack(weight)
        return packed


def _fits(*tensors: Tensor) -> bool:
    """Return whether the kernels support these query, key, value or cache tensors, whose last axis is the head size.

    They need a head size in HEAD_SIZES, float16 or float32, a CPU, one dtype, a contiguous last axis, and no gradients.
    """
    first = tensors[0]
    return (
        first.device.type == "cpu"
        and first.dtype in (torch.float16, torch.float32)
        and first.shape[-1] in HEAD_SIZES
        and all(x.shape[-1] == first.shape[-1] and x.stride(-1) == 1 for x in tensors)
        and all(x.dtype == first.dtype and x.device == first.device for x in tensors)
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))
    )


def _fits_choice(scores: Tensor) -> bool:
    is_plain = scores.device.type == "cpu" and not scores.requires_grad and not torch.compiler.is_compiling()
    return is_plain and scores.dtype == torch.float32 and scores.numel() > 0 and not is_exporting()
