"""The reference's convolution: its gradients are those of finite differences."""

import numpy as np

from glassformer.reference.config import Config
from glassformer.reference.convolution import Convolution
from glassformer.reference.parameters import Parameters

CONFIG = Config(vocab_size=1, d_model=3, conv_kernel=3, conv_activation="gelu")


def test_gradients_are_those_of_finite_differences():
    draw = np.random.default_rng(0)
    shapes = {"conv.weight": (3, 3, 3), "conv.bias": (3,), "norm.weight": (3,), "norm.bias": (3,)}
    state = {name: draw.normal(size=shape) for name, shape in shapes.items()}
    x, y, direction = (draw.normal(size=(2, 4, 3)) for _ in range(3))
    real = np.array([[True] * 4, [True, True, False, False]])

    def value(x, y):
        return (Convolution(Parameters(state), CONFIG).forward(x, y, real) * direction).sum()

    convolution = Convolution(Parameters(state), CONFIG)
    convolution.forward(x, y, real)
    dx, dy = convolution.backward(direction)
    step = 1e-6
    for place in ((0, 1, 2), (1, 1, 0), (1, 2, 1)):
        moved = x.copy(), y.copy()
        for index, grads in enumerate((dx, dy)):
            changed = [part.copy() for part in moved]
            changed[index][place] += step
            np.testing.assert_allclose((value(*changed) - value(x, y)) / step, grads[place], atol=1e-4)
