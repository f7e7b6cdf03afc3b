import gc
import os

# Two workers on two cores: one thread each is faster than four threads fighting. Set before torch or NumPy start
# theirs. Who sets OMP_NUM_THREADS wants to see whether the tests pass with that many.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest
import torch
from hypothesis import settings

gc.disable()  # until all tests are collected
if os.environ["OMP_NUM_THREADS"].isdigit():
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
# The same examples everywhere, however slow the machine, and a line with which to repeat those that fail.
for profile, examples in (("quick", 25), ("full", 100)):
    settings.register_profile(profile, deadline=None, derandomize=True, print_blob=True, max_examples=examples)
settings.load_profile("quick")
# torch.manual_seed keeps a seed for devices that are not there, with a traceback each: 3 ms below pytest, in every
# test and every pass of a training.
for absent in (device for device in (torch.cuda, torch.xpu, torch.mtia) if not device.is_available()):
    absent.manual_seed_all = lambda seed: None


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="run every test with its large counts (make test-full)")


def pytest_configure(config):
    if config.getoption("--full"):
        settings.load_profile("full")
    else:
        os.fsync = os.fstat  # no test cuts the power, and waiting for a disk takes 3 ms for each of thousands of files


def pytest_collection_finish():
    """Leave the modules and the list of tests out of garbage collections: they are a million objects and stay."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--full"):
        for item in items:
            if item.get_closest_marker("full"):
                item.add_marker(pytest.mark.skip(reason="slow: runs with --full"))


@pytest.fixture
def count(request):
    """Choose how many random cases a test runs: count(3, 100) is 3, and 100 with --full."""

    def choose(few, many):
        return many if request.config.getoption("--full") else few

    return choose


@pytest.fixture
def reviews(tmp_path):
    """A .tsv file of 80 texts that are labeled good or bad."""
    path = tmp_path / "reviews.tsv"
    path.write_text(
        "text\tlabel\n" + "".join(f"it is {word} {n}\t{word}\n" for n in range(40) for word in ("good", "bad")),
        encoding="utf-8",
    )
    return path


@pytest.fixture
def training_kernels():
    """Compile the C++ kernels of training, or skip the test where there is no compiler or no kernel for the CPU."""
    from glassformer.kernels.cpp_library import KernelBuildError, UnsupportedCPUError
    from glassformer.kernels.cpu_training import build_training_kernels

    try:
        build_training_kernels()
    except UnsupportedCPUError as error:
        pytest.skip(str(error))
    except KernelBuildError as error:
        if "no C++ compiler" not in str(error):
            raise
        pytest.skip(str(error))
