"""Fixtures of the tests of the runtime."""

import pytest
import torch


@pytest.fixture
def two_threads():
    """Let torch compute with two threads during a test."""
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(usual)
