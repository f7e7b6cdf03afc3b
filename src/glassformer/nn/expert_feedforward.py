"""A mixture of experts: feed-forward networks of which a router chooses a few for each token (Shazeer et al. 2017).

A layer then has many more parameters than a token is computed with. `training/balance_loss.py` is the loss that keeps
the router from sending all tokens to the same experts.
"""

import torch
from torch import Tensor, nn

from glassformer.nn.activations import HeadActivationName
from glassformer.nn.feedforward import FeedForward
from glassformer.nn.tensor_checks import check_positive, check_width


class Router(nn.Linear):
    """The linear layer that scores the experts, or the gate of a shared expert.

    It is a separate class so that quantization leaves it as it is: a small error of a score may choose another
    expert.
    """


class ExpertFeedForward(nn.Module):
    """A feed-forward network made of experts: Σ w_e(x) expert_e(x) over the experts that the router chooses for x.

    The weights w are the largest `per_token` of softmax(router(x)), divided by their sum with `normalize`, as in
    Mixtral (Jiang et al. 2024). A shared expert is added for all tokens, times sigmoid(shared_gate(x)), as in
    Qwen2-MoE (Yang et al. 2024). Every expert is a `FeedForward` with the given activation, gate, bias and dropout.

    Args:
        d_ff: Inner width of each expert.
        per_token: Number of experts that are chosen for a token.
        shared_d_ff: Inner width of the shared expert; None has none.
    """

    takes_kernels = False

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        n_experts: int,
        *,
        per_token: int = 2,
        shared_d_ff: int | None = None,
        normalize: bool = True,
        activation: HeadActivationName = "relu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        check_positive("n_experts", n_experts)
        if not 0 < per_token <= n_experts:
            raise ValueError(f"per_token={per_token}: expected 1 to {n_experts}, the number of experts")
        self.d_model = d_model
        self.per_token = per_token
        self.normalize = normalize

        def expert(width: int) -> FeedForward:
            return FeedForward(d_model, width, activation=activation, gated=gated, bias=bias, dropout=dropout)

        self.router = Router(d_model, n_experts, bias=False)
        self.experts = nn.ModuleList(expert(d_ff) for _ in range(n_experts))
        self.shared_expert = None if shared_d_ff is None else expert(shared_d_ff)
        self.shared_gate = None if shared_d_ff is None else Router(d_model, 1, bias=False)

    def forward(self, x: Tensor, *, has_fixed_shapes: bool = False) -> Tensor:
        """Apply the network to every token of x (B, T, C) and return the same shape.

        With `has_fixed_shapes`, and in compiled or exported code, no shape depends on which experts are chosen: every
        expert computes every token. Otherwise each expert computes the tokens that it was chosen for. Both return the
        same, up to rounding.
        """
        check_width("feed-forward input", x, self.d_model)
        weights, chosen = self.route(x)
        rows = x.reshape(1, -1, self.d_model)  # (1, N, C) with N = B T
        is_fixed = has_fixed_shapes or torch.compiler.is_compiling() or not x.numel()
        y = self._by_all(rows, weights, chosen) if is_fixed else self._by_chosen(rows, weights, chosen)
        if self.shared_expert is not None and self.shared_gate is not None:
            y = y + self.shared_gate(rows).sigmoid() * self.shared_expert(rows)
        return y.view(x.shape)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights and the numbers of the experts that are chosen for each token of x (B, T, C).

        Both are (N, K), with N = B T tokens and K experts per token. Probabilities are computed in float32.
        """
        scores = self.router(x).flatten(0, -2)  # (N, E)
        weights, chosen = scores.softmax(-1, dtype=_wide(scores.dtype)).topk(self.per_token)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(x.dtype), chosen

    def _by_chosen(self, rows: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Return the sum of experts for rows (1, N, C). Each expert computes the rows that it was chosen for.

        While gradients are computed, an expert without rows is called, too, so that every parameter gets a gradient, as
        training in several processes expects.
        """
        slots = chosen.flatten()  # (N K), expert of the k-th choice of each row
        order = slots.argsort(stable=True)
        counts = slots.bincount(minlength=len(self.experts)).tolist()
        parts = torch.split(rows[:, order // self.per_token], counts, 1)
        found = [
            expert(part)
            for expert, part in zip(self.experts, parts, strict=True)
            if part.shape[1] or torch.is_grad_enabled()
        ]
        by_slot = torch.cat(found, 1)[0, order.argsort()]  # (N K, C), in the order of `slots`
        return (by_slot.view(*chosen.shape, self.d_model) * weights[:, :, None]).sum(1)[None]

    def _by_all(self, rows: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Return the sum of experts for rows (1, N, C). Every expert computes all rows, with weight 0 if not chosen."""
        shares = weights.new_zeros(rows.shape[1], len(self.experts)).scatter(1, chosen, weights)  # (N, E)
        y = torch.zeros_like(rows)
        for index, expert in enumerate(self.experts):
            y = y + expert(rows) * shares[:, index, None]
        return y


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32
