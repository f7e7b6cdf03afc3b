"""Steps with narrow gradients are those of torch's Adam and AdamW. With a GPU, the kernel's are too."""

import pytest
import torch

from glassformer.kernels.adam_kernel import CHUNK, AdamKernel, AdamSettings, AdamTensors, can_use_kernel

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SHAPES = [(1,), (7,), (33, 65), (CHUNK + 5,), (2 * CHUNK,)]
LR, BETAS, EPS, SCALE = 0.01, (0.9, 0.98), 1e-8, 2.5


def corrections(step, device):
    return torch.tensor([1 - beta**step for beta in BETAS], device=device)


class Case:
    """Parameters of several shapes, stepped by the kernel and by torch's optimizer `kind`."""

    def __init__(self, kind, device, *, is_shifted=False):
        torch.manual_seed(0)
        self.device = device
        self.right = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in SHAPES]
        self.decays = [0.1 * index for index in range(len(SHAPES))]
        groups = [{"params": [p], "weight_decay": decay} for p, decay in zip(self.right, self.decays, strict=True)]
        self.optimizer = kind(groups, lr=LR, betas=BETAS, eps=EPS)
        self.tensors = [
            AdamTensors(p.detach().clone(), torch.zeros_like(p), torch.zeros_like(p), self.narrow(p, is_shifted))
            for p in self.right
        ]
        self.kernel = AdamKernel(self.tensors, self.decays)
        self.settings = AdamSettings(LR, *BETAS, EPS, kind is torch.optim.AdamW)
        self.is_shifted = is_shifted

    def narrow(self, like, is_shifted):
        """Return a tensor in bfloat16; a shifted one does not begin at a multiple of 16 bytes."""
        memory = torch.zeros(like.numel() + 1, dtype=torch.bfloat16, device=self.device)
        return memory[int(is_shifted) : like.numel() + int(is_shifted)].view(like.shape)

    def step(self, number, *, found_inf=0.0, without=()):
        gradients = []
        for index, parameter in enumerate(self.right):
            gradient = self.narrow(parameter, self.is_shifted).copy_(torch.randn_like(parameter))
            gradients.append(None if index in without else gradient)
            parameter.grad = torch.zeros_like(parameter) if index in without else gradient.float() / SCALE
        if not found_inf:
            self.optimizer.step()
        numbers = {"scale": torch.tensor(SCALE, device=self.device)}
        numbers["found_inf"] = torch.tensor(found_inf, device=self.device)
        norm = torch.nn.utils.get_total_norm([parameter.grad * SCALE for parameter in self.right])
        torch.testing.assert_close(self.kernel.norm(gradients), norm)
        self.kernel.step(gradients, self.settings, corrections(number, self.device), **numbers)

    def check(self):
        for right, one in zip(self.right, self.tensors, strict=True):
            torch.testing.assert_close(one.parameter, right.detach(), atol=2e-6, rtol=2e-6)
            state = self.optimizer.state[right]
            torch.testing.assert_close(one.average, state["exp_avg"], atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(one.square, state["exp_avg_sq"], atol=1e-6, rtol=1e-5)
            assert torch.equal(one.copy, one.parameter.bfloat16())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_shifted", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_steps_are_those_of_torch(kind, device, is_shifted):
    case = Case(kind, device, is_shifted=is_shifted)
    for number in (1, 2, 3):
        case.step(number, without=(1,) if number == 2 else ())  # None is a gradient of zeros
        case.check()


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_with_an_infinite_gradient_changes_nothing(device):
    case = Case(torch.optim.AdamW, device)
    case.step(1)
    before = [tensor.clone() for one in case.tensors for tensor in one]
    case.step(2, found_inf=1.0)
    assert all(map(torch.equal, before, (tensor for one in case.tensors for tensor in one)))


def test_a_cpu_and_wide_gradients_are_computed_by_torch():
    assert not can_use_kernel(torch.device("cpu"), torch.bfloat16)
    assert not can_use_kernel(torch.device("cuda"), torch.float32)
