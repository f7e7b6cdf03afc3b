"""A step of Adam or AdamW for many parameters, with gradients in bfloat16, that also writes a copy in bfloat16.

torch's fused optimizers need gradients in the dtype of the parameters. A copy of the model that computes in bfloat16
then takes three passes over memory: gradients to float32, the step, parameters back to bfloat16. Here one Triton kernel
reads the gradients as they are and writes both parameters, and no gradient in float32 exists.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.kernels.triton_launch import HAS_TRITON, on_device

CHUNK, BLOCK, WARPS = 1 << 13, 1 << 10, 16
"""Numbers that one Triton program updates in all and at a time, and its warps: the fastest of 14 choices on an H200."""
ALIGNED = 16
"""Bytes that a thread reads at once where all addresses are multiples of it."""


class AdamTensors(NamedTuple):
    """The tensors of one parameter that a step changes. All are contiguous and have the same number of elements."""

    parameter: Tensor
    """float32"""
    average: Tensor
    """Running average of the gradient, float32."""
    square: Tensor
    """Running average of the squared gradient, float32."""
    copy: Tensor
    """The parameter in the dtype of the gradients."""


class AdamSettings(NamedTuple):
    """The numbers of a step that are the same for all parameters and known on the CPU."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    is_decoupled: bool
    """Whether weight decay shrinks the parameters (AdamW) or is added to the gradient (Adam)."""


if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def _step(  # type: ignore[no-untyped-def]
        addresses, gradients, sizes, decays, owners, starts, corrections, scale, found_inf, lr, beta1, beta2, eps,
        is_decoupled: tl.constexpr, narrow: tl.constexpr, aligned: tl.constexpr, chunk: tl.constexpr,
        block: tl.constexpr,
    ):  # fmt: skip
        """Update `chunk` numbers of one tensor (one program each); change nothing if `found_inf` is 1.

        `addresses` has four addresses for each tensor, those of `AdamTensors`, and `gradients` one, which is 0 for a
        gradient of zeros. `narrow` is the dtype of gradients and copies. `aligned` divides all addresses.
        """
        if tl.load(found_inf) == 0.0:
            tensor = tl.load(owners + tl.program_id(0)).to(tl.int64)
            first = tl.multiple_of(tl.load(starts + tl.program_id(0)), chunk)
            size = tl.load(sizes + tensor)
            wide_type: tl.constexpr = tl.pointer_type(tl.float32)
            narrow_type: tl.constexpr = tl.pointer_type(narrow)
            parameters = tl.multiple_of(tl.load(addresses + 4 * tensor).to(wide_type), aligned)
            averages = tl.multiple_of(tl.load(addresses + 4 * tensor + 1).to(wide_type), aligned)
            squares = tl.multiple_of(tl.load(addresses + 4 * tensor + 2).to(wide_type), aligned)
            copies = tl.multiple_of(tl.load(addresses + 4 * tensor + 3).to(narrow_type), aligned)
            address = tl.load(gradients + tensor)
            given = tl.multiple_of(address.to(narrow_type), aligned)
            decay = tl.load(decays + tensor)
            divisor = tl.load(scale)
            size_of_step = lr / tl.load(corrections)
            root_of_correction = tl.sqrt(tl.load(corrections + 1))
            for part in range(chunk // block):
                places = first + part * block + tl.arange(0, block)
                is_there = places < size
                parameter = tl.load(parameters + places, mask=is_there, other=0.0)
                gradient = tl.load(given + places, mask=is_there & (address != 0), other=0.0).to(tl.float32) / divisor
                average = tl.load(averages + places, mask=is_there, other=0.0)
                square = tl.load(squares + places, mask=is_there, other=0.0)
                if is_decoupled:
                    parameter -= lr * decay * parameter
                else:
                    gradient += decay * parameter
                average += (1.0 - beta1) * (gradient - average)
                square = beta2 * square + (1.0 - beta2) * gradient * gradient
                parameter -= size_of_step * (average / (tl.sqrt(square) / root_of_correction + eps))
                tl.store(parameters + places, parameter, mask=is_there)
                tl.store(averages + places, average, mask=is_there)
                tl.store(squares + places, square, mask=is_there)
                tl.store(copies + places, parameter.to(narrow), mask=is_there)

    @triton.jit  # type: ignore[untyped-decorator]
    def _sum_squares(  # type: ignore[no-untyped-def]
        gradients, sizes, owners, starts, sums, narrow: tl.constexpr, aligned: tl.constexpr, chunk: tl.constexpr,
        block: tl.constexpr,
    ):  # fmt: skip
        """Write the sum of the squares of `chunk` numbers of one gradient (one program each); see `_step`."""
        tensor = tl.load(owners + tl.program_id(0)).to(tl.int64)
        first = tl.multiple_of(tl.load(starts + tl.program_id(0)), chunk)
        size = tl.load(sizes + tensor)
        narrow_type: tl.constexpr = tl.pointer_type(narrow)
        address = tl.load(gradients + tensor)
        given = tl.multiple_of(address.to(narrow_type), aligned)
        total = tl.zeros([block], tl.float32)
        for part in range(chunk // block):
            places = first + part * block + tl.arange(0, block)
            gradient = tl.load(given + places, mask=(places < size) & (address != 0), other=0.0).to(tl.float32)
            total += gradient * gradient
        tl.store(sums + tl.program_id(0), tl.sum(total, 0))


class AdamKernel:
    """Steps these tensors together. `decays` has the weight decay of each; the gradients come with each step."""

    def __init__(self, tensors: Sequence[AdamTensors], decays: Sequence[float]):
        self.tensors = list(tensors)
        self.decays = list(decays)
        self.device = self.tensors[0].parameter.device
        self._gradients: tuple[list[int], Tensor] | None = None
        """The addresses of the last step's gradients, also on the device. The next gradients often have the same."""
        sizes = [one.parameter.numel() for one in self.tensors]
        owners = [index for index, size in enumerate(sizes) for _ in range(0, size, CHUNK)]
        starts = [start for size in sizes for start in range(0, size, CHUNK)]
        addresses = [tensor.data_ptr() for one in self.tensors for tensor in one]
        self._has_kernel = can_use_kernel(self.device, self.tensors[0].copy.dtype)
        self._is_aligned = all(address % ALIGNED == 0 for address in addresses)
        to: dict[str, Any] = {"device": self.device}
        self._addresses = torch.tensor(addresses, dtype=torch.int64, **to)
        self._sizes = torch.tensor(sizes, dtype=torch.int64, **to)
        self._decays = torch.tensor(self.decays, dtype=torch.float32, **to)
        self._owners = torch.tensor(owners, dtype=torch.int32, **to)
        self._starts = torch.tensor(starts, dtype=torch.int64, **to)

    def step(
        self,
        gradients: "Sequence[Tensor | None]",
        settings: AdamSettings,
        corrections: Tensor,
        *,
        scale: Tensor,
        found_inf: Tensor,
    ) -> None:
        """Make one step, without waiting for the device.

        Args:
            gradients: The gradient of each parameter, contiguous, in the dtype of its copy; None is one of zeros.
            settings: The settings of the optimizer.
            corrections: (2,): 1 - beta1 ** t and 1 - beta2 ** t, t being the number of steps with this one.
            scale: By which gradients are divided, a float32 scalar on the device.
            found_inf: A float32 scalar on the device; 1 changes nothing.
        """
        if not self._has_kernel:
            if not found_inf:
                self._step_in_torch(gradients, settings, corrections, scale)
            return
        kernel: Any = _step
        addresses, options = self._prepared(gradients)
        with on_device(self.device):
            kernel[(len(self._owners),)](
                self._addresses, addresses, self._sizes, self._decays, self._owners, self._starts, corrections, scale,
                found_inf, settings.lr, settings.beta1, settings.beta2, settings.eps,
                is_decoupled=settings.is_decoupled, **options,
            )  # fmt: skip

    def norm(self, gradients: "Sequence[Tensor | None]") -> Tensor:
        """Return the norm of all gradients together, as `step` gets them: a float32 scalar on the device."""
        if not self._has_kernel:
            found = [gradient.float() for gradient in gradients if gradient is not None]
            return torch.nn.utils.get_total_norm(found)
        kernel: Any = _sum_squares
        addresses, options = self._prepared(gradients)
        sums = torch.empty(len(self._owners), dtype=torch.float32, device=self.device)
        with on_device(self.device):
            kernel[(len(self._owners),)](addresses, self._sizes, self._owners, self._starts, sums, **options)
        return sums.sum().sqrt()

    def _prepared(self, gradients: "Sequence[Tensor | None]") -> tuple[Tensor, dict[str, Any]]:
        """Return the addresses of the gradients, on the device, and the options of both kernels."""
        addresses = [0 if gradient is None else gradient.data_ptr() for gradient in gradients]
        if self._gradients is None or self._gradients[0] != addresses:
            # From pinned memory, so that this does not wait for the kernels that were started before.
            table = torch.tensor(addresses, dtype=torch.int64, pin_memory=True).to(self.device, non_blocking=True)
            self._gradients = addresses, table
        is_aligned = self._is_aligned and all(address % ALIGNED == 0 for address in addresses)
        options = {"narrow": _TRITON_TYPES[self.tensors[0].copy.dtype], "aligned": ALIGNED if is_aligned else 1}
        return self._gradients[1], {**options, "chunk": CHUNK, "block": BLOCK, "num_warps": WARPS}

    def _step_in_torch(
        self, gradients: "Sequence[Tensor | None]", settings: AdamSettings, corrections: Tensor, scale: Tensor
    ) -> None:
        lr, beta1, beta2, eps, is_decoupled = settings
        for one, given, decay in zip(self.tensors, gradients, self.decays, strict=True):
            parameter = one.parameter
            gradient = torch.zeros_like(parameter) if given is None else given.float() / scale
            if is_decoupled:
                parameter.mul_(1 - lr * decay)
            else:
                gradient += decay * parameter
            one.average.lerp_(gradient, 1 - beta1)
            one.square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            root = one.square.sqrt() / corrections[1].sqrt() + eps
            parameter.sub_(lr / corrections[0] * (one.average / root))
            one.copy.copy_(parameter)


def can_use_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the Triton kernel can step with gradients of this dtype: on a GPU with Triton, in 16 bits."""
    return HAS_TRITON and device.type == "cuda" and dtype in _TRITON_TYPES


_TRITON_TYPES: dict[torch.dtype, Any] = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16} if HAS_TRITON else {}
