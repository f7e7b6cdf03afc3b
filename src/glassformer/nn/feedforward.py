"""The position-wise feed-forward network, plain or gated. `activations.py` lists its activation functions."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn.activations import HeadActivationName, activation_function
from glassformer.nn.dropout import Dropout
from glassformer.nn.tensor_checks import check_positive, check_width


class FeedForward(nn.Module):
    """The position-wise feed-forward network: down(act(up(x))) (Vaswani et al. 2017, section 3.3).

    With `gated` it is down(act(gate(x)) * up(x)) (Shazeer 2020): SwiGLU if the activation is "silu".
    """

    takes_kernels = True
    """Whether `forward` has the parameter `kernels`. Classes with the signature of a document have none."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: HeadActivationName = "relu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        check_positive("d_ff", d_ff)
        self.d_model = d_model
        self.activation = activation
        self.act = activation_function(activation)
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias) if gated else None
        self.gate_up_proj: nn.Module | None = None
        """Gate and up projection fused into one; set only in packed models (`runtime/packed_model.py`)."""
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, kernels: KernelSet | None = None) -> Tensor:
        """Apply the network to every token of x (B, T, C) and return the same shape.

        `kernels` may compute the gate; None is plain torch.
        """
        check_width("feed-forward input", x, self.d_model)
        if self.gate_up_proj is not None:
            gate, up = self.gate_up_proj(x).chunk(2, -1)
            return self.down_proj(self.dropout(self._gated(self.act, gate, up, kernels)))
        act = self.act
        first = self.up_proj if self.gate_proj is None else self.gate_proj
        if act is F.relu and not torch.is_grad_enabled() and not first._forward_hooks:
            act = torch.relu_  # in place: saves a copy of the largest tensor of an inference batch
        up = self.up_proj(x)  # (B, T, F)
        hidden = act(up) if self.gate_proj is None else self._gated(act, self.gate_proj(x), up, kernels)
        return self.down_proj(self.dropout(hidden))

    def _gated(self, act: Callable[[Tensor], Tensor], gate: Tensor, up: Tensor, kernels: KernelSet | None) -> Tensor:
        if kernels is not None and self.activation == "silu" and kernels.has_row_kernels(gate, up):
            return kernels.silu_gate(gate, up)
        return act(gate) * up
