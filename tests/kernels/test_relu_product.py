"""A product with bias and relu is that of torch. With a GPU, cuBLASLt's equals it too."""

import pytest
import torch
import torch.nn.functional as F

from glassformer.kernels.relu_product import relu_product

CASES = [("cpu", torch.float32), ("cpu", torch.bfloat16)]
CASES += [("cuda", torch.float32), ("cuda", torch.bfloat16), ("cuda", torch.float16)] * torch.cuda.is_available()


@pytest.mark.parametrize(("device", "dtype"), CASES)
@pytest.mark.parametrize("shape", [(1, 8, 16), (33, 24, 40), (256, 64, 128)])
def test_product_and_relu_are_those_of_torch(device, dtype, shape):
    torch.manual_seed(0)
    n_rows, n_inputs, n_outputs = shape
    x, weight = torch.randn(n_rows, n_inputs, device=device), torch.randn(n_outputs, n_inputs, device=device)
    arguments = [tensor.to(dtype) for tensor in (x, weight, torch.randn(n_outputs, device=device))]
    found, right = relu_product(*arguments), F.relu(F.linear(*(tensor.double() for tensor in arguments)))
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found.double(), right, atol=tolerance * n_inputs**0.5, rtol=tolerance)


def test_the_shape_is_known_without_computing():
    arguments = torch.randn(4, 8), torch.randn(6, 8), torch.randn(6)
    torch.library.opcheck(relu_product, arguments, test_utils=("test_schema", "test_faketensor"))
