"""A failed CUDA graph capture raises one error and cleans up. Most tests use a fake of torch.cuda; one needs a GPU."""

import gc
from contextlib import contextmanager, suppress

import pytest
import torch

from glassformer.runtime import cuda_graphs
from glassformer.runtime.cuda_graphs import CaptureError, capture_graph

CPU = torch.device("cpu")


class FakeGenerator:
    """Stays in the recording state until it gets another state, as CUDA's generator does."""

    def __init__(self):
        self.is_recorded = False

    def graphsafe_set_state(self, other):
        self.is_recorded = False


@pytest.fixture
def cuda(monkeypatch):
    """Replace what `capture_graph` uses of torch.cuda. Ending a capture raises `breaks` if it is set."""

    class Cuda:
        generator, stream, breaks, open_pools, options = FakeGenerator(), "default", None, [], {}

    @contextmanager
    def graph(made, pool, **options):
        Cuda.options = options
        Cuda.generator.is_recorded, Cuda.stream = True, "side"
        Cuda.open_pools.append(pool)
        try:
            yield
        finally:
            if Cuda.breaks is not None:
                raise Cuda.breaks
            Cuda.generator.is_recorded, Cuda.stream = False, "default"
            Cuda.open_pools.remove(pool)

    def close(index, pool):
        if pool not in Cuda.open_pools:
            raise RuntimeError("not currently recording to this pool")
        Cuda.open_pools.remove(pool)

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Cuda.stream)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: setattr(Cuda, "stream", stream))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.get_rng_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: torch.set_rng_state(state))
    monkeypatch.setattr(torch.cuda, "default_generators", (Cuda.generator,))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", close, raising=False)
    Cuda.open_pools.clear()
    return Cuda


def is_clean(cuda):
    return not cuda.generator.is_recorded and cuda.stream == "default" and cuda.open_pools == []


def test_a_capture_returns_its_result_and_restores_the_random_state(cuda):
    before = torch.get_rng_state()
    _, result = capture_graph(lambda: torch.rand(2), pool="pool", device=CPU)
    assert result.shape == (2,)
    assert torch.equal(torch.get_rng_state(), before)
    assert is_clean(cuda)


def test_other_threads_may_use_the_gpu_during_a_capture(cuda):
    """The thread that prepares batches allocates page-locked memory, which the usual mode forbids in all threads."""
    capture_graph(lambda: None, pool="pool", device=CPU)
    assert cuda.options == {"capture_error_mode": "thread_local"}


@pytest.mark.parametrize("fails", [False, True])
def test_no_garbage_is_collected_during_a_capture(cuda, fails):
    """A collected graph would be deleted, and CUDA forbids that."""
    seen = []

    def compute():
        seen.append(gc.isenabled())
        if fails:
            raise RuntimeError("refused")

    with suppress(CaptureError):
        capture_graph(compute, pool="pool", device=CPU)
    assert seen == [False]
    assert gc.isenabled()
    with cuda_graphs._COLLECTOR_PAUSE:  # another thread, which captures for longer
        with suppress(CaptureError):
            capture_graph(compute, pool="pool", device=CPU)
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with suppress(CaptureError):
            capture_graph(compute, pool="pool", device=CPU)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_failed_capture_raises_its_first_error_and_cleans_up(cuda):
    cuda.breaks = RuntimeError("operation failed due to a previous error during capture")
    before = torch.get_rng_state()

    def fail():
        torch.rand(2)
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED in cublasLtMatmul")

    with pytest.raises(CaptureError, match=r"^CUBLAS_STATUS_NOT_SUPPORTED in cublasLtMatmul$"):
        capture_graph(fail, pool="pool", device=CPU)
    assert is_clean(cuda)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_capture_that_fails_at_its_end_is_cleaned_up(cuda):
    cuda.breaks = RuntimeError("invalid capture")
    with pytest.raises(CaptureError, match="invalid capture"):
        capture_graph(lambda: None, pool="pool", device=CPU)
    assert is_clean(cuda)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ValueError])
def test_other_errors_pass_through(cuda, stop):
    def fail():
        raise stop

    with pytest.raises(stop):
        capture_graph(fail, pool="pool", device=CPU)
    assert is_clean(cuda)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_random_numbers_and_graphs_work_after_a_failed_capture_on_a_gpu():
    device = torch.device("cuda")
    x = torch.ones(64, 64, device=device)
    x @ x  # initialize cuBLAS, which cannot be captured
    stream, pool = torch.cuda.current_stream(), torch.cuda.graph_pool_handle()
    torch.manual_seed(1)
    expected = torch.rand(3, device=device)
    torch.manual_seed(1)
    with pytest.raises(CaptureError, match="captur"):
        capture_graph(lambda: (torch.rand(3, device=device) @ x[:3, :3]).sum().item(), pool=pool, device=device)
    assert torch.cuda.current_stream() == stream
    assert torch.equal(torch.rand(3, device=device), expected)
    graph, result = capture_graph(
        lambda: torch.dropout(x, 0.5, True) @ x, pool=torch.cuda.graph_pool_handle(), device=device
    )
    torch.manual_seed(2)
    graph.replay()
    replayed = result.clone()
    torch.manual_seed(2)
    torch.testing.assert_close(replayed, torch.dropout(x, 0.5, True) @ x)
    torch.cuda.empty_cache()
