"""One server for all tests that only ask, because starting it takes seconds, and a computing thread for each test."""

import pytest

from glassformer.serve.compute_thread import ComputeThread
from glassformer.serve.server_metrics import ServerMetrics
from serve.served import Served, write_models


@pytest.fixture
def compute():
    """A computing thread that runs during the test."""
    found = ComputeThread(ServerMetrics())
    found.start()
    yield found
    found.close()


@pytest.fixture(scope="session")
def model_paths(tmp_path_factory):
    """Tiny random models by name."""
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def guarded(model_paths):
    """A server with three keys, a rate of 12 requests per minute, a page that may use it, and a log of the bodies."""
    more = ("--api-key", "k1", "k2", "--rate", 12, "--cors", "https://example.org", "--log-prompts")
    found = Served(f"chat={model_paths['chat']}", *more, GLASSFORMER_API_KEYS="k3")
    yield found
    assert found.stop() == 0


@pytest.fixture(scope="session")
def server(model_paths):
    """A server with every tiny model, without keys."""
    found = Served(*(f"{name}={path}" for name, path in model_paths.items()), "--max-queue", 1000)
    yield found
    code = found.stop()
    assert code == 0, "".join(found.log)
    assert not [line for line in found.log if "Traceback" in line], "".join(found.log)
