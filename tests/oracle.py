"""Compare a torch model with the NumPy reference: same parameters and inputs, same outputs and gradients."""

from dataclasses import asdict

import numpy as np
import torch

from glassformer import reference
from glassformer.models import ModelConfig, build_model


def random_model(config: ModelConfig, *, dtype=torch.float64, backend="sdpa"):
    """Return a model with random parameters. Norms of one and biases of zero would hide mistakes."""
    model = build_model(config, backend=backend).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if name.endswith("norm.weight") else 0.0
            parameter.copy_(centre + 0.3 * torch.randn_like(parameter))
    return model


def random_inputs(config: ModelConfig, *, batch=3, length=7, source_length=6, padding=True, segments=False):
    """Return keyword arguments of a forward, with padding on the right of some rows and on the left of others."""

    def mask(size):
        result = torch.ones(batch, size, dtype=torch.bool)
        if padding:
            result[1, -2:] = False
            result[2, :1] = False
        return result

    tokens = torch.randint(0, config.vocab_size, (batch, length))
    if config.kind == "encoder_decoder":
        source = torch.randint(0, config.source_vocab, (batch, source_length))
        return {"source": source, "target": tokens, "source_mask": mask(source_length), "target_mask": mask(length)}
    inputs = {"tokens": tokens, "mask": mask(length)}
    if config.token_types:
        inputs["token_types"] = torch.randint(0, config.token_types, (batch, length))
    if segments:
        inputs["segments"] = torch.tensor([[0, 0, 1, 1, 1, 2, 2]] * batch)[:, :length]
    return inputs


def twin(model) -> reference.EncoderModel | reference.EncoderDecoderModel:
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    return reference.build_model(reference.Config.from_dict(asdict(model.config)), state)


def assert_oracle_agrees(config: ModelConfig, *, output_tolerance=1e-10, gradient_tolerance=1e-8, **input_options):
    """Assert that outputs and all gradients of a random model agree with the oracle in float64."""
    model = random_model(config)
    inputs = random_inputs(config, **input_options)
    output = model(**inputs)
    direction = torch.randn_like(output)
    (output * direction).sum().backward()

    oracle = twin(model)
    expected = oracle.forward(**{name: value.numpy() for name, value in inputs.items()})
    oracle.backward(direction.numpy())

    np.testing.assert_allclose(output.detach().numpy(), expected, atol=output_tolerance, rtol=output_tolerance)
    grads = oracle.params.grads
    assert set(grads) <= {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        expected_grad = grads.get(name, np.zeros(parameter.shape))
        actual = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
        np.testing.assert_allclose(
            actual, expected_grad, atol=gradient_tolerance, rtol=gradient_tolerance, err_msg=f"gradient of {name}"
        )
    return model, oracle
