"""How the gradients of a run are computed: by the model or a copy of it, compiled or not, by CUDA graphs or not."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Literal

import torch
from torch import Tensor, nn

from glassformer.kernels.adam_kernel import can_use_kernel
from glassformer.kernels.cpu_products import has_products
from glassformer.kernels.cpu_training import build_training_kernels, norm_of
from glassformer.models import DecoderModel, Model
from glassformer.training.compiled_layers import compile_layers, training_attention, uncompile_layers
from glassformer.training.compute_copy import ComputeCopy, can_copy
from glassformer.training.copy_update import CopyUpdate
from glassformer.training.cpu_layers import CpuLayers
from glassformer.training.float8_linear import use_float8
from glassformer.training.fused_backward import fuse_backward
from glassformer.training.fused_embedding import fuse_embeddings
from glassformer.training.fused_norm import fuse_norms
from glassformer.training.gradients import Batch, Gradients, GraphedGradients, can_graph, total_norm
from glassformer.training.lora import is_narrowed
from glassformer.training.parallel import Parallel
from glassformer.training.precision import autocast, matmul_precision, uses_bf16_matmuls
from glassformer.training.train_config import TrainConfig


@dataclass(kw_only=True)
class GradientSetup(Generic[Batch]):
    """Makes the `Gradients` of a run. In bf16 on a GPU, and if layers are compiled, a copy of the model computes them.

    Adversarial training and LoRA change weights of the model between two passes, so there the model computes them.
    """

    model: nn.Module
    config: TrainConfig
    device: torch.device
    precision: Literal["fp32", "bf16", "fp16"]
    loss: Callable[[Batch], Tensor]
    loss_of: Callable[[nn.Module], Callable[[Batch], Tensor]] | None
    warn: Callable[[str], None]
    parallel: Parallel = field(default_factory=Parallel)
    sample: Any = None
    """A batch, for a run of several processes."""

    def __post_init__(self) -> None:
        self.copy: ComputeCopy | None = None
        """The copy of the model that computes the gradients; None if the model itself does."""
        self.copy_update: CopyUpdate | None = None
        """Steps the optimizer with the gradients of the copy; None if they are moved to the model first."""
        self.is_compiled = False
        """Whether the layers of the copy are compiled."""
        self.cpu_layers: CpuLayers | None = None
        """The layers that our C++ kernels compute; None if torch computes all of them."""
        self._uses_bf16_matmuls = uses_bf16_matmuls(self.precision, self.device)
        self._is_narrow = self.device.type == "cuda" and self.precision == "bf16"
        is_copied = (self._is_narrow or self.config.compile == "on") and not self.parallel.is_active
        if is_copied and self.can_compile and isinstance(self.model, Model):
            self.copy = ComputeCopy(self.model, torch.bfloat16 if self._is_narrow else torch.float32)
            self.copy.module.train()
        if self.config.precision == "fp8":
            self._use_float8()
        if self.copy is not None and self._is_narrow:
            fuse_backward(self.copy.module)
            fuse_embeddings(self.copy.module)
            fuse_norms(self.copy.module)
        if self.parallel.is_active:
            # A sharded model is a copy, whose loss only `loss_of` can make.
            loss = self.loss if self.loss_of is None else self.loss_of(self.model)
            self.loss = self.parallel.wrap(self.model, loss, self.config, self.precision, self.sample)

    def _use_float8(self) -> None:
        if self.copy is None:
            reasons = "adapters, adversarial training, several processes or models with hooks"
            raise ValueError(f"precision='fp8' with {reasons}: expected 'bf16'")
        if not use_float8(self.copy.module):
            raise ValueError("precision='fp8': no layer of this model is large enough to gain, expected 'bf16'")

    @property
    def can_use_cpu_kernels(self) -> bool:
        """Whether C++ kernels can compute layers of the model: on a CPU, with float32 activations, by one process."""
        is_float32 = self.precision == "fp32" or self._uses_bf16_matmuls
        return self.device.type == "cpu" and is_float32 and self.copy is None and not self.parallel.is_active

    def use_cpu_kernels(self) -> str:
        """Let C++ kernels compute layers of the model, in `Gradients` made after this call. Return which, in words.

        Nothing changes if the model has no such layers. Raises KernelBuildError if the kernels cannot be built.
        """
        layers = CpuLayers(self.model, in_bf16=self._uses_bf16_matmuls and has_products())
        if layers.replaced:
            build_training_kernels()
            self.cpu_layers = layers
        return layers.in_words()

    def use_copy_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimizer, torch's Adam or AdamW, read the gradients of the copy, if each update has one batch."""
        is_one_batch = self.config.accumulate * self.config.passes == 1
        if self.copy is not None and is_one_batch and can_use_kernel(self.device, self.copy.dtype):
            self.copy_update = CopyUpdate(optimizer, self.copy, reuses_gradients=self._is_graphed)

    def norm(self, gradients: Gradients[Batch]) -> Tensor:
        """Return the norm of all gradients together, on the device."""
        if self.copy_update is None:
            found = gradients.of_model()
            are_plain = all(x.dtype == torch.float32 and x.is_contiguous() for x in found)
            return norm_of(found) if self.cpu_layers is not None and are_plain else total_norm(found)
        return self.copy_update.norm(gradients.in_copy)

    def step(self, optimizer: torch.optim.Optimizer, gradients: Gradients[Batch]) -> None:
        """Step the optimizer, whose `found_inf` and `grad_scale` are set if it is fused, and update the copy."""
        fused: Any = optimizer
        if self.copy_update is None:
            with matmul_precision(self.precision, self.device):
                optimizer.step()
            self.pull()
        else:
            self.copy_update.step(gradients.in_copy, found_inf=fused.found_inf, grad_scale=fused.grad_scale)

    @property
    def can_compile(self) -> bool:
        """Whether a copy of the model can compute the gradients. Only the layers of a copy are ever compiled."""
        return self.loss_of is not None and not self.config.adversarial and can_copy(self.model)

    def set_compiled(self, on: bool) -> None:
        """Compile the layers of the copy from the next step on, or no longer."""
        module = self.model if self.parallel.is_active else None if self.copy is None else self.copy.module
        if module is not None and on != self.is_compiled:
            if on:
                compile_layers(module, in_processes=self.parallel.is_active)
            else:
                uncompile_layers(module)
            self.is_compiled = on

    def gradients(self, loss: Callable[[Batch], Tensor] | None = None) -> Gradients[Batch]:
        """Return a new accumulator of gradients, by CUDA graphs if possible. `loss` replaces the loss of the run."""
        if loss is None:
            loss = self.loss if self.copy is None or self.loss_of is None else self.loss_of(self.copy.module)
        options: dict[str, Any] = {"device": self.device, "autocast": self.context, "attention": self.attention}
        options["layers"] = self.layers
        options |= {"copy": self.copy, "stays_in_copy": self.copy_update is not None}
        if self._is_graphed:
            return GraphedGradients(self.model, loss, warn=self.warn, **options)
        return Gradients(self.model, loss, **options)

    @property
    def _is_graphed(self) -> bool:
        return self.config.cuda_graphs and can_graph(self.model, self.device) and not self.parallel.is_active

    @property
    def copy_bytes(self) -> int:
        """Memory of the copy of the model, without its gradients."""
        return 0 if self.copy is None else sum(parameter.nbytes for parameter in self.copy.module.parameters())

    def pull(self) -> None:
        """Copy the parameters of the model to the copy, after they have changed."""
        if self.copy is not None:
            self.copy.pull()

    @contextmanager
    def context(self) -> Iterator[None]:
        """Context manager in which a loss is computed: with the precision and attention kernels of training."""
        is_bf16 = self._is_narrow and (self.copy is not None or is_narrowed(self.model))
        precision = "fp32" if is_bf16 or self.parallel.casts(self.precision) else self.precision
        with autocast(precision, self.device), self.attention():
            yield

    @contextmanager
    def layers(self) -> Iterator[None]:
        """Context manager for the forward and backward pass of a batch: the C++ layers, and products in bf16."""
        with ExitStack() as contexts:
            contexts.enter_context(matmul_precision(self.precision, self.device))
            if self.cpu_layers is not None:
                contexts.enter_context(self.cpu_layers.active())
            yield

    def attention(self) -> AbstractContextManager[None]:
        """Return the context manager that chooses the attention kernels of training."""
        return training_attention(self.device, long=isinstance(self.model, DecoderModel))
