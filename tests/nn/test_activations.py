"""Activations: every name has a torch function and a NumPy reference, and configs accept exactly these names."""

import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
import torch

from glassformer.models import ModelConfig
from glassformer.nn.activations import ActivationName, activation_function
from glassformer.reference import blocks

NAMES = get_args(ActivationName)


@pytest.mark.parametrize("name", NAMES)
def test_every_activation_equals_its_numpy_reference(name):
    x = np.linspace(-4, 4, 41)
    given = torch.tensor(x, requires_grad=True)
    found = activation_function(name)(given)
    found.sum().backward()
    value, slope = blocks.ACTIVATIONS[name](x)
    np.testing.assert_allclose(found.detach().numpy(), value, atol=1e-12)
    np.testing.assert_allclose(given.grad.numpy()[x != 0], slope[x != 0], atol=1e-10)
    assert ModelConfig(vocab_size=9, n_encoder_layers=1, activation=name).activation == name


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="activation='swish': expected one of relu, gelu"):
        activation_function("swish")
    with pytest.raises(ValueError, match=f"activation='swish': expected one of {', '.join(NAMES)}"):
        ModelConfig(vocab_size=9, n_encoder_layers=1, activation="swish")


def test_the_names_are_known_without_torch():
    program = "import sys, glassformer.nn.activations; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_exported_name_of_nn_can_be_imported():
    import glassformer.nn

    assert [name for name in glassformer.nn.__all__ if not callable(getattr(glassformer.nn, name))] == []
    assert glassformer.nn.attend.__module__ == "glassformer.nn.attention_backends"
