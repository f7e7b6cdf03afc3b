"""Parameters by name, and their gradients."""

import numpy as np
import pytest

from glassformer.reference.parameters import Parameters


def test_a_view_reads_the_parameters_below_its_name():
    params = Parameters({"encoder.layers.0.weight": [1, 2], "encoder.bias": [3]})
    view = params.at("encoder").at("layers.0")
    assert view["weight"].tolist() == [1.0, 2.0]
    assert view["weight"].dtype == np.float64
    assert "weight" in view
    assert "bias" not in view
    with pytest.raises(KeyError, match=r"encoder\.layers\.0\.bias"):
        view["bias"]


def test_gradients_of_all_uses_are_added_under_the_full_name():
    params = Parameters({"a.weight": np.zeros(2)})
    view = params.at("a")
    view.add_grad("weight", np.array([1.0, 2.0]))
    params.add_grad("a.weight", np.array([10.0, 20.0]))
    assert params.grads["a.weight"].tolist() == [11.0, 22.0]
    params.clear_grads()
    assert view.grads == {}
